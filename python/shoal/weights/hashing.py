"""Hashes of the bytes of versions, made while they are copied, in pieces that threads share."""

import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import xxhash

from shoal.reused_threads import run_in_thread

__all__ = ["DIGEST_BYTES", "PIECE", "copy_hashed", "copy_pieces", "digest_of_pieces", "digests_of"]

DIGEST_BYTES = 16

PIECE = 2 * 2**20
"""Number of bytes that one thread hashes at a time. The digest of a block is that of its pieces'."""

_STEP = 256 * 2**10
"""Number of bytes that are copied and then hashed while they are in the processor's cache."""

_PARALLEL = 8 * 2**20
"""Minimum number of bytes for several threads: for less, they cost more than they save."""

_MOST_THREADS = 4

Task = tuple[Any, Any]


def copy_hashed(parts: Sequence[tuple[memoryview, Any]]) -> list[bytes]:
    """Copy buffers and return the digest of each.

    Args:
        parts: Pairs of a writable view of bytes and a contiguous buffer of the same size.
    """
    return [digest_of_pieces(pieces) for pieces in copy_pieces(parts)]


def copy_pieces(parts: Sequence[tuple[memoryview, Any]]) -> list[list[bytes]]:
    """Copy buffers and return the digests of the pieces of each, for `digest_of_pieces`.

    Args:
        parts: As of `copy_hashed`.
    """
    return _run([(np.frombuffer(target, np.uint8), _bytes(source)) for target, source in parts])


def digests_of(buffers: Sequence[Any]) -> list[bytes]:
    """Return the digest of each of some contiguous buffers."""
    return [digest_of_pieces(pieces) for pieces in _run([(None, _bytes(one)) for one in buffers])]


def digest_of_pieces(digests: Sequence[bytes]) -> bytes:
    """Return the digest of a block from those of its pieces, which have `PIECE` bytes but for the last."""
    return xxhash.xxh3_128_digest(b"".join(digests))


def _bytes(buffer: Any) -> Any:
    view = memoryview(buffer)
    return np.frombuffer(view, np.uint8) if view.nbytes else np.empty(0, np.uint8)


def _run(tasks: list[Task]) -> list[list[bytes]]:
    """Return the digests of the pieces of each task."""
    found: list[list[bytes]] = [[b""] * max(1, -(-source.nbytes // PIECE)) for _, source in tasks]
    places = [
        (task, number) for task, of_task in enumerate(found) for number in range(len(of_task))
    ]
    left = iter(places)  # shared by all threads: each takes the next piece

    def work() -> None:
        for task, number in left:
            target, source = tasks[task]
            here = slice(number * PIECE, (number + 1) * PIECE)
            found[task][number] = _hashed((None if target is None else target[here], source[here]))

    total = sum(source.nbytes for _, source in tasks)
    threads = 1 if total < _PARALLEL else min(_MOST_THREADS, len(os.sched_getaffinity(0)))
    if threads == 1:
        work()
        return found
    turns = [threading.Lock() for _ in range(threads - 1)]
    errors: list[BaseException] = []
    try:
        for turn in turns:
            run_in_thread(partial(_in_turn, turn, work, errors))
        work()
    finally:
        list(left)  # after an error: then no thread finds a further piece
        for turn in turns:  # waits for the threads that have begun
            with turn:
                pass
    if errors:
        raise errors[0]
    return found


def _in_turn(turn: threading.Lock, work: Callable[[], None], errors: list[BaseException]) -> None:
    with turn:
        try:
            work()
        except BaseException as error:  # noqa: BLE001  (the thread that waits for this raises it)
            errors.append(error)


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
