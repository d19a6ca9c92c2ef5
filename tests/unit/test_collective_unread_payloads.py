"""Payloads that readers have not opened: how many bytes they take, and who keeps room from others."""

import pytest

from shoal.collective.node_memory import UnreadPayloads
from shoal.process import own_process, process_of


@pytest.fixture
def readers():
    """Two processes that live."""
    return [own_process(), process_of(1)]


def test_the_readers_of_the_oldest_payloads_keep_the_room(tmp_path, readers):
    unread = UnreadPayloads()
    for number in range(3):
        paths = [tmp_path / f"{number}-{reader}" for reader in range(2)]
        for path in paths:
            path.touch()
        unread.add(10, [(str(path), None) for path in paths], readers)
    assert unread.nbytes() == 30
    assert unread.readers(10) == set(readers)
    (tmp_path / "0-0").unlink()  # the first reader has opened the oldest one
    assert unread.nbytes() == 30
    assert unread.readers(10) == {readers[1]}
    assert unread.readers(11) == set(readers)
    (tmp_path / "0-1").unlink()
    assert unread.nbytes() == 20
    assert unread.readers(0) == set()
