"""Loads a snapshot into a module or a dict of tensors, and reports what became of each name."""

import sys
from collections.abc import Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from shoal.errors import ShoalValueError
from shoal.weights.layout import flattened

if TYPE_CHECKING:
    import torch

__all__ = ["LoadReport", "differing", "load"]

_SHOWN = 5
"""Maximum number of names of one kind in an error."""


class Loadable(Protocol):
    """A snapshot: names with tensors, arrays and small values."""

    def __getitem__(self, name: str) -> Any: ...

    def __contains__(self, name: object) -> bool: ...

    def __iter__(self) -> Iterator[str]: ...

    def is_tensor(self, name: str) -> bool:
        """Whether a name is that of a tensor or an array."""


class LoadReport(NamedTuple):
    """What became of each name of a snapshot and of the target; a name is in one of the fields.

    Attributes:
        loaded: The target has the snapshot's values now, and had others before.
        unchanged: The target had the same values before.
        tied: The target's tensor is the memory of another name, which was loaded or unchanged.
        missing: The snapshot does not have this name of the target.
        unexpected: The target does not have this tensor of the snapshot.
        differing: After the load the target has other values than the snapshot: a hook of the
            module changed or dropped them.
    """

    loaded: tuple[str, ...]
    unchanged: tuple[str, ...]
    tied: tuple[str, ...]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    differing: tuple[str, ...]

    def __str__(self) -> str:
        return ", ".join(f"{len(names)} {field}" for field, names in self._asdict().items())


def load(snapshot: Loadable, target: Any, *, strict: bool) -> LoadReport:
    """Load a snapshot; see `Snapshot.load_into`."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(target, torch.nn.Module):
        return _load_module(snapshot, target, strict=strict)
    if not isinstance(target, Mapping):
        raise ShoalValueError(
            f"load_into: a target of type {type(target).__name__}: expected a module, or a dict of "
            "tensors and arrays"
        )
    parts = dict(flattened(target, "load_into"))
    _check(snapshot, parts, strict=strict)
    had = _had(snapshot, parts)
    torn = _torn(snapshot, had, strict=strict)
    written = {name: parts[name] for name, kind in had.items() if kind in {"loaded", "unchanged"}}
    fixed = [
        name
        for name, part in written.items()
        if isinstance(part, np.ndarray) and not part.flags.writeable
    ]
    if fixed:
        raise ShoalValueError(
            f"load_into: {snapshot!r}: nothing was loaded: the target's arrays {_shown(fixed)} cannot "
            "be written to"
        )
    for name, part in written.items():
        _copy(snapshot[name], part, target, name)
    return _report(snapshot, parts, had, torn)


def _torn(snapshot: Loadable, had: dict[str, str], *, strict: bool) -> list[str]:
    """Return the names that share memory in the target, but have different values in the snapshot.

    Raises:
        ShoalValueError: There are some, and `strict` does not allow that.
    """
    torn = [name for name, kind in had.items() if kind == "torn"]
    if torn and strict:
        raise ShoalValueError(
            f"load_into: {snapshot!r}: nothing was loaded: {_shown(torn)} share their memory with other "
            "names of the target, and the snapshot has other values for those"
        )
    return torn


def differing(snapshot: Loadable, target: Any) -> tuple[str, ...]:
    """Return the names whose values differ; see `Snapshot.diff`."""
    torch = sys.modules.get("torch")
    is_module = torch is not None and isinstance(target, torch.nn.Module)
    parts = target.state_dict() if is_module else dict(flattened(target, "diff"))
    found = [name for name in snapshot if name in parts and not _same(snapshot[name], parts[name])]
    missing, unexpected = _one_sided(snapshot, parts)
    return (*found, *missing, *unexpected)


def _load_module(snapshot: Loadable, module: "torch.nn.Module", *, strict: bool) -> LoadReport:
    parts = module.state_dict()
    hooked = [name for name, part in module.named_modules() if _has_hooks(part)]
    if not hooked:  # hooks may take names that `state_dict` does not have
        _check(snapshot, parts, strict=strict)
    had = _had(snapshot, parts)
    torn = _torn(snapshot, had, strict=strict)
    wanted = {
        name: snapshot[name] for name in snapshot if name in parts or snapshot.is_tensor(name)
    }
    try:
        module.load_state_dict(wanted, strict=strict)
    except RuntimeError as error:
        raise ShoalValueError(f"load_into: {snapshot!r}: {error}") from None
    now = module.state_dict() if hooked else {}
    wrong = torn + [
        name
        for name, part in now.items()
        if name in snapshot and name not in torn and not _same(snapshot[name], part)
    ]
    if wrong and strict:
        raise ShoalValueError(
            f"load_into: {snapshot!r}: the module has other values of {_shown(wrong)} after the "
            f"load: hooks of {_shown(hooked)} changed them; use strict=False to accept that"
        )
    return _report(snapshot, parts, had, wrong)


def _has_hooks(module: "torch.nn.Module") -> bool:
    names = ("_state_dict_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks")
    return any(getattr(module, name, None) for name in names)


def _check(snapshot: Loadable, parts: Mapping[str, Any], *, strict: bool) -> None:
    """Check names and shapes, before anything is written.

    Raises:
        ShoalValueError: A shape differs, or with `strict` a name is only on one side.
    """
    problems = []
    for name, part in parts.items():
        shape = getattr(part, "shape", None)
        if name not in snapshot:
            continue
        ours, theirs = _shown_shape(shape), "no tensor"
        if snapshot.is_tensor(name):
            theirs = _shown_shape(snapshot[name].shape)
        if ours != theirs:
            problems.append(f"{name!r} has {theirs}, and {ours} in the target")
    if strict:
        missing, unexpected = _one_sided(snapshot, parts)
        if missing:
            problems.append(f"missing in the snapshot: {_shown(missing)}")
        if unexpected:
            problems.append(f"missing in the target: {_shown(unexpected)}")
    if problems:
        raise ShoalValueError(f"load_into: {snapshot!r}: nothing was loaded: {'; '.join(problems)}")


def _shown_shape(shape: Any) -> str:
    return "no tensor" if shape is None else f"shape {tuple(shape)}"


def _one_sided(snapshot: Loadable, parts: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return the names that are missing in the snapshot, and its tensors that the target lacks."""
    missing = [name for name in parts if name not in snapshot]
    return missing, [name for name in snapshot if name not in parts and snapshot.is_tensor(name)]


