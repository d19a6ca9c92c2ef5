"""Hides secrets in texts: the values of variables whose names say that they are secret."""

import json
import re
from collections.abc import Iterable, Mapping
from urllib.parse import quote

__all__ = ["HIDDEN", "Secrets"]

HIDDEN = "(hidden)"

_NAME = r"[\w.-]*(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL)[\w.-]*"
_SECRET_NAME = re.compile(_NAME, re.IGNORECASE)
_GIVEN = re.compile(
    rf"""({_NAME}\\?["']?\s*[=:]\s*\\?|(?<!\S)--?{_NAME}["']?\s+)("[^"]*"|'[^']*'|[^\s,;&"']+)""",
    re.IGNORECASE,
)
"""A value that is given to such a name in a text: `API_KEY=x`, `"token": "x"`, `--password x`."""
_IN_ADDRESS = re.compile(r"(\b\w+://[^/\s:@]*:)[^/\s@]+(?=@)")
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
            if _SECRET_NAME.fullmatch(name)
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
        """Return a text without the secrets."""
        text = self._values.sub(HIDDEN, text)
        return _GIVEN.sub(_without_value, _IN_ADDRESS.sub(rf"\1{HIDDEN}", text))

    def hide_variables(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return an environment without the secrets."""
        return {
            name: HIDDEN if _SECRET_NAME.fullmatch(name) else self.hide(value)
            for name, value in environment.items()
        }


def _without_value(found: re.Match[str]) -> str:
    value = found[2].strip("\"'\\")
    is_number = value.replace(".", "").isdigit()  # `tokens=4096`
    if is_number or len(value) < _SHORTEST or value == HIDDEN:
        return found[0]
    return f"{found[1]}{HIDDEN}"
