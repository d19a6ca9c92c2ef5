"""Adapts shoal's sources and stub to Griffe, which reads them for the API pages."""

import re
from typing import Any

import griffe


class Adapt(griffe.Extension):
    """Shows what Griffe would leave out or would not recognise."""

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        """Show the constructors and the overloaded methods of the stub."""
        if "__new__" in cls.members and "__init__" not in cls.members:
            new = cls.members["__new__"]
            cls.del_member("__new__")
            new.name = "__init__"
            cls.set_member("__init__", new)
        # Griffe expects an implementation after the overloads, which a stub does not have.
        for name, overloads in cls.overloads.items():
            if overloads and name not in cls.members:
                first = overloads[0]
                method = griffe.Function(
                    name,
                    parameters=first.parameters,
                    returns=first.returns,
                    docstring=first.docstring,
                    lineno=first.lineno,
                    endlineno=overloads[-1].endlineno,
                )
                method.overloads = overloads
                cls.set_member(name, method)

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rename sections of examples, and remove the `::` before a block of code."""
        if obj.docstring is not None:
            text = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)
            obj.docstring.value = re.sub(r"^::\n\n", "", text, flags=re.MULTILINE)
