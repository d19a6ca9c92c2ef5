"""Payload files in shared memory: several readers, reuse of files, leftovers and full memory."""

import array
import errno
import json
import os
import shutil
import subprocess
import sys
import time
import weakref
from pathlib import Path

import numpy as np
import pytest

from shoal.errors import (
    ChannelClosed,
    ChannelCorruptError,
    ChannelMemoryError,
    ChannelNotFoundError,
)
from shoal.pickling import dumps, loads
from shoal.process import own_process
from shoal.shm.shared_files import (
    PayloadWriter,
    mapping,
    open_payload,
    payloads,
    pool,
    sweep,
    withdraw,
)
from shoal.shm.shared_files.names import FileName, LinkName, key_of, parse
from support.processes import DEADLINE_S, until

ME = own_process()


@pytest.fixture
def writer(place):
    writer = PayloadWriter(place)
    yield writer
    writer.forget(ME)
    writer.close()


def send(writer, value, readers=1):
    return writer.write(*dumps(value), [ME] * readers)


def receive(ref):
    return loads(*open_payload(ref))


def file_of(ref):
    """The path of the file that a reference leads to."""
    path = Path(ref[0])
    return str(path.with_name(str(parse(path.name).file)))


def bases(folder):
    return sorted(
        str(path) for path in Path(folder).iterdir() if isinstance(parse(path.name), FileName)
    )


def descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def dead(run_python):
    """The identity of a process that has ended."""
    program = "import json\nfrom shoal.process import own_process\nprint(json.dumps(own_process()))"
    return type(ME)(*json.loads(run_python("-c", program)))


def test_each_reader_has_a_writable_object_of_its_own(writer):
    refs = send(writer, {"weights": np.arange(100_000.0), "step": 3, "one": np.ones(1)}, 2)
    first, second = map(receive, refs)
    for object_ in (first, second):
        np.testing.assert_array_equal(object_["weights"], np.arange(100_000.0))
        assert object_["step"] == 3
    first["weights"][0], second["weights"][0] = 1.5, 2.5
    assert (first["weights"][0], second["weights"][0]) == (1.5, 2.5)
    third = receive(send(writer, {"weights": np.zeros(100_000)})[0])
    assert not third["weights"].any()
    assert (first["weights"][0], second["weights"][0]) == (1.5, 2.5)
    assert first["weights"][-1] == second["weights"][-1] == 99_999.0


def test_tensors_arrive_writable_and_aligned(writer):
    torch = pytest.importorskip("torch")
    value = {
        "half": torch.arange(5000, dtype=torch.bfloat16),
        "bytes": torch.ones(4097, dtype=torch.uint8),
        "wide": torch.full((3, 700), 2.0, dtype=torch.float64),
        "none": torch.empty(0),
    }
    arrived = receive(send(writer, value)[0])
    for name, tensor in value.items():
        assert torch.equal(arrived[name], tensor)
        assert arrived[name].data_ptr() % 64 == 0
        arrived[name] += 1
    assert torch.equal(arrived["wide"], value["wide"] + 1)


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 4095, 4096, 100_000, 2**21 + 1])
def test_sizes(writer, size):
    data = os.urandom(size)
    [ref] = writer.write(b"head", [data, b"", data], [ME])
    head, (first, empty, last) = open_payload(ref)
    assert (bytes(head), bytes(first), bytes(empty), bytes(last)) == (b"head", data, b"", data)
    assert not first.readonly


def test_a_large_copy_uses_all_bytes_of_each_part(writer):
    """From 32 MiB on, several threads each copy a share of each part."""
    parts = [np.random.default_rng(i).integers(0, 255, n, np.uint8) for i, n in enumerate(
        (20 * 2**20 + 5, 1, 3, 15 * 2**20 + 1)
    )]  # fmt: skip
    [ref] = writer.write(b"", parts, [ME])
    _, views = open_payload(ref)
    for part, view in zip(parts, views, strict=True):
        np.testing.assert_array_equal(np.frombuffer(view, np.uint8), part)


