"""Mappings of files without a descriptor, and the copy into them.

`mmap.mmap` keeps a descriptor for each mapping before Python 3.13. A process that holds thousands
of received arrays would run out of them, so that these mappings are made with the system call.
"""

import ctypes
import errno
import functools
import importlib
import mmap
import os
import threading
import weakref
from collections.abc import Sequence
from typing import Any

__all__ = ["HUGE_PAGE", "copy_into", "map_private", "map_shared", "use_huge_page"]

_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)
_FIXED = 0x10  # MAP_FIXED
_COLLAPSE = 25  # MADV_COLLAPSE, since Linux 6.1
_FAILED = ctypes.c_void_p(-1).value

HUGE_PAGE = 2**21
"""Bytes of a huge page; a mapping of at least this size starts at a multiple of it."""

_PARALLEL = 32 * 2**20
"""Copy with several threads from this many bytes on; below it a thread costs more than it saves."""

_MOST_THREADS = 4
"""Threads of one copy: a few saturate the memory of a node."""


def map_private(descriptor: int, size: int, *, keep: bool = False) -> memoryview:
    """Map a file copy-on-write: what is written to the view stays in this process.

    Args:
        descriptor: An open file of at least `size` bytes.
        size: Bytes from the start of the file; at least 1.
        keep: Hold the descriptor as long as the mapping. It belongs to the mapping from then on.

    Returns:
        A writable view of bytes. The mapping lives as long as any view or array that is made of it.

    Raises:
        OSError: The file cannot be mapped.
    """
    # Without a reservation: a strict kernel would count the whole payload once for each reader.
    return _mapped(descriptor, size, mmap.MAP_PRIVATE | _NO_RESERVE, descriptor if keep else None)


def map_shared(descriptor: int, size: int) -> memoryview:
    """Map a file: what is written to the view is in the file. A forked child does not have it.

    Raises:
        OSError: The file cannot be mapped.
    """
    view = _mapped(descriptor, size, mmap.MAP_SHARED, None)
    address = ctypes.addressof(view.obj)  # type: ignore[arg-type]  # the array of `_mapped`
    _check(_libc().madvise(address, size, mmap.MADV_DONTFORK), "madvise")
    return view


def use_huge_page(view: memoryview, start: int) -> bool:
    """Put one huge page of a file behind a shared mapping, where the kernel can.

    A reader then maps 512 pages by one fault. The mount options of `/dev/shm` rarely ask for huge
    pages; this call does not need them.

    Args:
        view: What `map_shared` returned.
        start: An offset in bytes, a multiple of `HUGE_PAGE` with as many bytes behind it.

    Returns:
        Whether it is worth trying others: False on an older kernel, and where memory is fragmented.
    """
    libc, address = _libc(), ctypes.addressof(view.obj) + start  # type: ignore[arg-type]  # as above
    if libc.madvise(address, HUGE_PAGE, _COLLAPSE) == 0:
        return True
    # The page was in use at that moment.
    return ctypes.get_errno() == errno.EAGAIN


def copy_into(target: memoryview, parts: Sequence[tuple[int, Any]]) -> None:
    """Copy buffers to their offsets in a view, without the interpreter's lock.

    Args:
        target: A writable view of bytes.
        parts: Pairs of an offset in bytes and a contiguous buffer.
    """
    # A process that sends nothing this large does without it.
    np = importlib.import_module("numpy")

    whole = np.frombuffer(target, dtype=np.uint8)
    pairs = []
    for offset, buffer in parts:
        source = memoryview(buffer)
        if source.nbytes:
            values = np.frombuffer(source, dtype=np.uint8)
            pairs.append((whole[offset : offset + source.nbytes], values))
    total = sum(values.nbytes for _, values in pairs)
    threads = 1 if total < _PARALLEL else min(_MOST_THREADS, len(os.sched_getaffinity(0)))
    if threads == 1:
        _copy(pairs)
        return
    shares: list[list[Any]] = [[] for _ in range(threads)]
    for to, values in pairs:
        step = -(-values.nbytes // threads)
        for share, start in zip(shares, range(0, values.nbytes, step), strict=False):
            share.append((to[start : start + step], values[start : start + step]))
    others = [
        threading.Thread(target=_copy, args=(share,), name="shoal-copy") for share in shares[1:]
    ]
    for thread in others:
        thread.start()
    _copy(shares[0])
    for thread in others:
        thread.join()


def _copy(pairs: Sequence[tuple[Any, Any]]) -> None:
    for to, values in pairs:
        to[:] = values


def _mapped(descriptor: int, size: int, flags: int, held: int | None) -> memoryview:
    libc = _libc()
    address = _reserved(size)
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    if libc.mmap(address, size, protection, flags | _FIXED, descriptor, 0) == _FAILED:
        number = ctypes.get_errno()
        libc.munmap(address, size)
        raise OSError(number, f"mmap: {os.strerror(number)}")
    memory = (ctypes.c_ubyte * size).from_address(address)
    # A shared mapping is not in a forked child, which may have another one at its address.
    only_in = os.getpid() if flags & mmap.MAP_SHARED else None
    finalizer = weakref.finalize(memory, _unmap, libc.munmap, address, size, held, only_in)
    # At the end of the interpreter other threads may still read the views.
    finalizer.atexit = False
    return memoryview(memory).cast("B")


def _reserved(size: int) -> int:
    """Reserve addresses for a mapping, from a multiple of a huge page on where it is that large."""
    libc = _libc()
    length = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    more = HUGE_PAGE if size >= HUGE_PAGE else 0
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
    found = libc.mmap(None, length + more, 0, flags, -1, 0)
    if found == _FAILED:
        _check(-1, "mmap")
    if not more:
        return int(found)
    start = -(-found // more) * more
    if start > found:
        libc.munmap(found, start - found)
    libc.munmap(start + length, found + more - start)
    return int(start)


def _unmap(munmap: Any, address: int, size: int, held: int | None, only_in: int | None) -> None:
    if only_in in (None, os.getpid()):
        munmap(address, size)
    if held is not None:
        os.close(held)


def _check(result: int, call: str) -> None:
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")


@functools.cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_long,
    )
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return libc
