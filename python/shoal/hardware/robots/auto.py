"""Fills robots' configurations from a node's variables such as `ROBOT_IP`, `CAMERA_SERIALS`."""

import os
import types
from collections.abc import Mapping, Sequence
from dataclasses import Field, fields, replace
from typing import Any, Union, get_args, get_origin, get_type_hints

from shoal.errors import ShoalValueError
from shoal.hardware.base import HardwareConfig

__all__ = ["RobotAutoConfig"]

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})
_EXPECTED = {bool: "true or false", int: "a whole number", float: "a number"}


class RobotAutoConfig:
    """Fills robots' configurations from the environment of the node that has them."""

    @staticmethod
    def resolve(
        configs: Sequence[Any] | None,
        config_cls: type[HardwareConfig] | None = None,
        node_rank: int | None = None,
        count_fields: Sequence[str] = (),
        *,
        environment: Mapping[str, str] | None = None,
    ) -> list[Any]:
        """Complete the configurations of one node's robots of one kind.

        A field that is None is read from the variable of its name in capitals. A single robot takes
        the whole value; of several robots, each takes one of the comma-separated values, and there
        must be one value per robot. Without any configuration, robots are created from the
        variables of `count_fields`, and each of their fields is read from its variable if that is
        set. Node ranks are never read from variables.

        Args:
            configs: The configurations, all of one class; they are not changed.
            config_cls: Their class; required if `configs` may be empty.
            node_rank: The node's rank, for robots that are created.
            count_fields: The fields whose variables tell how many robots to create.
            environment: The variables; None for those of this process.

        Returns:
            The completed configurations.

        Raises:
            ShoalValueError: A variable has the wrong number of values, or an invalid value.
        """
        env = os.environ if environment is None else environment
        given = list(configs or ())
        if given:
            wanted = [_unset(config) for config in given]
        else:
            count = _count(count_fields, env)
            if not count or config_cls is None:
                return []
            given = [config_cls(node_rank=0 if node_rank is None else node_rank)] * count
            wanted = [{f.name for f in _fillable(config_cls)}] * count
        found = _values(type(given[0]), len(given), set().union(*wanted), env)
        return [
            replace(config, **{name: row[i] for name, row in found.items() if name in names})
            for i, (config, names) in enumerate(zip(given, wanted, strict=True))
        ]


def _fillable(kind: type[HardwareConfig]) -> list[Field[Any]]:
    return [f for f in fields(kind) if not f.name.endswith("node_rank")]


def _unset(config: Any) -> set[str]:
    return {f.name for f in _fillable(type(config)) if getattr(config, f.name) is None}


def _count(names: Sequence[str], env: Mapping[str, str]) -> int:
    counts = {
        name.upper(): len(_split(env[name.upper()])) for name in names if env.get(name.upper())
    }
    if not counts:
        return 0
    missing = [name.upper() for name in names if name.upper() not in counts]
    if missing or len(set(counts.values())) > 1:
        listed = ", ".join(
            [f"{name} has {n}" for name, n in counts.items()]
            + [f"{name} is not set" for name in missing]
        )
        raise ShoalValueError(
            f"{names[0]}: {listed}; expected the same number of comma-separated values in each, "
            "one per robot"
        )
    return next(iter(counts.values()))


def _values(
    kind: type[HardwareConfig], count: int, names: set[str], env: Mapping[str, str]
) -> dict[str, list[Any]]:
    """Read the variables of fields: for each name one value per robot."""
    hints = get_type_hints(kind)
    found: dict[str, list[Any]] = {}
    for name in sorted(names):
        text = env.get(name.upper())
        if not text:
            continue
        parts = [text.strip()] if count == 1 else _split(text)
        if len(parts) != count:
            noun = "value" if len(parts) == 1 else "values"
            raise ShoalValueError(
                f"{name}: {name.upper()}={text!r} has {len(parts)} {noun} for {count} robots; "
                "expected exactly one comma-separated value for each"
            )
        found[name] = [_parse(name, part, hints[name]) for part in parts]
    return found


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


def _parse(name: str, text: str, hint: Any) -> Any:
    kind = _plain_type(hint)
    try:
        if kind is bool:
            return _to_bool(text)
        if kind is int:
            return int(text)
        if kind is float:
            return float(text)
    except ValueError:
        raise ShoalValueError(
            f"{name}: {name.upper()}={text!r}: expected {_EXPECTED[kind]}"
        ) from None
    return [part for part in _split(text) if part] if kind is list else text


def _plain_type(hint: Any) -> type:
    """Return the class in a type hint: `list` for `list[str] | None`, `int` for `int`."""
    if get_origin(hint) in (Union, types.UnionType):
        hint = next(arg for arg in get_args(hint) if arg is not type(None))
    plain: type = get_origin(hint) or hint
    return plain


def _to_bool(text: str) -> bool:
    word = text.strip().lower()
    if word not in _TRUE | _FALSE:
        raise ValueError(text)
    return word in _TRUE