def test_a_file_is_reused_when_its_readers_are_done_and_not_before(writer, place):
    value = np.ones(200_000)
    refs = send(writer, value, 2)
    first = file_of(refs[0])
    received = receive(refs[0])
    other = send(writer, value * 2)[0]
    assert file_of(other) != first  # one reference is mapped, the other not opened
    late = receive(refs[1])
    del received
    third = send(writer, value * 3)[0]
    assert file_of(third) not in (first, file_of(other))  # the second is mapped
    part = late[5:6]
    del late
    fourth = send(writer, value * 4)[0]
    assert file_of(fourth) not in (first, file_of(other), file_of(third))  # a part of it is mapped
    assert part[0] == 1
    del part
    assert file_of(send(writer, value * 5)[0]) == first
    assert first in bases(place)


def test_the_mapping_holds_the_lock_and_no_descriptor(writer):
    before = descriptors()
    arrays = [receive(send(writer, np.full(1000, i, dtype=np.int64))[0]) for i in range(20)]
    assert descriptors() == before
    for i, values in enumerate(arrays):
        assert (values == i).all()


def test_a_descriptor_holds_the_lock_where_the_mapping_does_not(place, monkeypatch):
    """As on an overlay file system, which maps a different file from the locked one."""

    def of_another_file(descriptor, size, *, keep):
        again = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY)
        try:
            view = mapping.map_private(again, size)
        finally:
            os.close(again)
        if keep:
            weakref.finalize(view.obj, os.close, descriptor)
        return view

    monkeypatch.setattr(pool, "map_private", of_another_file)
    writer = PayloadWriter(place)
    assert writer._pools[0].keeps_descriptor
    monkeypatch.undo()
    before = descriptors()
    ref = send(writer, np.ones(1000))[0]
    received = receive(ref)
    assert descriptors() == before + 1
    assert file_of(send(writer, np.zeros(1000))[0]) != file_of(ref)
    assert received.all()
    del received
    assert descriptors() == before
    writer.forget(ME)
    writer.close()


def test_a_reference_can_be_opened_once(writer):
    ref = send(writer, np.ones(1000))[0]
    open_payload(ref)
    with pytest.raises(ChannelNotFoundError, match="was opened or withdrawn"):
        open_payload(ref)


def test_a_link_that_is_removed_while_it_is_opened_is_an_error(writer, monkeypatch):
    """A sweep may remove it for a forked child, which reads on behalf of its dead parent."""
    ref = send(writer, np.ones(1000))[0]

    def swept(path, size, *, keep):
        view = pool.lock_and_map(path, size, keep=keep)
        Path(path).unlink()
        return view

    monkeypatch.setattr(payloads, "lock_and_map", swept)
    with pytest.raises(ChannelNotFoundError):
        open_payload(ref)


def test_a_reader_that_fails_can_try_again(writer, monkeypatch):
    ref = send(writer, np.ones(1000))[0]

    def refused(*_args, **_options):
        raise OSError(errno.ENOMEM, "mmap: Cannot allocate memory")

    with monkeypatch.context() as patch:
        patch.setattr(pool, "map_private", refused)
        with pytest.raises(ChannelMemoryError, match="no room to map"):
            open_payload(ref)
    assert receive(ref).all()


def test_damaged_files_are_refused(place):
    path = Path(place) / "p1-2-3-4"
    for sizes in ([0], [1, 2**40], [2**40]):
        path.write_bytes(array.array("Q", sizes).tobytes())
        with pytest.raises(ChannelCorruptError):
            open_payload((str(path), 8 * len(sizes), 0))
    path.write_bytes(b"short")
    with pytest.raises(ChannelCorruptError, match="shorter"):
        open_payload((str(path), 4096, 0))
    path.unlink()


