"""Converts objects to a pickle with out-of-band buffers, and back; all transports use it.

It is pickle protocol 5: the memory of numpy arrays and torch tensors is not copied into the
pickle. Objects that pickle cannot handle go to cloudpickle. If the receiver's buffers are writable
and its own, so are the arrays and tensors that it rebuilds. This module imports neither numpy nor
torch nor Ray: a process that has not imported them has none of their objects to send.
"""

import functools
import importlib
import io
import math
import pickle
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any

from shoal.errors import DependencyError, ShoalValueError

__all__ = ["dumps", "is_quantized", "is_tensor", "loads", "nbytes_of", "tensor_facts"]

_SMALL = 4096
"""Writable buffers with fewer bytes than this are cheaper inside the pickle than beside it."""

_MOST_PARTS = 4096
"""Estimate the size of containers with at most this many parts; larger ones are encoded first."""

_PLAIN = (bytes, str, int, float, bool, type(None))
"""Types that are pickled directly, without the pickler classes below."""

_REFUSED = (pickle.PicklingError, AttributeError, TypeError, RecursionError)
"""Errors by which pickle reports that it cannot handle an object."""


class _NeedsCloudpickle(Exception):  # noqa: N818  (a signal within this module, not an error)
    """The object contains something that only cloudpickle can handle."""


def dumps(obj: Any) -> tuple[bytes, list[memoryview]]:
    """Pickle an object.

    The buffers are the memory of the object's own arrays and tensors, which must not change until
    the buffers have been copied. If the object contains Ray object references or actor handles,
    their objects and actors live as long as this process: it never learns when the receiver is
    done with them.

    Tensors on accelerators are copied to the CPU's memory and arrive on the receiver's current
    device of their type. They no longer depend on the sender and may arrive on any device.

    Args:
        obj: Any object that pickle or cloudpickle can handle.

    Returns:
        The pickle, and the buffers that it refers to, each as a one-dimensional view of bytes.

    Raises:
        ShoalValueError: The object cannot be pickled.
    """
    if type(obj) in _PLAIN:
        return pickle.dumps(obj, protocol=5), []
    try:
        return _pickled(_Pickler, obj)
    except (_NeedsCloudpickle, *_REFUSED) as error:
        # Start again with cloudpickle: the output of the failed attempt is incomplete.
        cloud = _cloudpickle()
        if cloud is None:
            raise _cannot_be_sent(obj, error) from error
    try:
        return _pickled(_by_value_pickler(cloud), obj)
    except _REFUSED as error:
        raise _cannot_be_sent(obj, error) from error


def loads(
    data: bytes | bytearray | memoryview | pickle.PickleBuffer, buffers: Iterable[Any]
) -> Any:
    """Rebuild an object.

    Args:
        data: The pickle.
        buffers: Its buffers in the same order: writable, and used by nothing else.

    Raises:
        Exception: Any error of the object's classes, or of pickle if the data is damaged.
    """
    return pickle.loads(data, buffers=buffers)


def tensor_facts(tensor: Any) -> tuple[tuple[int, ...], str, str]:
    """Return the shape, dtype and device type, which sent and receiving tensor must agree on."""
    return tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), tensor.device.type


def nbytes_of(obj: Any, depth: int = 4) -> int | None:
    """Return the approximate bytes of an object's message; None if only encoding it would tell."""
    kind = type(obj)
    if kind in (int, float, bool, type(None)):
        return 16
    if kind in (bytes, bytearray, str):
        return len(obj)
    try:
        nbytes = getattr(obj, "nbytes", None)
    except RuntimeError:  # of torch, for a sparse tensor
        nbytes = None
    if type(nbytes) is int and (kind.__module__ == "numpy" or is_tensor(obj)):
        return nbytes
    if depth == 0 or kind not in (list, tuple, dict) or len(obj) > _MOST_PARTS:
        return None
    total = 16 * len(obj)
    for part in obj.values() if kind is dict else obj:
        found = nbytes_of(part, depth - 1)
        if found is None:
            return None
        total += found
    return total


