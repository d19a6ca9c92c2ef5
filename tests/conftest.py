"""Fixtures and settings of all tests: the backends, hypothesis, and the check for leaks."""

import os
import signal

import hypothesis
import pytest

from shoal import _backend

# The folder of Ray sessions, the check that nothing is left behind, and the notes of failed tests.
pytest_plugins = ["support.leaks", "support.core_fixtures", "support.second_pass"]

BACKENDS = ("rust", "pure")

# Otherwise programs that tests start would write a printed line in parts, with lines that Ray
# forwards from workers in between.
os.environ.pop("PYTHONUNBUFFERED", None)

# Otherwise all workers of a session that has imported torch would spend seconds on its import.
os.environ.setdefault("SHOAL_PRELOAD_TORCH", "0")

# Ray starts its workers at nice 15. Beside a compiler or other tests they would get no time.
os.environ.setdefault("RAY_worker_niceness", "0")

# A shell that starts this in the background makes it ignore Ctrl-C, and programs that tests start
# would inherit this.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

hypothesis.settings.register_profile("dev", max_examples=50, deadline=None)
hypothesis.settings.register_profile(
    "ci",
    max_examples=200,
    deadline=None,
    derandomize=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE", "ci" if "CI" in os.environ else "dev")
)


def pytest_addoption(parser):
    chosen = os.environ.get("SHOAL_BACKEND")
    parser.addoption(
        "--backend",
        choices=(*BACKENDS, "both"),
        default=chosen if chosen in BACKENDS else "both",
        help="which core the `backend` fixture gives (default: SHOAL_BACKEND, else both)",
    )


def pytest_generate_tests(metafunc):
    if "backend" in metafunc.fixturenames:
        chosen = metafunc.config.getoption("--backend")
        names = BACKENDS if chosen == "both" else (chosen,)
        marked = [pytest.param(name, marks=pytest.mark.core) for name in names]
        metafunc.parametrize("backend", marked, indirect=True, scope="session")


@pytest.fixture(scope="session")
def backend(request):
    """The module of one backend; fails (instead of skipping) if the backend cannot be loaded."""
    return _backend.load(request.param)
