"""`python -m shoal`: the command-line program, for when the `shoal` script is not installed."""

from shoal.cli import main

if __name__ == "__main__":
    main()