def test_forget_removes_payloads_that_a_reader_has_not_opened(writer, place, dead):
    mine, its = writer.write(b"x", [b"y"], [ME, dead])
    writer.forget(dead)
    assert not Path(its[0]).exists()
    assert bytes(open_payload(mine)[1][0]) == b"y"
    assert file_of(send(writer, b"z")[0]) == file_of(mine)
    writer.forget(ME)
    assert len(bases(place)) == len(list(Path(place).iterdir()))


def test_the_links_of_dead_readers_keep_no_file(writer, dead):
    [ref] = writer.write(b"x", [], [dead])
    [again] = writer.write(b"x", [], [dead])
    assert file_of(again) == file_of(ref)
    assert not Path(ref[0]).exists()
    withdraw(again)


def test_trim_keeps_files_in_use(writer, place):
    kept = receive(send(writer, np.ones(10_000))[0])
    untaken = send(writer, np.ones(20_000))[0]
    receive(send(writer, np.ones(30_000))[0])
    assert len(bases(place)) == 3
    writer.trim()
    assert len(bases(place)) == 2
    assert kept.all()
    assert receive(untaken).all()
    del kept
    writer.trim()
    assert bases(place) == []
    assert receive(send(writer, np.ones(10))[0]).all()


def test_few_free_files_are_kept(writer, place, monkeypatch):
    monkeypatch.setattr(payloads, "_KEPT_BYTES", 2**20)
    for arrays in ([receive(send(writer, np.ones(60_000))[0]) for _ in range(5)],):
        assert len(bases(place)) == 5
        arrays.clear()
    send(writer, b"")
    # The limit is reached by two files of half a MiB.
    assert len(bases(place)) == 3
    writer.forget(ME)


def test_free_files_are_given_back_after_a_while(place, timing):
    timing("shm", idle_s=0.05)
    writer = PayloadWriter(place)
    kept = receive(send(writer, np.ones(10_000))[0])
    time.sleep(0.2)
    assert len(bases(place)) == 1  # the file is in use
    del kept
    until(lambda: not bases(place))
    writer.close()


def test_announced_payloads_outlive_the_writer(place):
    writer = PayloadWriter(place)
    taken, ref = send(writer, np.ones(10_000), 2)
    received = receive(taken)
    writer.close()
    writer.close()
    assert bases(place) == []
    assert receive(ref).all()
    assert received.all()
    with pytest.raises(ChannelClosed):
        send(writer, 1)


def test_a_writer_that_is_dropped_removes_its_files(place):
    send(PayloadWriter(place), b"x")
    assert bases(place) == []
    for path in Path(place).iterdir():
        path.unlink()


def test_a_failed_write_leaves_no_link(writer, place, monkeypatch):
    made = []

    def link(file, path, reader):
        if len(made) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        made.append(path)
        os.link(file.path, path)
        file.links[path] = reader

    monkeypatch.setattr(pool.PayloadFile, "link", link)
    monkeypatch.setenv("SHOAL_SHM_DIR", place)
    with (
        pytest.warns(RuntimeWarning, match="SHOAL_SHM_DIR"),
        pytest.raises(ChannelMemoryError, match="has no room"),
    ):
        send(writer, np.ones(1000), 3)
    assert len(made) == 2
    monkeypatch.undo()
    assert all(not Path(path).exists() for path in made)
    assert receive(send(writer, np.ones(1000))[0]).all()


def test_no_room_goes_to_the_fallback_with_one_warning(place, monkeypatch):
    folder, other = Path(place) / "small", Path(place) / "other"
    folder.mkdir()
    other.mkdir()
    writer = PayloadWriter(str(folder), fallback=str(other))
    allocate = os.posix_fallocate

    def full(descriptor, offset, length):
        if Path(f"/proc/self/fd/{descriptor}").readlink().is_relative_to(folder):
            raise OSError(errno.ENOSPC, "No space left on device")
        allocate(descriptor, offset, length)

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.warns(RuntimeWarning, match=r"raise --shm-size.* or set SHOAL_SHM_DIR") as seen:
        refs = [send(writer, np.full(1000, i))[0] for i in range(3)]
    assert len(seen) == 1
    assert all(Path(ref[0]).is_relative_to(other) for ref in refs)
    assert [receive(ref)[0] for ref in refs] == [0, 1, 2]
    assert list(folder.iterdir()) == []
    writer.close()
    assert list(other.iterdir()) == []
    folder.rmdir()
    other.rmdir()


