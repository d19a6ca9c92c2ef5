"""Log files of ranks: which lines get into which file, from files that grow and are replaced."""

import json
import logging
import os
import pickle
import time

import pytest

from shoal.bootstrap.output import Position, list_name
from shoal.cluster import DistributedRayLogCollector
from shoal.cluster.log_files import read_new
from shoal.cluster.log_node import OtherNode
from shoal.cluster.logs import check_log_folder
from shoal.cluster.rank_log import RankLog, log_path
from shoal.errors import ClusterError, ShoalTimeoutError, ShoalValueError
from support.processes import run_program, until

LOG = logging.getLogger("test")


@pytest.fixture
def folder(tmp_path):
    """The folder of Ray's logs."""
    made = tmp_path / "ray"
    made.mkdir()
    return made


@pytest.fixture
def made(tmp_path, folder):
    """Make collectors that read `folder` and write to `tmp_path / "logs"`."""
    collectors = []

    def make(**options):
        one = DistributedRayLogCollector(LOG, str(tmp_path / "logs"), **options)
        one._get_ray_logs_dir = lambda: folder
        collectors.append(one)
        return one

    yield make
    for one in collectors:
        one.stop()


@pytest.fixture
def log(tmp_path):
    return RankLog(tmp_path / "group" / "rank_0.log")


def append(path, text):
    with path.open("a") as file:
        file.write(text)


@pytest.mark.parametrize(
    ("name", "rank", "path"),
    [
        ("actor_group:0", "0", "actor_group/rank_0.log"),
        ("my grp/x:0:3", "0_3", "my_grp_x/rank_0_3.log"),
        ("plain", "0", "plain/rank_0.log"),
        ("Ä-b.c:1", "1", "_-b.c/rank_1.log"),
        ("..:0", "0", "__/rank_0.log"),
        (":0", "0", "_/rank_0.log"),
        ("g:0", "../../x", "g/rank_.._.._x.log"),
    ],
)
def test_the_file_of_a_rank_is_in_the_folder_of_its_group(tmp_path, name, rank, path):
    assert log_path(tmp_path, name, rank) == tmp_path / path


def test_a_file_that_is_read_from_its_start_is_copied_unchanged(made, folder, tmp_path):
    collector, source = made(), folder / "worker-1.out"
    append(source, "line-1\nline-2\n")
    collector._log_file_map[source.name] = ("actor_group:0", "0")
    collector._process_once(folder, new_file_offset_from_start=True)
    target = tmp_path / "logs" / "actor_group" / "rank_0.log"
    assert target.read_text() == "line-1\nline-2\n"
    append(source, "line-3\n")
    collector._process_once(folder, new_file_offset_from_start=False)
    assert target.read_text() == "line-1\nline-2\nline-3\n"
    assert collector._file_offsets[source.name] == 21


def test_a_file_that_is_read_from_its_end_gives_only_what_follows(made, folder, tmp_path):
    collector, source = made(), folder / "worker-1.out"
    append(source, "old\n")
    collector._log_file_map[str(source)] = ("g:0", "0")  # an absolute path works as well
    target = tmp_path / "logs" / "g" / "rank_0.log"
    collector._process_once(folder, new_file_offset_from_start=False)
    assert not target.exists()
    append(source, "new\n")
    collector._process_once(folder, new_file_offset_from_start=False)
    assert target.read_text() == "new\n"


def test_a_file_that_is_known_just_before_the_end_is_copied_completely(made, folder, tmp_path):
    collector, source = made(poll_interval_s=60), folder / "worker-1.out"
    assert collector.start()
    assert collector.start()  # idempotent
    append(source, "all\nof it")
    collector._log_file_map[source.name] = ("g:0", "0")
    collector.stop()
    collector.stop()
    assert (tmp_path / "logs/g/rank_0.log").read_text() == "all\nof it"
    assert not collector._thread.is_alive()


def test_a_collector_that_was_not_started_does_nothing_at_its_end(made, folder, tmp_path):
    collector = made()
    append(folder / "a.out", "x\n")
    collector._log_file_map["a.out"] = ("g:0", "0")
    collector.stop()
    assert not (tmp_path / "logs").exists()


