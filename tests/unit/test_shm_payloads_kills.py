"""SIGKILL of readers and writers of payload files before each of their steps."""

import json
import os
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest

from shoal.pickling import dumps, loads
from shoal.process import ProcessId, own_process
from shoal.shm.shared_files import PayloadWriter, open_payload, sweep
from shoal.shm.shared_files.names import FileName, LinkName, parse
from support.processes import kernel_state, killed, programs, until

pytestmark = [pytest.mark.nightly, pytest.mark.process]

ME = own_process()
STEPS = ("open", "lock", "map", "close", "unlink", "held")

STOPS = """
import fcntl, json, os, signal, sys
from pathlib import Path
import numpy as np
from shoal.process import ProcessId, own_process
from shoal.shm.shared_files import PayloadWriter, open_payload, pool

def before(step, call):
    def stops(*arguments, **options):
        if step == stop:
            print("stopped", flush=True)
            os.kill(os.getpid(), signal.SIGSTOP)
        return call(*arguments, **options)
    return stops

print(json.dumps(own_process()), flush=True)
stop, order = json.loads(sys.stdin.readline())
"""

READER = f"""{STOPS}
os.open = before("open", os.open)
fcntl.flock = before("lock", fcntl.flock)
pool.map_private = before("map", pool.map_private)
os.close = before("close", os.close)
Path.unlink = before("unlink", Path.unlink)
_, [view] = open_payload(order)
before("held", len)(view)
values = np.frombuffer(view)
print(values.min(), values.max(), flush=True)
values[:] = -1.0
sys.stdin.readline()
"""

WRITER = f"""{STOPS}
folder, size, readers = order
count = 0

def nth(call):
    def stops(*arguments):
        global count
        count += 1
        return before(f"link {{count}}", call)(*arguments)
    return stops

os.posix_fallocate = before("allocate", os.posix_fallocate)
pool.copy_into = before("copy", pool.copy_into)
writer = PayloadWriter(folder)
os.link = nth(os.link)
refs = writer.write(b"", [np.full(size, 7.0)], [ProcessId(*reader) for reader in readers])
print(json.dumps(refs), flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def begin(line):
    """Start a program; return the process and its identity."""

    def start(program):
        process = begin("-c", program)
        return process, ProcessId(*json.loads(line(process)))

    with programs(stderr=subprocess.PIPE) as begin:
        yield start


@pytest.fixture
def writer(place):
    writer = PayloadWriter(place)
    yield writer
    writer.close()
    sweep(place)


def tell(process, stop, order):
    process.stdin.write(json.dumps((stop, order)) + "\n")
    process.stdin.flush()


def wait_for_stop(process, line):
    """Wait until a process has stopped itself before its given step."""
    assert line(process) == "stopped"
    until(lambda: kernel_state(process.pid) == "T")


def file_of(ref):
    return str(parse(Path(ref[0]).name).file)


def names(folder, kind):
    return [path.name for path in Path(folder).iterdir() if isinstance(parse(path.name), kind)]


def written(writer, value):
    """Write a payload of one size for this process; return its file and take it."""
    ref = writer.write(*dumps(np.full(50_000, value)), [ME])[0]
    return file_of(ref), loads(*open_payload(ref))


@pytest.mark.parametrize("step", STEPS)
def test_a_reader_that_stops_keeps_its_bytes_and_a_dead_one_keeps_nothing(
    step, begin, line, writer, place
):
    stopped, its = begin(READER)
    going, other = begin(READER)
    refs = writer.write(b"", [np.full(50_000, 1.0)], [its, ME, other])
    first = file_of(refs[0])
    mine = np.frombuffer(open_payload(refs[1])[1][0])
    tell(going, "", refs[2])
    assert line(going) == "1.0 1.0"
    tell(stopped, step, refs[0])
    wait_for_stop(stopped, line)
    for value in (2.0, 3.0):
        second, values = written(writer, value)
        assert second != first
        assert (values == value).all()
        del values
    assert (mine == 1.0).all()
    del mine
    killed(going)
    # Only the stopped process is left, and it still owns its file.
    assert written(writer, 4.0)[0] == second
    killed(stopped)
    taken = [written(writer, value) for value in (5.0, 6.0)]
    assert {file for file, _ in taken} == {first, second}
    assert names(place, LinkName) == []
    for value, (_, values) in zip((5.0, 6.0), taken, strict=True):
        assert (values == value).all()


@pytest.mark.parametrize("step", STEPS)
def test_a_resumed_reader_reads_payloads_announced_to_it(step, begin, line, writer, place):
    reader, its = begin(READER)
    ref = writer.write(b"", [np.full(50_000, 1.0)], [its])[0]
    tell(reader, step, ref)
    wait_for_stop(reader, line)
    for value in (2.0, 3.0):
        file, values = written(writer, value)
        assert file != file_of(ref)
        del values
    writer.trim()
    assert file_of(ref) in names(place, FileName)
    os.kill(reader.pid, signal.SIGCONT)
    assert line(reader) == "1.0 1.0"


def test_payloads_announced_by_a_dead_writer_are_kept(begin, line, place):
    process, its = begin(WRITER)
    reader, other = begin(READER)
    tell(process, "", (place, 50_000, [ME, other]))
    mine, others = json.loads(line(process))
    killed(process)
    sweep(place)
    assert names(place, FileName) == []
    values = np.frombuffer(open_payload(mine)[1][0])
    assert (values == 7.0).all()
    next_writer = PayloadWriter(place)
    written(next_writer, 1.0)
    tell(reader, "", others)
    assert line(reader) == "7.0 7.0"
    assert (values == 7.0).all()
    next_writer.close()
    assert list(Path(place).iterdir()) == []
    assert its != other


@pytest.mark.parametrize("step", ["allocate", "copy", "link 1", "link 2"])
def test_files_of_a_killed_writer_that_were_not_announced_are_swept(step, begin, line, place):
    process, _ = begin(WRITER)
    reader, its = begin(READER)
    tell(process, step, (place, 50_000, [its, its]))
    wait_for_stop(process, line)
    assert len(names(place, FileName)) == 1
    assert sweep(place) == []
    killed(process)
    left = len(names(place, LinkName))
    assert len(sweep(place)) == 1
    assert len(names(place, LinkName)) == left == (step == "link 2")
    killed(reader)
    PayloadWriter(place).close()  # a writer that starts sweeps
    assert list(Path(place).iterdir()) == []
