"""The pages for contributors name only files that exist, and every folder of the package."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PACKAGE = REPOSITORY / "python" / "shoal"
PAGES = ("ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md")
EXTENSIONS = {"css", "js", "json", "md", "py", "pyi", "rs", "supp", "toml", "yaml"}

_FENCED = re.compile(r"^```\w*\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
# The first line of a block, if it names the file that the block belongs to.
_BLOCK_FILE = re.compile(r"(?:#|//) (?P<path>\S+)\n")
_IN_BACKTICKS = re.compile(r"`(?P<text>[^`\n]+)`")
# A part such as <vendor> stands for any name.
_RELATIVE_PATH = re.compile(r"\.?\w[\w.-]*(?:<\w+>[\w.-]*)*(?:/[\w.-]*(?:<\w+>[\w.-]*)*)*")
_LINK = re.compile(r"\]\((?P<target>[^)#:]+)(?:#[^)]*)?\)")


def page(name: str) -> str:
    return (REPOSITORY / name).read_text(encoding="utf-8")


def is_path(word: str) -> bool:
    if not _RELATIVE_PATH.fullmatch(word):
        return False
    return "/" in word or word.rpartition(".")[2] in EXTENSIONS


def named_paths(text: str) -> Iterator[str]:
    """The files and folders that a page names: in backticks, as links, and on top of blocks."""
    for block in _FENCED.finditer(text):
        if first := _BLOCK_FILE.match(block["code"]):
            yield first["path"]
    prose = _FENCED.sub("", text)
    for found in _IN_BACKTICKS.finditer(prose):
        yield from filter(is_path, found["text"].split())
    for link in _LINK.finditer(prose):
        yield link["target"]


def exists(path: str) -> bool:
    pattern = re.sub(r"<\w+>", "*", path).rstrip("/")
    if "*" in pattern:
        return any(REPOSITORY.glob(pattern))
    return (REPOSITORY / pattern).exists()


@pytest.mark.parametrize("name", PAGES)
def test_named_files_and_folders_exist(name):
    paths = list(named_paths(page(name)))
    assert len(paths) > 5
    assert [path for path in paths if not exists(path)] == []


def test_architecture_names_every_folder_of_the_package():
    folders = {path.parent.relative_to(REPOSITORY).as_posix() for path in PACKAGE.glob("*/**/*.py")}
    assert len(folders) > 10
    assert sorted(folders - set(named_paths(page("ARCHITECTURE.md")))) == []


def layers() -> list[set[str]]:
    """`LAYERS` of the test of imports, lowest first."""
    source = (REPOSITORY / "tests" / "api" / "test_layers.py").read_text(encoding="utf-8")
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "LAYERS":
            return ast.literal_eval(statement.value)
    raise LookupError("test_layers.py has no LAYERS")


def test_picture_shows_every_folder_above_those_of_lower_layers():
    lines = _FENCED.search(page("ARCHITECTURE.md"))["code"].splitlines()
    # The label of a row may be the name of a folder too.
    words = [set(re.findall(r"\w+", line.partition("|")[2])) for line in lines]
    lowest = len(lines)
    for folders in layers():
        drawn = [name for name in folders if (PACKAGE / name / "__init__.py").exists() and name]
        rows = [next(i for i, line in enumerate(words) if name in line) for name in drawn]
        assert max(rows, default=0) <= lowest, f"{drawn} are drawn below a lower layer"
        lowest = min(rows, default=lowest)


def test_readme_links_the_pages():
    links = [link["target"] for link in _LINK.finditer(page("README.md"))]
    assert [name for name in PAGES if name not in links] == []


def test_paths_are_found_in_backticks_links_and_blocks():
    text = (
        "`a/b.py`, `make test`, `/dev/shm`, `x.y`, `shoal.errors`, `0.1 s`, `make -f c/d.mk`\n"
        "[e](f/g.md#part) [h](https://example.org/i.md) `j/<k>_l.py` `*.py`\n"
        "```python\n# m/n.py\nimport p  # `q/r.py`\n```\n"
    )
    assert list(named_paths(text)) == ["m/n.py", "a/b.py", "c/d.mk", "j/<k>_l.py", "f/g.md"]


def test_missing_file_is_found():
    assert exists("tests/api/test_<page>_pages.py")
    assert exists("tests/api/")
    assert not exists("tests/api/test_<page>_papers.py")
    assert not exists("tests/api/test_contributor_papers.py")
