"""Calls to Ray's dashboard that go around the proxies of the environment."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray

__all__ = ["dashboard_host", "without_http_proxies"]

_NAMES = ("NO_PROXY", "no_proxy")
_lock = threading.Lock()
_users = 0
_before: dict[str, str | None] = {}


@contextmanager
def without_http_proxies() -> Iterator[None]:
    """Let HTTP calls to Ray's dashboard go around proxies, within a block.

    Ray's state API (`ray.util.state`) asks the dashboard over HTTP, and a proxy of the environment
    does not reach it. The block adds the dashboard's host to `NO_PROXY` and `no_proxy`; other
    exceptions stay. Blocks may be nested and may run in several threads: the last one restores the
    variables.
    """
    global _users  # noqa: PLW0603  (the environment belongs to the process)
    with _lock:
        if not _users:
            _before.update({name: os.environ.get(name) for name in _NAMES})
            # Ray has no public way to tell this process's node.
            host = dashboard_host(ray._private.worker._global_node)  # noqa: SLF001  (see above)
            for name in _NAMES:
                entries = [entry.strip() for entry in (_before[name] or "").split(",")]
                os.environ[name] = ",".join(dict.fromkeys([*filter(None, entries), host]))
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if not _users:
                for name, value in _before.items():
                    if value is None:
                        os.environ.pop(name, None)
                    else:
                        os.environ[name] = value


def dashboard_host(node: Any) -> str:
    """Return the host of the dashboard of the Ray that a node belongs to; this one if it is None."""
    # Without a dashboard it is the head's host, where the dashboard would be.
    address = (node and (node.webui_url or node.gcs_address)) or "127.0.0.1"
    host: str = address.rpartition("://")[2].rpartition(":")[0] or address
    return host.strip("[]")
