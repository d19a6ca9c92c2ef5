"""`python -m shoal.compat.rlinf SCRIPT [ARGS…]`: run a script with shoal as `rlinf.scheduler`."""

import argparse
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from shoal.compat.rlinf import install


def main(argv: Sequence[str]) -> None:
    """Run the script as Python itself would: with its `argv`, its `sys.path` and its `__main__`.

    The exit code is the script's own, or 2 if there is no script to run.
    """
    parser = argparse.ArgumentParser(
        prog="python -m shoal.compat.rlinf",
        usage="%(prog)s SCRIPT [ARGS...]",
        description="Run a Python script in which `rlinf.scheduler` is shoal.",
    )
    parser.add_argument("script", metavar="SCRIPT", help="the script; what follows is for it")
    # Parse only the first argument: all others belong to the script.
    script = Path(parser.parse_args(argv[:1]).script)
    if not script.exists():
        parser.error(f"there is no script {str(script)!r} (looked in {Path.cwd()})")
    sys.argv[:] = argv
    if not sys.flags.safe_path:
        # `python -m` puts the current folder here; a script expects its own folder.
        sys.path[0] = str(script.resolve().parent)
    install()
    runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
