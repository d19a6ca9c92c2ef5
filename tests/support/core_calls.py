"""A queue for tests of the fast paths of the cores, and notes of the calls that are handed on."""

import pytest


class Slow:
    """Notes the calls that the core hands on, and returns their names."""

    def __init__(self, *arguments):
        self.arguments, self.calls = arguments, []

    def __getattr__(self, name):
        call = name.removeprefix("_").removesuffix("_slowly")
        if name != f"_{call}_slowly":
            raise AttributeError(name)

        def note(*arguments):
            self.calls.append((call, *arguments))
            return call

        return note


class Stop(BaseException):
    pass


class Stopping:
    """Cannot be sent: its pickling raises what is not an `Exception`."""

    def __reduce__(self):
        raise Stop


@pytest.fixture
def queue(session):
    return session.queue("a", maxsize=2)


@pytest.fixture
def fast(backend):
    if backend.__name__.endswith("._pure"):
        pytest.skip("the Python core hands on every call")
