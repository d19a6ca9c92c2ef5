"""Hashes of the bytes of versions, made while they are copied, in pieces that threads share."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import xxhash

__all__ = ["DIGEST_BYTES", "copy_hashed", "digests_of"]

DIGEST_BYTES = 16

_PIECE = 8 * 2**20
"""Number of bytes that one thread hashes at a time. The digest of a block is that of its pieces'."""

_STEP = 256 * 2**10
"""Number of bytes that are copied and then hashed while they are in the processor's cache."""

_PARALLEL = 32 * 2**20
"""Minimum number of bytes for several threads: for less, they cost more than they save."""

_MOST_THREADS = 4

Task = tuple[Any, Any]


def copy_hashed(parts: Sequence[tuple[memoryview, Any]]) -> list[bytes]:
    """Copy buffers and return the digest of each.

    Args:
        parts: Pairs of a writable view of bytes and a contiguous buffer of the same size.
    """
    return _run([(np.frombuffer(target, np.uint8), _bytes(source)) for target, source in parts])


def digests_of(buffers: Sequence[Any]) -> list[bytes]:
    """Return the digest of each of some contiguous buffers."""
    return _run([(None, _bytes(source)) for source in buffers])


def _bytes(buffer: Any) -> Any:
    view = memoryview(buffer)
    return np.frombuffer(view, np.uint8) if view.nbytes else np.empty(0, np.uint8)


def _run(tasks: list[Task]) -> list[bytes]:
    pieces = [
        (None if target is None else target[at : at + _PIECE], source[at : at + _PIECE])
        for target, source in tasks
        for at in range(0, max(1, source.nbytes), _PIECE)
    ]
    total = sum(source.nbytes for _, source in tasks)
    threads = 1 if total < _PARALLEL else min(_MOST_THREADS, len(os.sched_getaffinity(0)))
    if threads == 1:
        found = iter([_hashed(piece) for piece in pieces])
    else:
        with ThreadPoolExecutor(threads, "shoal-copy") as pool:
            found = iter(list(pool.map(_hashed, pieces)))
    digests = []
    for _, source in tasks:
        count = max(1, -(-source.nbytes // _PIECE))
        digests.append(xxhash.xxh3_128_digest(b"".join(next(found) for _ in range(count))))
    return digests


def _hashed(piece: Task) -> bytes:
    target, source = piece
    if target is None:
        return xxhash.xxh3_128_digest(source.data)
    found = xxhash.xxh3_128()
    for at in range(0, source.nbytes, _STEP):
        step = target[at : at + _STEP]
        step[:] = source[at : at + _STEP]
        found.update(step.data)
    return found.digest()
