"""The project's pages and the code blocks in them."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def page(name):
    """The text of a page, by its path in the repository."""
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(text, language=None):
    """The code blocks of a text, all or those in a language."""
    return [code for kind, code in _BLOCK.findall(text) if language in (None, kind)]


def run(program, name="__main__"):
    """Run a block in this process, as a module with this name."""
    exec(compile(program, "<document>", "exec"), {"__name__": name})
