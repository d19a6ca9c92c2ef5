"""docs/performance.md names existing benchmarks and contains the numbers that the README quotes."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMAND = re.compile(r'make bench ARGS="-k (\w+)"')


def test_the_benchmarks_that_are_named_are_there():
    names = COMMAND.findall(TEXT)
    assert len(names) >= 3
    for name in [*names, *COMMAND.findall(README)]:
        assert (ROOT / "benches" / f"{name}.py").is_file()


def test_the_readme_links_the_page():
    assert "(docs/performance.md)" in README


@pytest.mark.parametrize("number", ["20 ms", "0.471", "3.02", "7.57", "34.8 ms", "1.38"])
def test_the_numbers_of_the_readme_are_those_of_the_page(number):
    head = README.split("## Quickstart")[0]
    assert number in re.sub(r"\s+", " ", head)
    assert number in TEXT