def test_registered_actors_that_were_not_found_are_named_at_the_end(made, caplog):
    collector = made(poll_interval_s=60)
    collector.start()
    collector.register_worker("gone:0", 0)
    collector.stop()
    assert "the logs of gone:0 are not collected" in caplog.text


def test_a_started_collector_is_pickled_without_its_thread(tmp_path):
    collector = DistributedRayLogCollector(LOG, str(tmp_path), "space", 0.01)
    collector.start()
    try:
        copy = pickle.loads(pickle.dumps(collector))
    finally:
        collector.stop()
    assert (copy._thread, copy._started, copy._file_offsets) == (None, False, {})
    assert (copy._namespace, copy._poll_interval_s) == ("space", 0.1)
    copy.stop()


EXITS = """
import atexit, sys
from types import SimpleNamespace
from shoal.cluster import Cluster

def shut_down():
    with open(sys.argv[1], "a") as file:
        file.write("last words of a worker")
    cluster._distributed_log_collector.stop()

job = SimpleNamespace(namespace="shoal", log="token", nodes=[])
cluster = SimpleNamespace(_owner=True, _job=job, _shut_down=shut_down)
atexit.register(shut_down)
Cluster._begin_logs(cluster, sys.argv[2])
cluster._distributed_log_collector._log_file_map[sys.argv[1]] = ("g:0", "0")
"""


@pytest.mark.nightly
def test_the_end_of_the_process_ends_the_job_before_its_logs(tmp_path):
    (tmp_path / "w.out").touch()
    run_program("-c", EXITS, tmp_path / "w.out", tmp_path / "logs", check=True)
    assert (tmp_path / "logs/g/rank_0.log").read_text() == "last words of a worker"


@pytest.mark.parametrize("wrong", [0, "1", None])
def test_an_interval_that_is_not_positive_is_refused(tmp_path, wrong):
    with pytest.raises(ShoalValueError, match=f"poll_interval_s={wrong!r}: expected a positive"):
        DistributedRayLogCollector(LOG, str(tmp_path), poll_interval_s=wrong)


def announce(names, rank, *streams):
    """Add a worker to a list."""
    append(names, json.dumps([f"g:{rank}", str(rank), streams]) + "\n")


def test_workers_on_the_list_of_the_node_are_copied_from_where_they_began(made, folder, tmp_path):
    collector = made(token="job", nodes={"": "node 0"}, poll_interval_s=0.1)
    out, err = folder / "w.out", folder / "w.err"
    append(out, "of another task\n")
    begin = out.stat()
    append(out, "printed in the constructor\n")
    append(err, ":actor_name:g(rank=0)\nwarned\n:actor_name:g(rank=0)\n")
    names = folder / list_name("job", "")
    announce(names, 0, Position(str(out), begin.st_size, begin.st_ino), Position(str(err)))
    line = names.read_text()
    names.write_text(line[:20])
    collector.start()
    target = tmp_path / "logs/g/rank_0.log"
    append(names, line[20:])
    until(lambda: target.exists() and "warned\n" in target.read_text())
    append(out, "last words")  # and the worker is killed
    collector.stop()
    assert target.read_text() == "printed in the constructor\nwarned\nlast words"
    assert not names.exists()


@pytest.mark.parametrize("damaged", [b"\xff", b'["g:1", "1", [1]]'])
def test_a_damaged_line_of_the_list_costs_one_log_only(made, folder, tmp_path, caplog, damaged):
    collector = made(token="job", nodes={"": "node 0"})
    names = folder / list_name("job", "")
    for rank in range(2):
        append(folder / f"{rank}.out", f"of {rank}\n")
        announce(names, rank, Position(f"{rank}.out"))
        with names.open("ab") as file:
            file.write(damaged + b"\n")
    collector._pass(None)
    for rank in range(2):
        assert (tmp_path / f"logs/g/rank_{rank}.log").read_text() == f"of {rank}\n"
    assert caplog.text.count("the log of a worker is not collected") == 2
    assert names.name in caplog.text


