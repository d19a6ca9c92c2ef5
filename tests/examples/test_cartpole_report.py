"""What the CartPole example shows, without Ray."""

import io
from types import SimpleNamespace

import pytest
from report import (
    PLAIN_LINE_S,
    REFRESH_S,
    Board,
    Progress,
    placement_table,
    times_table,
    write_curve,
)
from rich.console import Console

pytestmark = pytest.mark.nightly


def show(renderable):
    console = Console(file=io.StringIO(), width=100)
    console.print(renderable)
    return console.file.getvalue()


def test_the_mean_is_of_the_last_hundred_scores():
    progress = Progress()
    progress.add([500.0] * 99, steps=10)
    assert progress.mean == 0
    assert progress.curve == []
    progress.add([0.0], steps=10)
    assert progress.mean == 495
    progress.add([500.0] * 100, steps=10)
    assert progress.curve == [(20, 495), (30, 500)]


@pytest.mark.parametrize(("terminal", "every"), [(True, REFRESH_S), (False, PLAIN_LINE_S)])
def test_the_line_names_the_depth_and_is_not_drawn_more_often_than_it_should(
    terminal, every, monkeypatch
):
    now, asked = [100.0], []
    monkeypatch.setattr("report.time", SimpleNamespace(monotonic=lambda: now[0]))
    console = Console(file=io.StringIO(), width=120, force_terminal=terminal, color_system=None)
    progress = Progress()
    with Board(console, progress) as board:
        for passed, drawn in ((0, 1), (every / 2, 1), (every / 2, 2), (0, 2)):
            now[0] += passed
            board.refresh(lambda: asked.append(1) or 17)
            assert len(asked) == drawn
    assert "17 episodes in the channel" in console.file.getvalue()
    now[0] += 1
    assert progress.seconds == every


def test_times_are_means_of_the_ranks_with_the_rest_named():
    lines = show(times_table({"actor": [{"a": 1.0, "b": 6.0}, {"a": 3.0, "b": 6.0}]}, 10.0))
    rows = [line.replace("│", " ").split() for line in lines.splitlines()]
    assert ["actor", "b", "6.00", "60%"] in rows
    assert ["a", "2.00", "20%"] in rows
    assert ["idle,", "and", "the", "rest", "2.00", "20%"] in rows


def test_time_of_one_rank_is_averaged_over_all_ranks():
    times = {"actor": [{"send weights": 1.0, "learn": 4.0}, {"learn": 4.0}]}
    rows = [line.replace("│", " ").split() for line in show(times_table(times, 10.0)).splitlines()]
    assert ["send", "weights", "0.50", "5%"] in rows


def test_a_worker_without_devices_is_shown_on_the_cpu():
    entry = {"component": "rollout", "rank": 1, "node": 0, "address": "10.0.0.1", "devices": []}
    assert show(placement_table([entry])).replace("│", " ").split()[-6:-1] == [
        "rollout",
        "1",
        "0",
        "10.0.0.1",
        "CPU",
    ]


def test_a_run_too_short_for_a_mean_still_gives_a_picture(tmp_path):
    write_curve(Progress(), tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