SMALL = """
import os, sys, warnings
from pathlib import Path
import numpy as np
from shoal.errors import ChannelMemoryError
from shoal.process import own_process
from shoal.shm.shared_files import PayloadWriter, open_payload
small, tight = Path(sys.argv[1]), Path(sys.argv[2])
writer = PayloadWriter(str(small), fallback=str(tight))
data = np.ones(5 * 2**20, np.uint8)
first, second = (writer.write(b"", [data * i], [own_process()])[0] for i in (1, 2))
assert Path(first[0]).is_relative_to(small)
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    third = writer.write(b"", [data * 3], [own_process()])[0]
assert len(seen) == 1 and Path(third[0]).is_relative_to(tight), (seen, third)
try:
    writer.write(b"", [data, data], [own_process()])
except ChannelMemoryError as error:
    assert "No space left" in str(error), error
else:
    raise SystemExit("there was room")
for i, ref in enumerate((first, second, third)):
    assert (np.frombuffer(open_payload(ref)[1][0], np.uint8) == i + 1).all()
# An unused file makes room for one of another size.
ref = writer.write(b"", [data, data[:2 * 2**20]], [own_process()])[0]
assert Path(ref[0]).is_relative_to(small)
print("done")
"""


def test_a_full_file_system_is_an_error_and_no_signal(place):
    mount = "mount -t tmpfs -o size=12m small $1 && mount -t tmpfs -o size=7m tight $2"
    enter = ["unshare", "-Urm", "sh", "-c"]
    folders = [Path(place) / name for name in ("small", "tight")]
    for folder in folders:
        folder.mkdir()
    names = [str(folder) for folder in folders]
    probe = subprocess.run([*enter, mount, "sh", *names], capture_output=True, check=False)
    if probe.returncode:
        for folder in folders:
            folder.rmdir()
        pytest.skip("this user cannot mount file systems")
    result = subprocess.run(
        [*enter, f'{mount} && exec "$0" -c "$3" "$1" "$2"', sys.executable, *names, SMALL],
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )
    for folder in folders:
        folder.rmdir()
    assert result.stdout == "done\n", result.stderr


def test_a_folder_that_was_removed(place):
    folder = Path(place) / "session"
    with pytest.raises(ChannelNotFoundError):
        PayloadWriter(str(folder))
    folder.mkdir()
    writer = PayloadWriter(str(folder))
    ref = send(writer, np.ones(1000))[0]
    received = receive(send(writer, np.ones(1000))[0])
    shutil.rmtree(folder)
    with pytest.raises(ChannelNotFoundError, match="session was removed"):
        open_payload(ref)
    with pytest.raises(ChannelNotFoundError, match="the folder was removed"):
        send(writer, np.ones(1000))
    assert received.all()
    writer.trim()
    writer.close()


def test_the_sweep_spares_living_writers_and_unknown_files(place, dead):
    dead, me = key_of(dead), key_of(ME)
    elsewhere = (1, *dead[1:])  # the same process id in another PID namespace
    gone = [
        FileName(dead, 1),
        LinkName(FileName(me, 2), 3, dead),
        LinkName(FileName(dead, 1), 4, dead),
    ]
    stay = [
        FileName(me, 2),
        FileName(elsewhere, 5),
        LinkName(FileName(dead, 1), 6, me),
        LinkName(FileName(me, 2), 7, elsewhere),
        "ctl",
        "p1-2",
        "x17",
    ]
    for name in (*gone, *stay):
        (Path(place) / str(name)).touch()
    assert sweep(place) == sorted(str(Path(place) / str(name)) for name in gone)
    assert sorted(path.name for path in Path(place).iterdir()) == sorted(map(str, stay))
    for name in stay:
        (Path(place) / str(name)).unlink()
    assert sweep(f"{place}/missing") == []


