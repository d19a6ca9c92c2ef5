"""`WeightsWorker`: the Ray actor that makes the memory of weights on one node, and removes it."""

import contextlib
from dataclasses import dataclass

from shoal.channel import ChannelWorker
from shoal.errors import ShoalError
from shoal.queues.settings import ChannelSettings
from shoal.weights.store import Store

__all__ = ["WeightsSettings", "WeightsWorker"]


@dataclass(frozen=True)
class WeightsSettings(ChannelSettings):
    """Description of weights: those of the channel through which they are found, and their bounds.

    Attributes:
        keep: Number of versions that stay.
        version_bytes: Maximum bytes of all versions; None for no bound.
    """

    keep: int = 2
    version_bytes: int | None = None

    def differing(self, wanted: ChannelSettings) -> list[str]:
        """Describe each argument that differs from those of wanted weights."""
        pairs = {"keep": "keep", "version_bytes": "max_bytes"}
        return [
            f"{shown}={getattr(self, name)!r} (asked for: {getattr(wanted, name, None)!r})"
            for name, shown in pairs.items()
            if getattr(self, name) != getattr(wanted, name, None)
        ]


class WeightsWorker(ChannelWorker):
    """Makes the folder of weights, and removes what dead processes leave in it.

    No version goes through the actor: processes of its node publish into the folder and read there.
    """

    def __init__(
        self, name: str, settings: WeightsSettings, namespace: str, *, log: str = ""
    ) -> None:
        super().__init__(name, settings, namespace, log=log)
        with contextlib.suppress(FileExistsError):  # the actor was started again
            Store.create(self._session.token, settings.keep, settings.version_bytes)
        self._store = Store(self._session.token, f"the weights {settings.name!r}")

    def _look_around(self) -> None:
        super()._look_around()
        with contextlib.suppress(ShoalError):
            self._store.sweep()
