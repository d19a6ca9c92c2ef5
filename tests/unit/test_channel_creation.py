"""Finding a channel by its name while the channel with that name starts or ends."""

from types import SimpleNamespace

import pytest

from shoal.channel import creation
from shoal.channel.facts import Facts
from shoal.deadline import Deadline
from shoal.errors import ChannelExistsError, ChannelNotFoundError, PeerLostError


@pytest.fixture
def actors(monkeypatch):
    """The results of successive lookups of names, in a list; fails the test if the code waits."""
    lookups = []

    def find(*_):
        return lookups.pop(0) if lookups else None

    def sleep(_):
        pytest.fail("the code waits")

    monkeypatch.setattr(creation, "find_actor", find)
    monkeypatch.setattr(creation, "required_namespace", lambda: "job")
    monkeypatch.setattr(creation.time, "sleep", sleep)
    return lookups


HOST = SimpleNamespace(shoal_channel_facts=None)


def test_a_name_that_is_given_up_meanwhile_is_free(actors, monkeypatch):
    monkeypatch.setattr(creation, "_free_names_of_dead", lambda *_: True)
    actors[:] = [HOST, None]
    assert creation._join(Facts("queue"), Deadline(None)) is None


@pytest.fixture
def existing(actors, host, monkeypatch):
    """Make an existing channel with these facts and the name, in a job of three nodes."""
    nodes = SimpleNamespace(num_nodes=lambda: 3)
    monkeypatch.setattr(creation.NodeManager, "get_proxy", lambda: nodes)

    def make(**facts):
        state = {"facts": Facts("queue", **facts), "place": None, "closed": False, "ending": False}
        actors[:] = [host.handle] * (1 + state["facts"].hosts)
        host.answers = [state] * (1 + state["facts"].hosts)

    return make


@pytest.mark.parametrize("distributed", [False, True])
def test_a_channel_of_one_host_is_not_one_of_all_nodes(existing, distributed):
    existing(hosts=1 if distributed else 3)
    text = f"exists, with distributed={not distributed} .asked for: {distributed}.;"
    with pytest.raises(ChannelExistsError, match=text):
        creation.create(Facts("queue"), distributed, 0, Deadline(60))
    existing(hosts=3 if distributed else 1)
    facts, _ = creation.create(Facts("queue"), distributed, 1, Deadline(60))
    assert facts.distributed == distributed


def test_to_connect_without_a_timeout_does_not_wait(actors):
    with pytest.raises(ChannelNotFoundError, match=r"no channel 'queue' in the job 'job'; it is"):
        creation.connect("queue", None)


def test_who_connects_while_all_hosts_go_is_told(actors, monkeypatch):
    state = {"facts": Facts("queue", hosts=2)}
    monkeypatch.setattr(creation, "_state", lambda *_: state)
    actors[:] = [HOST, None, None]
    with pytest.raises(ChannelNotFoundError, match="no channel 'queue'"):
        creation.connect("queue", Deadline(60))


@pytest.fixture
def host(monkeypatch):
    """A host whose successive calls return or raise the items of `answers`; `dead` at its end."""
    state = SimpleNamespace(answers=[], dead=False)

    def get(*_):
        answer = state.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(creation, "get", get)
    monkeypatch.setattr(creation, "is_dead", lambda _: state.dead)
    state.handle = SimpleNamespace(shoal_channel_facts=SimpleNamespace(remote=lambda: None))
    return state


def test_who_connects_to_a_host_that_is_dead_is_told_that_there_is_no_channel(actors, host):
    actors[:] = [host.handle]
    host.answers, host.dead = [PeerLostError("its process died")], True
    with pytest.raises(
        ChannelNotFoundError, match=r"its host queue:0 has ended \(its process died"
    ):
        creation.connect("queue", Deadline(60))


def test_who_connects_while_a_host_starts_again_asks_the_next_process(actors, host, monkeypatch):
    actors[:] = [host.handle]
    found = {"facts": Facts("queue", hosts=1), "place": None}
    host.answers = [PeerLostError("its process died"), found, found]
    waits = []
    monkeypatch.setattr(creation.time, "sleep", waits.append)
    facts, _ = creation.connect("queue", Deadline(60))
    assert facts == Facts("queue", hosts=1, places=(None,))
    assert (len(waits), host.answers) == (1, [])
