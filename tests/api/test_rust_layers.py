"""Import rules of the crate `shoal-shm`: a folder uses only those below it."""

import re
from pathlib import Path

import pytest

CRATE = Path(__file__).parents[2] / "rust" / "shm" / "src"
# Lowest first.
LAYERS = [
    {"sync", "loom_atomics", "failpoint", "crash_point"},
    {"ring"},
    {"blocking"},
    {"segment"},
    {"payload"},
    {"session"},
    {"internals", "lib"},
]
RANKS = {name: rank for rank, names in enumerate(LAYERS) for name in names}


def used_modules(source: str) -> set[str]:
    """The modules of the crate's root that a file names, without its unit tests and comments."""
    code = re.sub(r"//.*", "", source).partition("#[cfg(test)]\nmod tests {")[0]
    named = set(re.findall(r"\bcrate::(\w+)", code))
    for group in re.findall(r"\bcrate::\{([^;]*)\}\s*;", code):
        # Of `{ring::Queue, sync::{self, Ordering}}` the first names.
        flat = re.sub(r"\{[^{}]*\}", "", group)
        named |= set(re.findall(r"(?:^|,)\s*(\w+)", flat))
    return named


def violations(name: str, source: str) -> list[str]:
    """The names above the module `name` that `source` uses."""
    return sorted(n for n in used_modules(source) if RANKS.get(n, len(LAYERS)) > RANKS[name])


def module_of(path: Path) -> str:
    return path.relative_to(CRATE).with_suffix("").parts[0]


def files() -> list[Path]:
    found = [p for p in sorted(CRATE.rglob("*.rs")) if not {"tests", "processes"} & set(p.parts)]
    return [path for path in found if path.name != "tests.rs"]


def test_every_module_has_a_layer():
    assert {module_of(path) for path in files()} <= set(RANKS)


def test_no_module_uses_one_above_it():
    above = {str(p): violations(module_of(p), p.read_text("utf-8")) for p in files()}
    assert {name: found for name, found in above.items() if found} == {}


def test_no_path_climbs_out_of_its_folder():
    climbs = [str(p) for p in files() if "super::super" in p.read_text("utf-8")]
    roots = [str(p) for p in CRATE.glob("*/mod.rs") if "use super::" in p.read_text("utf-8")]
    assert climbs + roots == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("use crate::segment::map::Mapping;\n", []),
        ("use crate::session::Error;\n", ["session"]),
        ("use crate::{ring::{Queue, Want}, session::{self, Error}, sync};\n", ["session"]),
        ("fn f() -> crate::session::Error {}\n", ["session"]),
        ("/// As in [`crate::session`].\nuse crate::sync;\n", []),
        ("#[cfg(test)]\nmod tests {\n    use crate::session::Session;\n}\n", []),
        # A name of the facade, which has names of all layers.
        ("use crate::Keep;\n", ["Keep"]),
    ],
)
def test_an_import_of_a_higher_layer_is_found(source, found):
    assert violations("payload", source) == found
