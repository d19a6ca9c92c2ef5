"""Builds the message codec as a separate module, and helpers that its tests share."""

import functools
import importlib.machinery
import importlib.util
import json
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np

PLAIN, PIECES = 1, 2
"""The kinds of messages."""

PICKLE = 17
"""The tag of pickled values."""

LENT = 64 * 1024
"""Minimum bytes of an array or tensor that is decoded as a view of its message."""

ROOT = Path(__file__).parents[2]
BUILD = ["cargo", "build", "--locked", "--quiet", "--message-format", "json"]


@functools.cache
def build():
    """Build the codec, with debug assertions, and import it."""
    ran = subprocess.run(
        [*BUILD, "--package", "shoal-ext", "--example", "codec"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=590,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    made = [json.loads(line) for line in ran.stdout.splitlines()]
    (path,) = next(m["filenames"] for m in made if m.get("target", {}).get("kind") == ["example"])
    loader = importlib.machinery.ExtensionFileLoader("codec_for_tests", path)
    spec = importlib.util.spec_from_file_location("codec_for_tests", path, loader=loader)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def round_trip(codec, value):
    kind, message = codec.encode(value)
    there = codec.decode_block(kind, message)
    if kind == PLAIN and message[0] != PICKLE:
        assert same(codec.decode_inline(kind, bytes(message)), there)
    return there


def is_pickled(codec, value):
    kind, message = codec.encode(value)
    return message[0 if kind == PLAIN else 8] == PICKLE


def same(left, right):
    """Whether two values are equal, type for type and bit for bit."""
    if type(left) is not type(right):
        return False
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return same(list(left.items()), list(right.items()))
    return _exact(left) == _exact(right)


def _exact(value):
    if isinstance(value, float):
        return struct.pack("d", value)
    if isinstance(value, complex):
        return struct.pack("dd", value.real, value.imag)
    if isinstance(value, np.ndarray):
        return value.dtype.char, value.shape, value.tobytes()
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        raw = value.contiguous().reshape(-1).view(torch.uint8).numpy()
        return value.dtype, value.shape, raw.tobytes()
    return value