def _had(snapshot: Loadable, parts: Mapping[str, Any]) -> dict[str, str]:
    """Return for each name of both sides: whether the target is tied, unchanged, or loaded."""
    found: dict[str, str] = {}
    first: dict[Any, str] = {}
    for name, part in parts.items():
        if name not in snapshot:
            continue
        place = _place(part)
        tied = None if place is None else first.setdefault(place, name)
        if tied in {None, name}:
            found[name] = "unchanged" if _same(snapshot[name], part) else "loaded"
        else:
            # If the snapshot has two values for one memory, only one of them can be loaded.
            found[name] = "tied" if _same(snapshot[name], snapshot[tied]) else "torn"
    return found


def _place(part: Any) -> Any:
    """Return the place of a tensor or an array in memory; None for another value, or no bytes."""
    if isinstance(part, np.ndarray):
        return (
            (part.__array_interface__["data"][0], part.shape, part.strides) if part.size else None
        )
    if hasattr(part, "data_ptr") and part.numel():
        return str(part.device), part.data_ptr(), tuple(part.shape), part.stride()
    return None


def _same(ours: Any, theirs: Any) -> bool:
    """Whether a tensor or value of the target equals one of the snapshot, cast to its type."""
    if hasattr(theirs, "data_ptr"):
        return _is_same_tensor(ours, theirs)
    if isinstance(theirs, np.ndarray):
        return _is_same_array(ours, theirs)
    if type(ours) is not type(theirs):
        return False
    if isinstance(ours, (list, tuple)):  # of arrays perhaps, which `==` does not compare
        return len(ours) == len(theirs) and all(map(_same, ours, theirs))
    if isinstance(ours, Mapping):
        return ours.keys() == theirs.keys() and all(_same(ours[key], theirs[key]) for key in ours)
    return bool(ours == theirs)


def _is_same_tensor(ours: Any, theirs: "torch.Tensor") -> bool:
    import torch

    if isinstance(ours, np.ndarray):
        ours = torch.as_tensor(ours.copy())
    if not hasattr(ours, "data_ptr") or ours.shape != theirs.shape:
        return False
    cast = ours.to(theirs.device, theirs.dtype)
    return torch.equal(_bits(cast), _bits(theirs.detach()))


def _is_same_array(ours: Any, theirs: Any) -> bool:
    ours = _as_array(ours)
    if not isinstance(ours, np.ndarray) or ours.shape != theirs.shape:
        return False
    if theirs.dtype.hasobject:
        return bool(np.array_equal(ours, theirs))
    # As bytes, so that NaN equals itself.
    return ours.astype(theirs.dtype).tobytes() == np.ascontiguousarray(theirs).tobytes()


def _as_array(value: Any) -> Any:
    """Return a tensor, of any device, as an array; any other value as it is."""
    if not hasattr(value, "data_ptr"):
        return value
    tensor = value.cpu()
    try:
        return tensor.numpy()
    except TypeError:  # numpy lacks bfloat16, float8 and complex32, which are exact in wider types
        return (tensor.cfloat() if tensor.is_complex() else tensor.float()).numpy()


def _bits(tensor: "torch.Tensor") -> "torch.Tensor":
    """Return the bytes of a tensor: NaN equals itself then, and every dtype can be compared."""
    import torch

    whole = tensor.resolve_conj().resolve_neg().contiguous()
    # A tensor of one element is contiguous with any stride.
    return whole.as_strided((whole.numel(),), (1,)).view(torch.uint8)


def _copy(source: Any, part: Any, target: Any, name: str) -> None:
    if hasattr(part, "copy_"):
        import torch

        with torch.no_grad():
            part.copy_(torch.as_tensor(source.copy()) if isinstance(source, np.ndarray) else source)
    elif isinstance(part, np.ndarray):
        values = _as_array(source)
        are_numbers = {part.dtype.kind, np.asarray(values).dtype.kind} <= set("biufc")
        # Numbers are cast as torch does.
        np.copyto(part, values, casting="unsafe" if are_numbers else "same_kind")
    else:
        *above, last = name.split(".")
        holder = target
        for key in above:
            holder = holder.get(key) if isinstance(holder, Mapping) else None
        if isinstance(target, MutableMapping) and name in target:
            target[name] = source
        elif isinstance(holder, MutableMapping):
            holder[last] = source


def _report(
    snapshot: Loadable, parts: Mapping[str, Any], had: dict[str, str], wrong: Any
) -> LoadReport:
    missing, unexpected = _one_sided(snapshot, parts)
    apart = set(wrong)

    def named(kind: str) -> tuple[str, ...]:
        return tuple(name for name, found in had.items() if found == kind and name not in apart)

    return LoadReport(
        named("loaded"),
        named("unchanged"),
        named("tied"),
        tuple(missing),
        tuple(unexpected),
        tuple(wrong),
    )


def _shown(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(map(repr, names[:_SHOWN])) + more