def is_tensor(obj: Any) -> bool:
    """Whether an object is a torch tensor; torch is not loaded to find out."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(obj, getattr(torch, "Tensor", ()))


def is_quantized(dtype: Any) -> bool:
    """Whether a torch dtype is quantized: torch crashes on raw memory of it without its scale."""
    return str(dtype).startswith("torch.q")


def _cannot_be_sent(obj: Any, error: Exception) -> ShoalValueError:
    why = str(error) or "it needs cloudpickle, which is not installed"
    return ShoalValueError(f"an object of type {type(obj).__qualname__} cannot be sent: {why}")


def _pickled(pickler: Any, obj: Any) -> tuple[bytes, list[memoryview]]:
    beside: list[memoryview] = []

    def stays_inside(buffer: pickle.PickleBuffer) -> bool:
        view = buffer.raw()
        # A read-only buffer inside the pickle would arrive as immutable bytes.
        if view.nbytes < _SMALL and not view.readonly:
            return True
        beside.append(view)
        return False

    out = io.BytesIO()
    made = pickler(out, protocol=5, buffer_callback=stays_inside)
    made.storages = {}
    made.dump(obj)
    return out.getvalue(), beside


class _Pickler(pickle.Pickler):
    storages: "_Storages"

    def reducer_override(self, obj: Any) -> Any:
        reduced = _reduce_buffers(obj, self.storages)
        if reduced is not None:
            return reduced
        # Pickle would send a class or a function of the running script as a name in `__main__`,
        # which is a different module in the receiver.
        if isinstance(obj, (type, types.FunctionType)) and _travels_by_value(obj.__module__):
            raise _NeedsCloudpickle
        if _is_of_ray(obj):
            raise _NeedsCloudpickle
        return NotImplemented


@functools.cache
def _by_value_pickler(cloud: types.ModuleType) -> type:
    base: Any = cloud.Pickler

    class ByValuePickler(base):  # type: ignore[misc]  # the base class is only known at run time
        storages: "_Storages"

        def reducer_override(self, obj: Any) -> Any:
            reduced = _reduce_buffers(obj, self.storages)
            if reduced is None:
                reduced = super().reducer_override(obj)
                if isinstance(obj, type) and "__slots__" in vars(obj):
                    _keep_slots(reduced, vars(obj)["__slots__"])
            return reduced

    return ByValuePickler


def _keep_slots(reduced: Any, slots: Any) -> None:
    """Give a class that travels by value its slots again.

    cloudpickle makes a class without slots of it, whose instances the original class cannot load.
    """
    arguments = reduced[1] if isinstance(reduced, tuple) and len(reduced) > 1 else ()
    for part in arguments if isinstance(arguments, tuple) else ():
        if type(part) is dict:  # what the class is made with
            part["__slots__"] = slots


def _cloudpickle() -> types.ModuleType | None:
    """Return the cloudpickle to use, or None; Ray's, if Ray is imported, knows Ray's objects."""
    names = ("ray.cloudpickle", "cloudpickle")
    for name in names if "ray" in sys.modules else reversed(names):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    return None


def _travels_by_value(module: str | None) -> bool:
    if module is None or module == "__main__":
        return True
    for name in ("ray.cloudpickle", "cloudpickle"):
        cloud = sys.modules.get(name)
        registered = () if cloud is None else cloud.list_registry_pickle_by_value()
        if any(module == known or module.startswith(f"{known}.") for known in registered):
            return True
    return False


def _is_of_ray(obj: Any) -> bool:
    """Whether it is a Ray object reference or actor handle.

    Only Ray's cloudpickle sends these with their owner, which keeps them alive and usable.
    """
    ray = sys.modules.get("ray")
    actor = sys.modules.get("ray.actor")
    if ray is None or actor is None or not hasattr(ray, "ObjectRef"):
        return False
    return isinstance(obj, (ray.ObjectRef, actor.ActorHandle))


def _reduce_buffers(obj: Any, storages: "_Storages") -> Any:
    """Return the reduction of a tensor or a read-only array, or None for anything else."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and type(obj) is getattr(numpy, "ndarray", None):
        if obj.flags.writeable or obj.dtype.hasobject:
            return None
        # Pickle would make the receiver's copy read-only, which protects nothing.
        return obj.copy().__reduce_ex__(5)
    return _reduce_tensor(obj, storages)


class _Sent:
    """The part of a storage that a pickle holds so far.

    Attributes:
        tensor: A tensor of that part, which the pickle can refer to.
        start: Offset of the part within the storage, in bytes.
        end: Offset of its end.
        total: Bytes of the storage's tensors that the pickle holds, overlaps counted again.
    """

    __slots__ = ("end", "start", "tensor", "total")

    def __init__(self, tensor: Any, start: int, end: int) -> None:
        self.tensor, self.start, self.end, self.total = tensor, start, end, end - start


_Storages = dict[tuple[str, int], _Sent]
"""By device and address: what a pickle holds of each storage."""


