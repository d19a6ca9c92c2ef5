"""Finding a channel by its name while the channel with that name starts or ends."""

from types import SimpleNamespace

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError

from shoal._ray import use_runtime
from shoal.channel import create
from shoal.deadline import Deadline
from shoal.errors import ChannelExistsError, ChannelNotFoundError
from shoal.queues.settings import ChannelSettings


class Runtime:
    """A runtime whose successive look-ups of names find the actors of the list `found`."""

    def __init__(self):
        self.found = []

    def is_initialized(self):
        return True

    def get_actor(self, name, namespace):
        actor = self.found.pop(0) if self.found else None
        if actor is None:
            raise ValueError(name)
        return actor

    def get(self, answer, timeout):
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def runtime(monkeypatch):
    monkeypatch.setenv("CLUSTER_NAMESPACE", "job")
    made = Runtime()
    use_runtime(made)
    yield made
    use_runtime(None)


def actor(*answers, ping=None):
    """An actor of a channel whose successive calls have these answers, or errors."""
    left = list(answers)
    return SimpleNamespace(
        shoal_channel_settings=SimpleNamespace(remote=lambda: left.pop(0)),
        ping=SimpleNamespace(remote=lambda: ping),
    )


def state(**settings):
    made = ChannelSettings("queue", **settings)
    return {"settings": made, "location": None, "closed": False, "ending": False}


def connect():
    """Connect as `Channel.connect` does, which has a shorter way in a runtime that is not Ray."""
    return create._connect("queue", Deadline(60), at_once=True)[0]


def test_a_name_that_is_given_up_meanwhile_is_free(runtime):
    runtime.found = [actor(), None]
    assert create._join(ChannelSettings("queue"), Deadline(60)) is None


@pytest.mark.parametrize("distributed", [False, True])
def test_a_channel_of_one_actor_is_not_one_of_all_nodes(runtime, distributed):
    def join(num_actors):
        runtime.found = [actor(*[state(num_actors=num_actors)] * 9)] * (1 + num_actors)
        wanted = ChannelSettings("queue", num_actors=3 if distributed else 1)
        return create._join(wanted, Deadline(60))

    text = f"exists, with distributed={not distributed} .asked for: {distributed}.;"
    with pytest.raises(ChannelExistsError, match=text):
        join(1 if distributed else 3)
    settings, _ = join(3 if distributed else 1)
    assert settings.distributed == distributed


def test_connecting_while_all_actors_go_is_an_error(runtime):
    runtime.found = [actor(state(num_actors=2)), None, None]
    with pytest.raises(ChannelNotFoundError, match="no channel 'queue'"):
        connect()


def test_connecting_to_a_dead_actor_says_that_there_is_no_channel(runtime):
    runtime.found = [actor(ActorDiedError(), ping=ActorDiedError())]
    with pytest.raises(ChannelNotFoundError, match=r"its actor queue:0 has ended \(.* died"):
        connect()


def test_connecting_while_an_actor_starts_again_asks_the_next_process(runtime):
    found = state(num_actors=1)
    runtime.found = [actor(ActorUnavailableError("it restarts", None), found, found)]
    assert connect() == ChannelSettings("queue", num_actors=1, locations=(None,))
