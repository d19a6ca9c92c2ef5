"""Hides secrets in texts: the values of variables whose names say that they are secret."""

import json
import re
from collections.abc import Iterable, Mapping
from urllib.parse import quote

__all__ = ["HIDDEN", "Secrets"]

HIDDEN = "(hidden)"

_WORD = r"(?:KEY(?!ERROR|BOARD)|TOKEN(?!IZ)|SECRET|PASSWORD|PASSWD|CREDENTIAL)"
_SECRET_WORD = re.compile(_WORD, re.IGNORECASE)
# With limits, and from the begin of a name on: a log may have a name of any length.
_NAME = rf"(?P<name>[\w.-]{{0,100}}{_WORD}[\w.-]{{0,100}})"
_GIVEN = re.compile(
    rf"""(?P<before>(?<![\w.-]){_NAME}(?P<quote>\\?["'])?\s{{0,20}}[=:]\s{{0,20}}\\?)"""
    r"""(?P<value>"[^"]*"|'[^']*'|(?(quote)[^\s,;&"']+|\S+))""",
    re.IGNORECASE,
)
"""A value that is given to such a name in a text: `API_KEY=x`, `"token": "x"`."""
_OPTION = re.compile(
    rf"""(?P<before>(?<!\S)--?{_NAME}["']?\s{{1,20}})(?P<value>"[^"]*"|'[^']*'|\S+)""",
    re.IGNORECASE,
)
"""The same on a command line: `--password x`."""
_COUNTS = re.compile("TOKENS|KEYS", re.IGNORECASE)
"""Found in names whose value may be a number that is not secret: `max_tokens=131072`."""
_IN_ADDRESS = re.compile(r"""(\b\w+://[^/\s:"]*:)([^\s"]+)""")
_SHORTEST = 6
"""Length from which on a value is hidden wherever it occurs: a shorter one may be an ordinary word."""


class Secrets:
    """The secrets of some processes.

    Args:
        environments: The environments of the processes.
    """

    def __init__(self, environments: Iterable[Mapping[str, str]]) -> None:
        values = {
            part
            for environment in environments
            for name, value in environment.items()
            if _SECRET_WORD.search(name)
            for part in (value, value.strip(), *value.splitlines())
        }
        forms = {
            form
            for value in values
            if len(value) >= _SHORTEST
            for form in (value, json.dumps(value)[1:-1], repr(value)[1:-1], quote(value, safe=""))
        }
        longest_first = sorted(forms, key=len, reverse=True)  # one may be a part of another
        self._values = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def hide(self, text: str) -> str:
        """Return a text without the secrets, and without the values of secret names (`API_KEY=x`)."""
        text = self.hide_known(text)
        return _OPTION.sub(_without_value, _GIVEN.sub(_without_value, text))

    def hide_known(self, text: str) -> str:
        """Return a text without the secrets; names such as `key` in it may have other values."""
        return _IN_ADDRESS.sub(_without_password, self._values.sub(HIDDEN, text))

    def hide_variables(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return an environment without the secrets."""
        return {
            name: HIDDEN if _SECRET_WORD.search(name) else self.hide(value)
            for name, value in environment.items()
        }


def _without_password(found: re.Match[str]) -> str:
    _, at, host = found[2].rpartition("@")
    return f"{found[1]}{HIDDEN}@{host}" if at else found[0]


def _without_value(found: re.Match[str]) -> str:
    value = found["value"].strip("\"'\\,;)]}")
    is_count = _COUNTS.search(found["name"]) and value.replace(".", "").isdigit()
    if is_count or len(value) < _SHORTEST or found["value"].strip("\"'\\") == HIDDEN:
        return found[0]
    return f"{found['before']}{HIDDEN}"
