"""Public names: sorted, resolvable, and declared the same for readers, type checkers and Python."""

import ast
import pkgutil
from pathlib import Path

import pytest

import shoal
from support.processes import run_program

pytestmark = pytest.mark.nightly

PACKAGE = Path(shoal.__file__).parent


def declared_to_type_checkers(source: str) -> set[str]:
    """The names that the `if TYPE_CHECKING:` blocks of a module import."""
    return {
        alias.asname or alias.name
        for block in ast.walk(ast.parse(source))
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test)
        for statement in block.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }


def test_exports_are_sorted_and_unique():
    assert list(shoal.__all__) == sorted(set(shoal.__all__))


@pytest.mark.parametrize("name", shoal.__all__)
def test_export_resolves_to_something_of_shoal(name):
    value = getattr(shoal, name)
    module = getattr(value, "__module__", "shoal")
    assert module.partition(".")[0] == "shoal", f"shoal.{name} is from {module}"
    assert name in dir(shoal)


def test_type_checkers_see_exactly_the_lazy_exports():
    source = (PACKAGE / "__init__.py").read_text(encoding="utf-8")
    declared = declared_to_type_checkers(source)
    plain = {name for name in vars(shoal) if name.startswith("__")}
    assert declared <= set(shoal.__all__)
    missing = {n for n in shoal.__all__ if n not in declared and n not in plain}
    # Names that the file itself defines need no declaration.
    assert {n for n in missing if f"def {n}(" not in source and f"{n} =" not in source} == set()


def test_unknown_name_is_an_attribute_error_that_shows_it():
    with pytest.raises(AttributeError, match="Clutser"):
        _ = shoal.Clutser


@pytest.mark.timeout(600)
def test_every_module_imports_by_itself_without_warnings():
    """Import each module in a process that has imported nothing of shoal.

    Within one process, an import order that happens to work would hide a cycle. The packages that
    shoal depends on are imported once, before the processes fork.
    """
    names = [
        module.name
        for module in pkgutil.walk_packages([str(PACKAGE)], "shoal.")
        if not module.name.endswith((".__main__", "._rust"))
    ]
    assert len(names) > 10
    program = (
        "import importlib, os, sys, warnings\n"
        "import numpy, pydantic, ray, rich, typer, yaml\n"
        "warnings.filterwarnings('error', module='shoal')\n"
        "for number, name in enumerate(sys.argv[1:]):\n"
        "    if number >= 8:\n"
        "        os.wait()\n"
        "    if os.fork() == 0:\n"
        "        try:\n"
        "            importlib.import_module(name)\n"
        "        except BaseException as error:\n"
        "            print(f'{name}: {error!r}', flush=True)\n"
        "        os._exit(0)\n"
        "while True:\n"
        "    try:\n"
        "        os.wait()\n"
        "    except ChildProcessError:\n"
        "        break\n"
    )
    assert run_program("-c", program, *names, seconds=580, check=True).stdout == ""


def test_resolving_every_export_loads_no_torch():
    program = (
        "import sys, shoal\n"
        "for name in shoal.__all__: getattr(shoal, name)\n"
        "print('torch' in sys.modules)"
    )
    assert run_program("-c", program, check=True).stdout == "False\n"
