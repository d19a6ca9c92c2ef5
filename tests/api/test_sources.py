"""Rules for source files that no linter checks."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
CEILING = 600
# Not .pyi: what an extension module offers is one file, however much it is.
CODE = (".py", ".rs")
# Where packages come from is the business of the machine that installs them.
REGISTRY = re.compile(r"\b(?:pypi\.org|pythonhosted\.org|crates\.io|anaconda\.org)\b")


def tracked() -> list[Path]:
    """The files of the repository, without what is built or ignored."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    paths = [REPOSITORY / name for name in listed.stdout.split("\0") if name]
    return [path for path in paths if path.is_file()]


def sources(*suffixes: str) -> list[Path]:
    return [path for path in tracked() if path.suffix in suffixes]


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def place(path: Path, line: int) -> str:
    return f"{path.relative_to(REPOSITORY)}:{line}"


def asserts(source: str) -> list[int]:
    return [n.lineno for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Assert)]


CLOCKS = {"monotonic", "perf_counter", "process_time", "thread_time"}


def bounds_on_elapsed_time(source: str) -> list[int]:
    """The lines that assert an upper bound on elapsed time, but for tests that are marked `timed`.

    A deadline, `assert time.monotonic() < end` in a loop, is none: it ends a wait for an event.
    """
    if not any(clock in source for clock in CLOCKS):
        return []
    tree = ast.parse(source)
    if any("mark.timed" in ast.unparse(node) for node in tree.body if isinstance(node, ast.Assign)):
        return []
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    found = set()
    for function in functions:
        if not any("mark.timed" in ast.unparse(mark) for mark in function.decorator_list):
            found |= _bounds_of(function)
    return sorted(found)


def _bounds_of(function: ast.AST) -> set[int]:
    readings: set[str] = set()  # names of readings of a clock, and of differences of them
    elapsed: set[str] = set()

    def reads(node: ast.AST) -> bool:
        names = (getattr(n, "attr", getattr(n, "id", "")) for n in ast.walk(node))
        return any(name in CLOCKS | readings for name in names)

    def measures(node: ast.AST) -> bool:
        return any(
            (isinstance(n, ast.BinOp) and isinstance(n.op, ast.Sub) and reads(n.left))
            or (isinstance(n, ast.Name) and n.id in elapsed)
            for n in ast.walk(node)
        )

    for node in [*ast.walk(function)] * 2:  # a name may be used above its assignment, in a loop
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if measures(node.value):
                elapsed.add(name)
            elif reads(node.value):
                readings.add(name)
    return {
        statement.lineno
        for statement in ast.walk(function)
        if isinstance(statement, ast.Assert) and any(map(measures, _lesser_sides(statement.test)))
    }


def _lesser_sides(test: ast.AST) -> Iterator[ast.AST]:
    for compare in ast.walk(test):
        if isinstance(compare, ast.Compare):
            sides = [compare.left, *compare.comparators]
            for op, left, right in zip(compare.ops, sides, sides[1:], strict=False):
                if isinstance(op, ast.Lt | ast.LtE):
                    yield left
                elif isinstance(op, ast.Gt | ast.GtE):
                    yield right


def unargued_unsafe(source: str) -> list[int]:
    """The lines with an `unsafe` that no SAFETY comment (block) or section (function) argues for."""
    found = []
    lines = source.splitlines()
    for number, line in enumerate(lines):
        code = line.partition("//")[0]
        if not re.search(r"\bunsafe\b\s*(\{|fn\b|impl\b|extern\b)", code):
            continue
        above = number - 1
        while above >= 0 and re.match(r"\s*(//|#\[|$)", lines[above]):
            above -= 1
        argument = "\n".join([*lines[above + 1 : number], line])
        if not re.search(r"SAFETY:|# Safety", argument):
            found.append(number + 1)
    return found


def test_the_repository_has_sources_to_check():
    assert len(sources(".py")) > 20
    assert len(sources(".rs")) > 5


@pytest.mark.parametrize("suffix", CODE)
def test_no_file_is_longer_than_the_ceiling(suffix):
    lengths = {place(path, 1): len(read(path).splitlines()) for path in sources(suffix)}
    assert {name: n for name, n in lengths.items() if n > CEILING} == {}


def test_the_package_validates_without_assert():
    """`python -O` must not change behaviour."""
    package = REPOSITORY / "python" / "shoal"
    found = [
        place(path, line)
        for path in sources(".py")
        if path.is_relative_to(package)
        for line in asserts(read(path))
    ]
    assert found == []


def test_assert_is_found():
    assert asserts("x = 1\ndef f():\n    assert x, 'no'\n") == [3]


def public_classes(source: str) -> Iterator[str]:
    """The public classes at the top of a module, also those inside an `if` or a `try` there."""
    left = ast.parse(source).body
    while left:
        statement = left.pop()
        if isinstance(statement, ast.ClassDef):
            if not statement.name.startswith("_"):
                yield statement.name
        elif isinstance(statement, ast.If | ast.Try | ast.With):
            left += ast.iter_child_nodes(statement)
        elif isinstance(statement, ast.ExceptHandler):
            left += statement.body


