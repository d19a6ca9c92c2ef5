"""Adapts the docstrings of shoal to Griffe, which reads them for the API pages."""

import re
from typing import Any

import griffe


class Adapt(griffe.Extension):
    """Shows constructors of the core, and examples and code blocks, as help() does."""

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        """Treat `__new__` as `__init__`, whose parameters Griffe shows and checks."""
        if "__new__" in cls.members and "__init__" not in cls.members:
            new = cls.members["__new__"]
            cls.del_member("__new__")
            new.name = "__init__"
            cls.set_member("__init__", new)

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rename sections of examples, and remove the `::` before a block of code."""
        if obj.docstring is not None:
            text = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)
            obj.docstring.value = re.sub(r"^::\n\n", "", text, flags=re.MULTILINE)
