"""Import rules: a module imports only from its own layer and lower ones, and without cycles.

Imports inside functions and for type checkers count too: moving an import into a function does not
remove a cycle.
"""

import ast
import graphlib
from pathlib import Path

import pytest

import shoal

# Lowest first. A name is the first part of the module's path after `shoal`.
LAYERS = [
    {
        "errors",
        "arrays",
        "context",
        "deadline",
        "fork",
        "futures",
        "integers",
        "job_end",
        "long_wait_hooks",
        "loop",
        "nearest",
        "pickling",
        "ports",
        "problems",
        "process",
        "rank_ranges",
        "refusals",
        "reused_threads",
        "signatures",
        "state",
        "work",
        "bootstrap",
        "_backend",
        "_pure",
        "_ray",
        "_rust",
    },  # fmt: skip,
    {"profiling"},
    {"hardware"},
    {"config"},
    {"manager", "node_probe", "placement", "topology"},
    {"tracing"},
    {"net_emulation"},
    {"cluster"},
    {"transport", "shm"},
    {"queues"},
    {"channel"},
    {"weights"},
    {"collective"},
    {"worker"},
    {"dynamic_scheduler"},
    {"auto_placement", "cli", "observe", "planner", "compat", "testing", "__main__", ""},
]
PACKAGE = Path(shoal.__file__).parent


def read_modules(package: Path) -> dict[str, str]:
    """The source of every module, by its dotted name."""
    modules = {}
    for path in sorted(package.rglob("*.py")):
        parts = [package.name, *path.relative_to(package).with_suffix("").parts]
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        modules[name] = path.read_text(encoding="utf-8")
    return modules


def parents(name: str) -> set[str]:
    parts = name.split(".")
    return {".".join(parts[:n]) for n in range(1, len(parts))}


def imported_by_call(call: ast.Call) -> set[str]:
    """The module that a call of `import_module` names."""
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    named = call.args[0] if call.args else None
    if name == "import_module" and isinstance(named, ast.Constant):
        return {str(named.value)}
    return set()


def imports_of(name: str, source: str, modules: dict[str, str]) -> set[str]:
    """The modules of shoal that Python runs first when it imports a module.

    Importing `shoal.a.b` also runs `shoal.a`, unless a module inside `shoal.a` imports it.
    `import_module("shoal.a.b")` counts as an import.
    """
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            found |= imported_by_call(node)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                raise ValueError(f"{name}:{node.lineno}: relative import; write the full path")
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                found.add(submodule if submodule in modules else node.module or "")
    ours = {module for module in found if module.partition(".")[0] == "shoal"}
    # `import shoal` costs nothing and runs nothing: its exports are lazy.
    return ours | {p for m in ours for p in parents(m) - parents(name) - {name, "shoal"}}


def layer_of(name: str) -> int:
    part = [*name.split("."), ""][1]
    for number, names in enumerate(LAYERS):
        if part in names:
            return number
    raise LookupError(f"{name}: {part!r} is in no layer; add it to LAYERS where it belongs")


def violations(modules: dict[str, str]) -> list[str]:
    """Imports from a higher layer, then the first cycle if there is one."""
    graph = {name: imports_of(name, source, modules) for name, source in modules.items()}
    wrong = [
        f"{name} (layer {layer_of(name)}) imports {target} (layer {layer_of(target)})"
        for name, targets in graph.items()
        for target in sorted(targets)
        if layer_of(target) > layer_of(name)
    ]
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        wrong.append("cycle: " + " <- ".join(error.args[1]))
    return wrong


def test_modules_import_only_downwards():
    assert violations(read_modules(PACKAGE)) == []


def test_import_from_a_higher_layer_is_found():
    modules = {"shoal.channel": "from shoal.worker import Worker", "shoal.worker": ""}
    low, high = layer_of("shoal.channel"), layer_of("shoal.worker")
    assert violations(modules) == [
        f"shoal.channel (layer {low}) imports shoal.worker (layer {high})"
    ]


def test_import_of_the_package_itself_is_found():
    assert violations({"shoal": "", "shoal.errors": "from shoal import Cluster"})


@pytest.mark.parametrize(
    "lazy",
    [
        "def f():\n    from shoal.cluster import x",
        "if TYPE_CHECKING:\n    import shoal.cluster",
        'def f():\n    importlib.import_module("shoal.cluster").x()',
    ],
)
def test_cycle_hidden_in_a_function_or_from_python_is_found(lazy):
    modules = {"shoal.config": lazy, "shoal.cluster": "import shoal.config"}
    assert [line for line in violations(modules) if line.startswith("cycle")]


def test_module_inside_its_own_package_is_no_cycle():
    modules = {
        "shoal.worker": "from shoal.worker.group import G",
        "shoal.worker.group": "from shoal.worker.result import R",
        "shoal.worker.result": "from shoal.errors import ShoalError",
        "shoal.errors": "",
    }
    assert violations(modules) == []


def test_module_without_a_layer_is_an_error_that_names_it():
    with pytest.raises(LookupError, match="utils"):
        violations({"shoal.utils": "import shoal.errors", "shoal.errors": ""})