def test_a_pass_that_fails_is_logged_once_and_the_next_one_goes_on(made, folder, tmp_path, caplog):
    collector = made(token="job", nodes={"": "node 0"})
    append(folder / "w.out", "one\n")
    announce(folder / list_name("job", ""), 1, Position("w.out"))
    find = collector._get_ray_logs_dir
    collector._get_ray_logs_dir = lambda: 1 / 0
    collector._pass(None)
    collector._pass(None)
    assert caplog.text.count("collecting logs into") == 1
    assert "ZeroDivisionError" in caplog.text
    collector._get_ray_logs_dir = find
    collector._pass(None)
    assert (tmp_path / "logs/g/rank_1.log").read_text() == "one\n"


class Far(OtherNode):
    """A node whose actor's answers are made here; it raises `errors` first."""

    def __init__(self, folder, log):
        names = list_name("job", "far")
        super().__init__(names, lambda *_: log, LOG, "far", "node 1 (lab, 10.0.0.2)")
        self.here = folder
        self.errors = []
        self.asked = 0

    def ask(self, wanted, _deadline):
        self.asked += 1
        if self.errors:
            raise self.errors.pop()
        return read_new(wanted, self.here)


def test_a_node_that_does_not_answer_is_one_warning_and_is_read_later(folder, log, timing, caplog):
    node = Far(folder, log)
    announce(folder / list_name("job", "far"), 1, Position("w.out"))
    append(folder / "w.out", "one\n")
    node.copy(None)
    append(folder / "w.out", "two\n")
    node.errors = [ShoalTimeoutError("no answer within 10 s")]
    node.copy(None)
    node.copy(None)
    assert log.path.read_text() == "one\n"  # it is left alone for a while
    node.copy(10.0)  # but not at the end
    assert log.path.read_text() == "one\ntwo\n"
    timing("cluster", logs_again_s=0)
    append(folder / "w.out", "three\n")
    node.errors = [ShoalTimeoutError("no answer within 10 s")] * 2
    for _ in range(3):
        node.copy(None)
    assert log.path.read_text() == "one\ntwo\nthree\n"
    # One for each time that it was lost.
    assert caplog.text.count("the logs of node 1 (lab, 10.0.0.2) cannot be read at present") == 2


def test_a_node_whose_first_answer_is_slow_is_asked_again_at_once(folder, log, caplog):
    node = Far(folder, log)
    announce(folder / list_name("job", "far"), 1, Position("w.out"))
    append(folder / "w.out", "one\n")
    node.errors = [ShoalTimeoutError("no answer within 10 s")] * 2
    node.copy(None)
    node.copy(None)
    assert caplog.text == ""
    node.copy(None)
    assert log.path.read_text() == "one\n"


@pytest.mark.parametrize(("answers", "warnings"), [(0, 1), (1, 2)])
def test_a_silent_node_is_a_warning_in_the_last_pass(folder, log, caplog, answers, warnings):
    node = Far(folder, log)
    for _ in range(answers):
        node.copy(None)
    node.errors = [ShoalTimeoutError("no answer within 10 s")] * 2
    node.copy(None)
    node.copy(10.0)
    assert caplog.text.count("cannot be read at present") == warnings


def test_a_pass_reads_files_again_only_after_a_full_piece(folder, log):
    node = Far(folder, log)
    announce(folder / list_name("job", "far"), 1, Position("w.out"))
    (folder / "w.out").write_bytes(b"x" * (3 << 20))
    node.copy(None)  # the list, and then three full pieces
    assert (log.path.stat().st_size, node.asked) == (3 << 20, 5)
    append(folder / "w.out", "a line\n")
    node.copy(None)
    assert node.asked == 6


def test_a_file_that_was_rotated_is_read_to_its_end(folder):
    path = folder / "w.out"
    append(path, "one\n")
    ((_, data, position),) = read_new([Position("w.out")], folder)
    append(path, "two\n")
    for number, text in ((2, "three\n"), (1, "four\n")):
        path.rename(folder / f"w.out.{number}")
        time.sleep(0.02)  # the order is that of the times of the files
        append(path, text)
    append(folder / "w.out.old", "not Ray's\n")
    found = read_new([position], folder)
    assert data + b"".join(text for _, text, _ in found) == b"one\ntwo\nthree\nfour\n"
    assert read_new([found[-1][2]], folder) == []


