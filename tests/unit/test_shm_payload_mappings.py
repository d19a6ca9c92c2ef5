"""Mappings of payload files: huge pages, offsets beyond 4 GiB, and forked children."""

import array
import mmap
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

from shoal.shm.shared_files import mapping, open_payload, payloads, pool


@pytest.mark.parametrize("size", [2**21 - 1, 2**21, 2**21 + 1, 3 * 2**21])
def test_large_mappings_start_where_huge_pages_do(place, size):
    """The unused part of the reserved addresses is unmapped."""
    path = Path(place) / "file"
    path.touch()
    with path.open("r+b") as file:
        file.truncate(size)
        before = Path("/proc/self/maps").read_text().count("\n")
        views = [mapping.map_private(file.fileno(), size) for _ in range(50)]
        for view in views:
            assert len(view) == size
            view[-1] = 1
            if size >= mapping.HUGE_PAGE:
                assert np.frombuffer(view, np.uint8).ctypes.data % mapping.HUGE_PAGE == 0
        assert Path("/proc/self/maps").read_text().count("\n") <= before + 60
        del view
        views.clear()
        assert Path("/proc/self/maps").read_text().count(str(path)) == 0
    assert path.stat().st_size == size
    path.unlink()


def test_huge_pages_keep_the_bytes(place):
    path = Path(place) / "file"
    data = np.random.default_rng(0).integers(0, 255, 2 * mapping.HUGE_PAGE, np.uint8)
    path.write_bytes(data.tobytes())
    with path.open("r+b") as file:
        view = mapping.map_shared(file.fileno(), data.nbytes)
        read = np.frombuffer(mapping.map_private(file.fileno(), data.nbytes), np.uint8)
    read[::4096] = 7  # a reader that uses it, and has pages of its own
    for start in range(0, data.nbytes, mapping.HUGE_PAGE):
        mapping.use_huge_page(view, start)
    np.testing.assert_array_equal(np.frombuffer(view, np.uint8), data)
    assert (read[::4096] == 7).all()
    np.testing.assert_array_equal(read[1::4096], data[1::4096])
    path.unlink()


def test_a_huge_page_that_took_long_is_the_only_one_for_a_while(place, monkeypatch):
    file = pool.PayloadFile(Path(place) / "file", 4 * mapping.HUGE_PAGE)
    made = []
    monkeypatch.setattr(pool, "use_huge_page", lambda *_: made.append(1) or time.sleep(0.2) or True)
    for _ in range(10):
        file.write([(0, b"bytes")])
    assert len(made) == 1
    file.remove()


@pytest.fixture
def sparse():
    """An open sparse file of more than 5 GiB."""
    with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="shoal-test-") as file:
        file.truncate(5 * 2**30 + 4096)
        yield file


def test_a_copy_beyond_four_gigabytes(sparse):
    start = 5 * 2**30 + 7
    memory = mapping.map_shared(sparse.fileno(), 5 * 2**30 + 4096)
    mapping.copy_into(memory, [(start, b"far")])
    assert os.pread(sparse.fileno(), 5, start - 1) == b"\0far\0"


def test_parts_beyond_four_gigabytes(sparse, place):
    sizes = [4, 5 * 2**30, 3]
    parts, size = payloads._laid_out(b"head", [])
    assert [offset for offset, _ in parts] == [0, 64]
    os.pwrite(sparse.fileno(), array.array("Q", [3, *sizes]).tobytes(), 0)
    last = 128 + 5 * 2**30
    os.pwrite(sparse.fileno(), b"end", last)
    link = Path(place) / "link"
    link.hardlink_to(sparse.name)
    head, (middle, end) = open_payload((str(link), last + 3, 0))
    assert (bytes(head), bytes(end)) == (bytes(4), b"end")
    assert len(middle) == 5 * 2**30
    middle[-1] = 7  # a private mapping: the file is unchanged
    assert os.pread(sparse.fileno(), 1, last - 1) == b"\0"
    assert size == 68


def test_the_shared_mapping_is_not_in_a_child(place):
    path = Path(place) / "file"
    path.write_bytes(bytes(mmap.PAGESIZE))
    with path.open("r+b") as file:
        view = mapping.map_shared(file.fileno(), mmap.PAGESIZE)
    flags = [
        line
        for line in Path("/proc/self/smaps").read_text().partition(str(path))[2].splitlines()
        if line.startswith("VmFlags")
    ]
    assert "dc" in flags[0].split()
    view[:3] = b"abc"
    assert path.read_bytes()[:3] == b"abc"
    path.unlink()
