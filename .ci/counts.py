"""Prints how many loops, twins and lines there are on the way of a message.

    .ci/counts.py [FOLDER]

FOLDER is the root of a checkout, by default this one. Two checkouts, compared, show what a change of
the structure saved.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

# The folders of the package through which a message goes.
DATA = ("queues", "channel", "collective")
FOLDERS = (
    "python/shoal", "python/shoal/_pure/shm", *(f"python/shoal/{name}" for name in DATA),
    "python/shoal/net_emulation", "python/shoal/worker/routing", "rust", "rust/ext", "tests", "benches",
)  # fmt: skip
LINES_OF = {".py", ".rs", ".pyi"}


def modules(root: Path, *folders: str) -> Iterator[tuple[Path, ast.Module]]:
    """Yield the modules of folders of the package: path and tree."""
    for folder in folders:
        for path in sorted((root / "python" / "shoal" / folder).rglob("*.py")):
            yield path, ast.parse(path.read_text(encoding="utf-8"))


def loops(root: Path) -> int:
    """Return the number of `while True` in the folders through which a message goes."""
    return sum(
        isinstance(node, ast.While) and getattr(node.test, "value", None) is True
        for _, tree in modules(root, *DATA)
        for node in ast.walk(tree)
    )


def twins(root: Path) -> list[str]:
    """Return the pairs of functions of one module or class that exist with and without asyncio.

    A pair is `put` and `aput`, `put` and `start_put`, or `take` and `async_take`, with or without
    the underscore of a private name.
    """
    found = []
    for path, tree in modules(root, *DATA, "shm", "worker", "transport"):
        for scope in ast.walk(tree):
            if not isinstance(scope, ast.Module | ast.ClassDef):
                continue
            names = {
                node.name
                for node in scope.body
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            }
            plain = {name.lstrip("_"): name for name in names if not name.endswith("__")}
            where = f"{path.stem}.{scope.name}" if isinstance(scope, ast.ClassDef) else path.stem
            found += [
                f"{where}: {plain[name]}, {plain[twin]}"
                for name in sorted(plain)
                for twin in (f"a{name}", f"start_{name}", f"async_{name}")
                if twin in plain
            ]
    return found


def lines(root: Path, folder: str) -> int:
    """Return the number of lines of the Python and Rust files of a folder."""
    return sum(
        len(path.read_text(encoding="utf-8").splitlines())
        for path in (root / folder).rglob("*")
        if path.suffix in LINES_OF and "target" not in path.relative_to(root).parts
    )


def main() -> None:
    """Print all counts."""
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent)
    pairs = twins(root)
    rows = [
        ("while True", loops(root), f"in {', '.join(DATA)}"),
        ("twin pairs", len(pairs), "; ".join(pairs)),
        *(
            (f"lines of {folder}", lines(root, folder), "")
            for folder in FOLDERS
            if (root / folder).is_dir()
        ),
        *(
            (f"modules of {name}", len(list((root / "python/shoal" / name).glob("*.py"))), "")
            for name in DATA
        ),
    ]
    for what, count, which in rows:
        print(f"{count:>7,}  {what}{': ' if which else ''}{which}")  # noqa: T201  (the output of a program)


if __name__ == "__main__":
    main()
