"""`python -m shoal`: the commands, where no script is installed."""

from shoal.cli import main

if __name__ == "__main__":
    main()
