"""Functions of other modules that are called for long waits: remarks on their log lines, reports of hangs."""

import importlib
import logging
from collections.abc import Callable
from typing import Any

__all__ = ["annotate_waits", "remarks_on", "report_hang", "report_hangs"]

Function = Callable[[Any], str] | str
"""A function that gets the `LongWait`, or its name, `module:function`, to be imported when needed."""

_log = logging.getLogger("shoal")

_remarks: list[Function] = []
_reports: list[Function] = []


def annotate_waits(remark: Function) -> None:
    """Add what a function returns to the end of each log line of a wait; empty for nothing."""
    _remarks.append(remark)


def report_hangs(report: Function) -> None:
    """Call a function once for each wait of more than `SHOAL_HANG` seconds; its result is ignored."""
    _reports.append(report)


def remarks_on(wait: Any) -> list[str]:
    """Return the remarks on a wait. Does not raise, as what is reported must not end the wait."""
    return [text for remark in _remarks if (text := _called(remark, wait))]


def report_hang(wait: Any) -> None:
    """Tell all reporters that a wait hangs. Does not raise."""
    for report in _reports:
        _called(report, wait)


def _called(function: Function, wait: Any) -> str:
    try:
        if isinstance(function, str):
            module, _, name = function.partition(":")
            function = getattr(importlib.import_module(module), name)
        return function(wait)  # type: ignore[operator]  # the name is one of a function
    except Exception:  # noqa: BLE001  (see `remarks_on`)
        _log.debug("a remark on a long wait failed", exc_info=True)
        return ""