def test_a_large_file_is_read_in_pieces_and_an_emptied_one_from_its_start(folder):
    path = folder / "w.out"
    path.write_bytes(b"x" * (3 << 20))
    position, size = Position("w.out"), 0
    while found := read_new([position], folder):
        size += sum(len(data) for _, data, _ in found)
        position = found[-1][2]
    assert size == 3 << 20
    os.truncate(path, 0)
    append(path, "again\n")
    ((_, data, _),) = read_new([position], folder)
    assert data == b"again\n"
    assert read_new([Position("missing")], folder) == []


def test_half_a_line_is_written_at_once_and_continued(log):
    log.feed("out", b"ha")
    assert log.path.read_text() == "ha"
    log.feed("out", b"lf\nnext")
    assert log.path.read_text() == "half\nnext"


def test_lines_of_two_streams_are_whole(log):
    log.feed("out", b"loss ")
    log.feed("err", b"a warning\nand ")
    assert log.path.read_text() == "loss "
    log.feed("out", b"0.5\n")
    assert log.path.read_text() == "loss 0.5\na warning\nand "
    log.feed("out", b"later\n")
    log.feed("err", b"more\n")
    assert log.path.read_text() == "loss 0.5\na warning\nand more\nlater\n"


def test_a_line_that_does_not_end_holds_up_the_other_stream_for_a_while_only(log, timing):
    timing("cluster", open_line_s=0.05)
    log.feed("err", b"10 %\r20 %")
    log.feed("out", b"step 1\n")
    assert log.path.read_bytes() == b"10 %\r20 %"
    time.sleep(0.1)
    log.write()
    log.feed("err", b"\r30 %")
    assert log.path.read_bytes().decode() == "10 %\r20 %\nstep 1\n\r30 %"


def test_nothing_waits_at_the_end(log):
    log.feed("err", b"half")
    log.feed("out", b"line\nother half")
    log.write(all_of_it=True)
    assert log.path.read_text() == "half\nline\nother half"


def test_bytes_that_are_not_text_are_replaced_and_split_ones_are_not(log):
    log.feed("out", "ä".encode()[:1])
    log.feed("out", "ä".encode()[1:] + b"\xff\n")
    assert log.path.read_text() == "ä\N{REPLACEMENT CHARACTER}\n"


def test_marks_of_ray_are_left_out_also_in_pieces(log):
    log.feed("out", b":job_id:01\n:act")
    assert not log.path.exists()
    log.feed("out", b"or_name:g(rank=0)\n:-) is a line\ntail :task_name:x\n")
    assert log.path.read_text() == ":-) is a line\ntail :task_name:x\n"


def test_an_existing_log_is_continued(log):
    log.path.parent.mkdir()
    log.path.write_text("of an earlier job\n")
    log.feed("out", b"new\n")
    assert log.path.read_text() == "of an earlier job\nnew\n"


def test_a_log_that_cannot_be_written_is_one_warning(tmp_path, caplog):
    (tmp_path / "g").touch()
    broken = RankLog(tmp_path / "g" / "rank_0.log")
    broken.feed("out", b"a\n")
    broken.feed("out", b"b\n")
    assert caplog.text.count("a part of this log is lost") == 1


def test_a_folder_that_cannot_be_made_is_an_error_that_names_it(tmp_path):
    assert check_log_folder(tmp_path / "a" / "b") == tmp_path / "a" / "b"
    assert list((tmp_path / "a" / "b").iterdir()) == []
    with pytest.raises(ShoalValueError, match="distributed_log_dir=''"):
        check_log_folder("")
    with pytest.raises(TypeError, match="distributed_log_dir=5: expected the path of a folder"):
        check_log_folder(5)
    (tmp_path / "file").touch()
    with pytest.raises(ClusterError, match=r"distributed_log_dir='.*/file/logs': no log can be"):
        check_log_folder(str(tmp_path / "file" / "logs"))
