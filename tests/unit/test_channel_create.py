"""Finding a channel by its name while the channel with that name starts or ends."""

from types import SimpleNamespace

import pytest

from shoal.channel import actor_calls, create
from shoal.deadline import Deadline
from shoal.errors import ChannelExistsError, ChannelNotFoundError, PeerLostError
from shoal.queues.settings import ChannelSettings


@pytest.fixture
def actors(monkeypatch):
    """The results of successive lookups of names, in a list; fails the test if the code waits."""
    lookups = []

    def find(*_):
        return lookups.pop(0) if lookups else None

    def sleep(_):
        pytest.fail("the code waits")

    monkeypatch.setattr(create, "find_actor", find)
    monkeypatch.setattr(create, "required_namespace", lambda: "job")
    monkeypatch.setattr(create.time, "sleep", sleep)
    return lookups


ACTOR = SimpleNamespace(shoal_channel_settings=None)


def test_a_name_that_is_given_up_meanwhile_is_free(actors, monkeypatch):
    monkeypatch.setattr(create, "_free_names_of_dead", lambda *_: True)
    actors[:] = [ACTOR, None]
    assert create._join(ChannelSettings("queue"), Deadline(None)) is None


@pytest.fixture
def existing(actors, actor, monkeypatch):
    """Make an existing channel with these settings and the name, in a job of three nodes."""
    nodes = SimpleNamespace(num_nodes=lambda: 3)
    monkeypatch.setattr(create.NodeManager, "get_proxy", lambda: nodes)

    def make(**settings):
        state = {
            "settings": ChannelSettings("queue", **settings),
            "location": None,
            "closed": False,
            "ending": False,
        }
        actors[:] = [actor.handle] * (1 + state["settings"].num_actors)
        actor.answers = [state] * (1 + state["settings"].num_actors)

    return make


@pytest.mark.parametrize("distributed", [False, True])
def test_a_channel_of_one_actor_is_not_one_of_all_nodes(existing, distributed):
    existing(num_actors=1 if distributed else 3)
    text = f"exists, with distributed={not distributed} .asked for: {distributed}.;"
    with pytest.raises(ChannelExistsError, match=text):
        create.create(ChannelSettings("queue"), distributed, 0, Deadline(60))
    existing(num_actors=3 if distributed else 1)
    settings, _ = create.create(ChannelSettings("queue"), distributed, 1, Deadline(60))
    assert settings.distributed == distributed


def test_to_connect_without_a_timeout_does_not_wait(actors):
    with pytest.raises(ChannelNotFoundError, match=r"no channel 'queue' in the job 'job'; it is"):
        create.connect("queue", None)


def test_connecting_while_all_actors_go_is_an_error(actors, monkeypatch):
    state = {"settings": ChannelSettings("queue", num_actors=2)}
    monkeypatch.setattr(create, "state_of", lambda *_: state)
    actors[:] = [ACTOR, None, None]
    with pytest.raises(ChannelNotFoundError, match="no channel 'queue'"):
        create.connect("queue", Deadline(60))


@pytest.fixture
def actor(monkeypatch):
    """An actor whose successive calls return or raise the items of `answers`; `dead` at its end."""
    state = SimpleNamespace(answers=[], dead=False)

    def get(*_):
        answer = state.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(actor_calls, "get", get)
    monkeypatch.setattr(actor_calls, "is_dead", lambda _: state.dead)
    state.handle = SimpleNamespace(shoal_channel_settings=SimpleNamespace(remote=lambda: None))
    return state


def test_connecting_to_a_dead_actor_says_that_there_is_no_channel(actors, actor):
    actors[:] = [actor.handle]
    actor.answers, actor.dead = [PeerLostError("its process died")], True
    with pytest.raises(
        ChannelNotFoundError, match=r"its actor queue:0 has ended \(its process died"
    ):
        create.connect("queue", Deadline(60))


def test_connecting_while_an_actor_starts_again_asks_the_next_process(actors, actor, monkeypatch):
    actors[:] = [actor.handle]
    found = {"settings": ChannelSettings("queue", num_actors=1), "location": None}
    actor.answers = [PeerLostError("its process died"), found, found]
    waits = []
    monkeypatch.setattr(create.time, "sleep", waits.append)
    settings, _ = create.connect("queue", Deadline(60))
    assert settings == ChannelSettings("queue", num_actors=1, locations=(None,))
    assert (len(waits), actor.answers) == (1, [])
