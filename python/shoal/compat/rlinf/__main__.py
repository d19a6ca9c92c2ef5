"""`python -m shoal.compat.rlinf SCRIPT [ARGS…]`: run a script with shoal as `rlinf.scheduler`.

With `--names`, print tables of all names of `rlinf.scheduler` and what shoal does with them.
"""

import argparse
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shoal.compat.rlinf import install
from shoal.compat.rlinf.listing import as_markdown


class _PrintNames(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        sys.stdout.write(as_markdown())
        parser.exit()


def main(argv: Sequence[str]) -> None:
    """Run the script as Python itself would: with its `argv`, its `sys.path` and its `__main__`.

    The exit code is the script's own, or 2 if there is no script to run.
    """
    parser = argparse.ArgumentParser(
        prog="python -m shoal.compat.rlinf",
        usage="%(prog)s SCRIPT [ARGS...] | --names",
        description="Run a Python script in which `rlinf.scheduler` is shoal.",
    )
    parser.add_argument("script", metavar="SCRIPT", help="the script; what follows is for it")
    parser.add_argument(
        "--names", action=_PrintNames, nargs=0, help="list the names of rlinf.scheduler"
    )
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