def _reduce_tensor(obj: Any, storages: _Storages) -> Any:
    """Return a dense tensor's reduction, or None for anything else.

    The values are copied only if they are not already contiguous in the CPU's memory. Of a view,
    only its own values are sent; views that overlap are sent once and arrive as views.
    """
    torch = sys.modules.get("torch")
    tensor_type = getattr(torch, "Tensor", None)
    if torch is None or tensor_type is None:
        return None
    kind = type(obj)
    if kind is not tensor_type and not (
        issubclass(kind, tensor_type) and _is_simple_subclass(kind, tensor_type)
    ):
        return None
    if obj.layout is torch._mkldnn:  # noqa: SLF001  (it has no other name)
        raise ShoalValueError(
            "a tensor of the layout mkldnn cannot be sent: send tensor.to_dense()"
        )
    # torch's own pickling sends the parts of sparse and nested tensors, which come here again.
    if obj.layout is not torch.strided or obj.is_quantized or obj.is_nested:
        return None
    if obj.device.type == "meta":
        return None
    with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001  (torch's own pickling uses it)
        rebuild, arguments = _reduce_values(torch, obj, storages)
    if kind is tensor_type and not obj.__dict__:
        return rebuild, arguments
    # A subclass is itself again on arrival, and has the attributes of the Python object.
    return _rebuild_object, (kind, rebuild, *arguments), obj.__dict__, None, None, _set_attributes


def _reduce_values(torch: Any, obj: Any, storages: _Storages) -> tuple[Any, tuple[Any, ...]]:
    shape, dtype, device = tensor_facts(obj)
    if device == "cpu":
        _check_storage(obj)
    # Only a leaf can require gradients in another process; the graph of a result stays here.
    wants_grad = obj.requires_grad and obj.is_leaf
    offset = _offset_in_sent(torch, obj, storages)
    if offset is not None:
        sent, start = offset
        return _rebuild_view, (sent, start, shape, dtype, wants_grad)
    values = obj.detach().resolve_conj().resolve_neg().to("cpu").contiguous()
    # A tensor of one value is contiguous with any stride, but `view` to bytes wants stride 1.
    raw = values.as_strided((values.numel(),), (1,)).view(torch.uint8).numpy()
    return _rebuild_tensor, (pickle.PickleBuffer(raw), shape, dtype, device, wants_grad)


def _offset_in_sent(torch: Any, obj: Any, storages: _Storages) -> tuple[Any, int] | None:
    """Return a tensor that the pickle holds, or is to hold, and the offset of this one in it.

    None for a tensor to be sent by itself. If the views of a storage have more bytes than the
    storage, it is sent as a whole.
    """
    if not obj.numel() or not obj.is_contiguous() or obj.is_conj() or obj.is_neg():
        return None
    storage = obj.untyped_storage()
    size, key = obj.element_size(), (str(obj.device), storage.data_ptr())
    start = obj.storage_offset() * size
    end = start + obj.numel() * size
    sent = storages.get(key)
    if sent is None:
        storages[key] = _Sent(obj, start, end)
        return None
    if sent.tensor is obj:  # a whole storage
        return None
    if not (sent.start <= start and end <= sent.end) or (start - sent.start) % size:
        sent.total += end - start
        if sent.total <= storage.nbytes():
            return None
        whole = torch.empty(0, dtype=torch.uint8, device=obj.device).set_(storage)
        sent = storages[key] = _Sent(whole, 0, storage.nbytes())
    return sent.tensor, start - sent.start


_OWN_WAYS = frozenset(
    {
        "__getstate__",
        "__reduce__",
        "__reduce_ex__",
        "__setstate__",
        "__slots__",
        "__torch_dispatch__",
        "__torch_function__",
    }
)
"""A subclass of `torch.Tensor` that defines one of these names is left to its own way of pickling."""


def _is_simple_subclass(kind: type, tensor_type: type) -> bool:
    mine = kind.__mro__[: kind.__mro__.index(tensor_type)]
    return not any(_OWN_WAYS & vars(base).keys() for base in mine)


def _check_storage(tensor: Any) -> None:
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = tensor.storage_offset() + sum((size - 1) * stride for size, stride in steps)
    needed = tensor.element_size() * (last + 1) if tensor.numel() else 0
    found = tensor.untyped_storage().nbytes()
    if found < needed:
        raise ShoalValueError(
            f"a tensor that ends {needed} bytes into its storage has one of {found}: it was made "
            "smaller than the tensor"
        )


def _rebuild_tensor(
    raw: Any, shape: tuple[int, ...], dtype: str, device: str, wants_grad: bool
) -> Any:
    try:
        import torch
    except ImportError as error:
        raise DependencyError(
            "the message holds a torch tensor and torch is not installed here: install shoal[torch]"
        ) from error
    kind = getattr(torch, dtype)
    if is_quantized(kind):
        raise ValueError(f"a tensor of {kind} is more than its values")
    if len(raw) == 0:
        tensor = torch.empty(shape, dtype=kind)
    else:
        tensor = torch.frombuffer(raw, dtype=kind).reshape(shape)
    if device != "cpu":
        tensor = tensor.to(device)
    return tensor.requires_grad_() if wants_grad else tensor


def _rebuild_view(
    sent: Any, start: int, shape: tuple[int, ...], dtype: str, wants_grad: bool
) -> Any:
    """Return a view of a tensor that arrived in the same message, `start` bytes into it."""
    torch = sys.modules["torch"]
    kind = getattr(torch, dtype)
    raw = sent.detach().as_subclass(torch.Tensor).reshape(-1).view(torch.uint8)
    end = start + math.prod(shape) * kind.itemsize
    tensor = raw[start:end].view(kind).reshape(shape)
    return tensor.requires_grad_() if wants_grad else tensor


def _rebuild_object(kind: type, rebuild: Callable[..., Any], *arguments: Any) -> Any:
    tensor = rebuild(*arguments)
    return tensor if type(tensor) is kind else tensor.as_subclass(kind)


def _set_attributes(tensor: Any, attributes: dict[str, Any]) -> None:
    tensor.__dict__.update(attributes)