OVERLAY = """
import os, sys
import numpy as np
from shoal.process import own_process
from shoal.shm.shared_files import PayloadWriter, open_payload
me = own_process()
writer = PayloadWriter(sys.argv[1])
before = len(os.listdir("/proc/self/fd"))
first = writer.write(b"", [np.ones(1000)], [me])[0]
taken = open_payload(first)[1]
second = writer.write(b"", [np.zeros(1000)], [me])[0]
assert (np.frombuffer(taken[0]) == 1).all()
assert not np.frombuffer(open_payload(second)[1][0]).any()
del taken
third = writer.write(b"", [np.zeros(1000)], [me])[0]
of_first, of_third = ("-".join(ref[0].split("-")[:4]) for ref in (first, third))
assert of_first == of_third
assert len(os.listdir("/proc/self/fd")) == before
print("done", first[2])
"""


def test_an_overlay_file_system(place):
    """The file system of containers."""
    names = [str(Path(place) / name) for name in ("base", "changes", "work", "merged")]
    for name in names:
        Path(name).mkdir()
    mount = 'mount -t overlay overlay -o "lowerdir=$1,upperdir=$2,workdir=$3" "$4"'
    enter = ["unshare", "-Urm", "sh", "-c"]
    probe = subprocess.run([*enter, mount, "sh", *names], capture_output=True, check=False)
    if probe.returncode == 0:
        result = subprocess.run(
            [*enter, f'{mount} && exec "$0" -c "$5" "$4"', sys.executable, *names, OVERLAY],
            capture_output=True,
            text=True,
            check=False,
            timeout=DEADLINE_S,
        )
    for name in names:
        shutil.rmtree(name)
    if probe.returncode:
        pytest.skip("this user cannot mount overlay file systems")
    assert result.stdout in ("done 0\n", "done 1\n"), result.stderr


FORK = """
import os, sys
from pathlib import Path
import numpy as np
from shoal.process import own_process
from shoal.shm.shared_files import PayloadWriter, open_payload
folder = Path(sys.argv[1])
writer = PayloadWriter(str(folder))
data = np.ones(10_000)
kept = open_payload(writer.write(b"", [data], [own_process()])[0])
theirs = writer.write(b"", [data * 2], [own_process()])[0]
before = sorted(folder.iterdir())
resume, end = os.pipe(), os.pipe()
child = os.fork()
if child == 0:
    try:
        ref = writer.write(b"", [data * 3], [own_process()])[0]
        assert f"-{os.getpid()}-" in ref[0]
        assert (np.frombuffer(open_payload(ref)[1][0]) == 3).all()
        writer.trim()
        writer.close()
        assert sorted(folder.iterdir()) == before, "its parent's files stay"
        os.write(end[1], b"x")
        os.read(resume[0], 1)
        assert (np.frombuffer(kept[1][0]) == 1).all(), "its view is its own"
    except BaseException as error:
        print("child:", repr(error), flush=True)
        os._exit(1)
    os._exit(0)
assert os.read(end[0], 1)
del kept
again = [writer.write(b"", [data * i], [own_process()])[0] for i in (4, 5)]
os.write(resume[1], b"x")
assert os.waitpid(child, 0)[1] == 0
assert (np.frombuffer(open_payload(theirs)[1][0]) == 2).all()
for i, ref in zip((4, 5), again):
    assert (np.frombuffer(open_payload(ref)[1][0]) == i).all()
writer.close()
assert list(folder.iterdir()) == []
print("done")
"""


def test_a_forked_child_has_files_of_its_own(place, run_python):
    printed = run_python("-W", "ignore::DeprecationWarning", "-c", FORK, place)
    assert printed == "done\n"