def defined_twice(modules: dict[str, str]) -> list[str]:
    """The public classes that two modules define, with the names of both."""
    first: dict[str, str] = {}
    found = []
    for name, source in sorted(modules.items()):
        for defined in sorted(set(public_classes(source))):
            other = first.setdefault(defined, name)
            if other != name:
                found.append(f"{defined} is defined in {other} and in {name}")
    return found


def test_no_public_class_of_the_package_is_defined_twice():
    """But for `_pure`, the other core, and `compat`, which has the names of other packages."""
    package = REPOSITORY / "python" / "shoal"
    modules = {
        str(path.relative_to(REPOSITORY)): read(path)
        for path in sources(".py")
        if path.is_relative_to(package)
        and path.relative_to(package).parts[0] not in ("_pure", "compat")
    }
    assert len(modules) > 100
    assert defined_twice(modules) == []


def test_class_that_is_defined_twice_is_found():
    modules = {
        "a.py": "class Link: ...\nclass _Own: ...",
        "b.py": "try:\n    import x\nexcept ImportError:\n    class Link: ...",
        "c.py": "class _Own: ...\ndef f():\n    class Link: ...\nclass Outer:\n    class Link: ...",
    }
    assert defined_twice(modules) == ["Link is defined in a.py and in b.py"]


def test_no_test_bounds_elapsed_time():
    tests = REPOSITORY / "tests"
    found = [
        place(path, line)
        for path in sources(".py")
        if path.is_relative_to(tests)
        for line in bounds_on_elapsed_time(read(path))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("body", "lines"),
    [
        ("assert time.monotonic() - start < 5", [2]),
        ("took = clock() - start; assert 1 < took < 5", []),
        ("took = perf_counter() - start; assert 1 < took < 5", [2]),
        ("end = monotonic(); assert 5 >= end - start", [2]),
        ("took = monotonic() - start; assert took > 5", []),
        ("assert time.monotonic() < end, 'it hangs'", []),
    ],
)
def test_bound_on_elapsed_time_is_found(body, lines):
    assert bounds_on_elapsed_time(f"def test():\n    {body}\n") == lines
    assert bounds_on_elapsed_time(f"@pytest.mark.timed\ndef test():\n    {body}\n") == []


def test_every_unsafe_is_argued():
    found = [place(path, n) for path in sources(".rs") for n in unargued_unsafe(read(path))]
    assert found == []


def test_unsafe_without_argument_is_found():
    bare = "fn f() {\n    let x = unsafe { *p };\n}\n"
    argued = "fn f() {\n    // SAFETY: p is valid here\n    let x = unsafe { *p };\n}\n"
    function = "/// # Safety\n/// `p` is valid.\n#[inline]\npub unsafe fn g() {}\n"
    assert unargued_unsafe(bare) == [2]
    assert unargued_unsafe(argued + function) == []
    assert unargued_unsafe("// unsafe { } is not used here\n") == []


def test_atomics_are_named_in_one_file():
    """So that a model checker can replace them all; it and the tests have their own."""
    own = {"sync.rs", "failpoint.rs", "loom_atomics.rs"}
    crate = REPOSITORY / "rust" / "shm" / "src"
    paths = [path for path in sources(".rs") if path.is_relative_to(crate)]
    named = [path for path in paths if "sync::atomic" in read(path)]
    assert named
    found = [path for path in named if path.name not in own and "tests" not in path.parts]
    assert [place(path, 1) for path in found] == []


def test_no_file_names_a_package_registry():
    texts = [p for p in tracked() if p.name != "Cargo.lock" and p.suffix not in (".png", ".pt")]
    found = [
        place(path, read(path).count("\n", 0, match.start()) + 1)
        for path in texts
        for match in REGISTRY.finditer(read(path))
    ]
    assert found == []


def test_registry_is_found():
    assert REGISTRY.search("see https://files.python" + "hosted.org/packages")


def test_every_suppression_names_a_code_and_a_reason():
    pattern = re.compile(r"#\s*(?:noqa|type:\s*ignore)(?P<rest>.*)")
    found = []
    for path in sources(".py", ".pyi"):
        for number, line in enumerate(read(path).splitlines(), 1):
            match = pattern.search(line)
            if match and path != Path(__file__) and not suppression_is_argued(match["rest"]):
                found.append(place(path, number))
    assert found == []


def suppression_is_argued(rest: str) -> bool:
    """Whether a code follows the directive, and words the code."""
    match = re.match(r":?\s*(?:\[[\w, -]+\]|[A-Z]+\d+(?:,\s*[A-Z]+\d+)*)(?P<reason>.*)", rest)
    return bool(match and len(re.findall(r"\w{2,}", match["reason"])) >= 2)


def test_suppression_without_reason_is_found():
    assert suppression_is_argued(": S301  (both ends are ours)")
    assert suppression_is_argued("[arg-type]  # the fields have these types")
    assert not suppression_is_argued(": S301")
    assert not suppression_is_argued("")
