"""A channel on a machine that loses its power, while a worker of another machine waits for it."""

import pytest

from support.machines import connected, read_until

pytestmark = [pytest.mark.ray, pytest.mark.nightly, pytest.mark.process, pytest.mark.timeout(300)]

# Ray declares a node dead after about three seconds instead of half a minute.
SOON = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "2",
}

JOB = """
import sys
import threading
import ray
from shoal import Channel, Cluster
from shoal.errors import ShoalError

def attempt(name, call):
    try:
        call()
        print(name, "returned", flush=True)
    except ShoalError as error:
        # In one piece: several threads write.
        sys.stdout.write(f"{name} {type(error).__name__} {error}\\n")

with Cluster(num_nodes=2) as cluster:
    channels = [Channel.create(name, node_rank=1, maxsize=1) for name in ("full", "empty")]
    channels[0].put(b"x")
    channels[1].put(b"x")
    channels[1].get()  # both are connected, and wait on their connections when the machine dies
    calls = [("put", lambda: channels[0].put(b"y")), ("get", channels[1].get)]
    waits = [threading.Thread(target=attempt, args=call) for call in calls]
    for wait in waits:
        wait.start()
    print("transport", channels[0].transport, flush=True)
    for wait in waits:
        wait.join()
    attempt("later", lambda: channels[0].put_nowait(b"z"))
    print("over", flush=True)
"""


def test_waits_end_with_the_verdict_of_ray(tmp_path):
    with connected("first", "second") as (first, second):
        first.start_ray(**SOON)
        second.start_ray(first, **SOON)
        with first.driver(tmp_path, JOB) as running:
            log = read_until(running, "transport lane", 120)
            second.kill()
            log += read_until(running, "over", 100)
    lines = {line.split()[0]: line for line in log.splitlines() if "PeerLostError" in line}
    assert lines.keys() == {"put", "get", "later"}, log
    assert "Ray has declared this node dead" in lines["put"], log
    assert "Ray has declared this node dead" in lines["get"], log
