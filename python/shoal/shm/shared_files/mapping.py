"""Maps files into memory without keeping a descriptor, and copies buffers into the mappings.

Before Python 3.13, `mmap.mmap` keeps a descriptor for each mapping, and a process that holds
thousands of received arrays would run out of descriptors. So this module uses the system call.
"""

import ctypes
import errno
import functools
import importlib
import mmap
import os
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from shoal.process import Origin

__all__ = ["HUGE_PAGE", "copy_into", "map_private", "map_shared", "use_huge_page"]

_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)
_FIXED = 0x10  # MAP_FIXED
_COLLAPSE = 25  # MADV_COLLAPSE, since Linux 6.1
_FAILED = ctypes.c_void_p(-1).value

HUGE_PAGE = 2**21
"""Size of a huge page in bytes; a mapping of at least this size starts at a multiple of it."""

_PARALLEL = 32 * 2**20
"""Minimum number of bytes to copy with several threads: for less, they cost more than they save."""

_MOST_THREADS = 4
"""Maximum number of threads of one copy: a few saturate the memory of a node."""


def map_private(descriptor: int, size: int, *, keep: bool = False) -> memoryview:
    """Map a file copy-on-write: other processes do not see writes to the view.

    Args:
        descriptor: An open file of at least `size` bytes.
        size: Number of bytes to map, from the start of the file; at least 1.
        keep: Keep the descriptor open as long as the mapping exists, which then owns it.

    Returns:
        A writable view of bytes. The mapping lives as long as any view of it or array on it.

    Raises:
        OSError: The file cannot be mapped.
    """
    # No reservation: a kernel with strict overcommit would count the payload for each reader.
    return _mapped(descriptor, size, mmap.MAP_PRIVATE | _NO_RESERVE, descriptor if keep else None)


def map_shared(descriptor: int, size: int) -> memoryview:
    """Map a file: writes to the view change the file. A forked child does not have the mapping.

    Raises:
        OSError: The file cannot be mapped.
    """
    view = _mapped(descriptor, size, mmap.MAP_SHARED, None)
    address = ctypes.addressof(view.obj)  # type: ignore[arg-type]  # the array of `_mapped`
    _check(_libc().madvise(address, size, mmap.MADV_DONTFORK), "madvise")
    return view


def use_huge_page(view: memoryview, start: int) -> bool:
    """Ask the kernel to back a piece of a shared mapping with one huge page.

    A reader then maps 512 pages with one fault. The mount options of `/dev/shm` rarely ask for huge
    pages; this call does not depend on them.

    Args:
        view: A view that `map_shared` returned.
        start: The offset of the piece in bytes: a multiple of `HUGE_PAGE`, with at least as many
            bytes after it.

    Returns:
        Whether it is worth trying other pieces: False on an older kernel, or if memory is
        fragmented.
    """
    libc, address = _libc(), ctypes.addressof(view.obj) + start  # type: ignore[arg-type]  # as above
    if libc.madvise(address, HUGE_PAGE, _COLLAPSE) == 0:
        return True
    # EAGAIN: the page was in use at that moment, so other pieces may succeed.
    return ctypes.get_errno() == errno.EAGAIN


def copy_into(target: memoryview, parts: Sequence[tuple[int, Any]]) -> None:
    """Copy buffers to their offsets in a view, without holding the interpreter lock.

    Args:
        target: A writable view of bytes.
        parts: Pairs of an offset in bytes and a contiguous buffer.
    """
    # Imported here, so that only processes that copy payloads load numpy.
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
    # The end of the block waits for the other threads, also when a signal ends the copy of this one: the
    # caller may use the target for something else then.
    with ThreadPoolExecutor(threads - 1, "shoal-copy") as pool:
        others = [pool.submit(_copy, share) for share in shares[1:]]
        _copy(shares[0])
        for other in others:
            other.result()


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
    # A forked child does not have a shared mapping, and may have another one at its address.
    only_in = Origin() if flags & mmap.MAP_SHARED else None
    finalizer = weakref.finalize(memory, _unmap, libc.munmap, address, size, held, only_in)
    # When the interpreter exits, other threads may still read the views.
    finalizer.atexit = False
    return memoryview(memory).cast("B")


def _reserved(size: int) -> int:
    """Reserve addresses for a mapping; one of at least a huge page starts at a multiple of it."""
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


def _unmap(munmap: Any, address: int, size: int, held: int | None, only_in: Origin | None) -> None:
    if only_in is None or only_in.is_here:
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
