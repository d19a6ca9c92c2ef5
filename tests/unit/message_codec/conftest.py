"""Fixture of the message codec, which is part of the core in Rust."""

import tempfile

import pytest

from shoal import _backend
from support.message_codec import Codec


@pytest.fixture(scope="session")
def codec(request):
    """The codec of the core in Rust, with a queue; the pure core pickles everything."""
    if request.config.getoption("--backend") == "pure":
        pytest.skip("the pure core has no codec")
    core = _backend.load("rust")
    with tempfile.TemporaryDirectory(prefix="shoal-test-", dir="/dev/shm") as folder:
        session = core.ShmSession(dir=folder)
        yield Codec(core, session)
        session.close()
