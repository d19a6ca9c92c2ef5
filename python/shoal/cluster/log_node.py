"""The files of one node that hold the output of its workers, and how far they were copied."""

import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from shoal._ray import get
from shoal.bootstrap.output import Position
from shoal.cluster import timing
from shoal.cluster.log_files import Found, LogReader, is_full, read_new
from shoal.cluster.rank_log import RankLog
from shoal.deadline import Deadline
from shoal.errors import ShoalError, ShoalTimeoutError

__all__ = ["LogNode", "OtherNode"]

# Rounds within one pass, so that a worker that writes all the time does not hold up the others.
_ROUNDS = 16
_LAST_ROUNDS = 1000


@dataclass
class _File:
    """A file and what takes its content.

    Attributes:
        position: How far it was copied.
        take: Takes its next bytes.
    """

    position: Position
    take: Callable[[bytes], None]


class LogNode:
    """The files of this node: the list of its workers, and their output.

    Args:
        list_name: The name of the list.
        log_of: Returns the log of a worker, by its name and rank.
        logger: Takes warnings.
        folder: Returns the folder of Ray's logs; None if there is none.
    """

    def __init__(
        self,
        list_name: str,
        log_of: Callable[[str, str], RankLog],
        logger: logging.Logger,
        folder: Callable[[], Path | None],
    ) -> None:
        self._list_name = list_name
        self._log_of = log_of
        self._logger = logger
        self._folder = folder
        self._rest = b""  # of the list
        self.files = {list_name: _File(Position(list_name), self._take_list)}

    def add(self, name: str, rank: str, where: Position, key: str = "") -> None:
        """Copy a file of a worker, which is known by its path or by another key."""
        take = partial(self._log_of(name, rank).feed, where.path)
        self.files[key or where.path] = _File(where, take)

    def _take_list(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            try:
                name, rank, positions = json.loads(line)
                for where in positions:
                    self.add(name, rank, Position(*where))
            except (ValueError, TypeError, AttributeError) as error:
                self._logger.warning(
                    "the log of a worker is not collected: its line in %s is damaged: %r (%s: %s)",
                    self._list_name, line, type(error).__name__, error,
                )  # fmt: skip

    def copy(self, last_s: float | None) -> None:
        """Copy what is new.

        Args:
            last_s: Seconds for all answers of the node in the last pass; None for any other pass.
        """
        last = None if last_s is None else Deadline(last_s)
        for _ in range(_ROUNDS if last is None else _LAST_ROUNDS):
            files = list(self.files.values())
            found = self._read([file.position for file in files], last)
            for index, data, after in found:
                files[index].position = after
                files[index].take(data)
            # The list is the first file: its new lines name files to read.
            if not is_full(found) and all(index for index, _, _ in found):
                return

    def _read(self, wanted: list[Position], last: Deadline | None) -> Found:
        del last
        return read_new(wanted, self._folder() or Path())

    def end(self) -> None:
        """Remove the list."""
        ((self._folder() or Path()) / self._list_name).unlink(missing_ok=True)


class OtherNode(LogNode):
    """The files of another node, which an actor there reads.

    A node that does not answer is left alone for a while, but not in the last pass, and not before
    its first answer: the start of its actor may take longer than an answer.

    Args:
        list_name: The name of the list.
        log_of: Returns the log of a worker, by its name and rank.
        logger: Takes warnings.
        node_id: Ray's name of the node.
        name: What messages call it.
    """

    def __init__(
        self,
        list_name: str,
        log_of: Callable[[str, str], RankLog],
        logger: logging.Logger,
        node_id: str,
        name: str,
    ) -> None:
        super().__init__(list_name, log_of, logger, lambda: None)
        self._node_id = node_id
        self._name = name
        self._actor: Any = None
        self._has_answered = False
        self._is_lost = False
        self._quiet_until = 0.0

    def _read(self, wanted: list[Position], last: Deadline | None) -> Found:
        if last is None and time.monotonic() < self._quiet_until:
            return []
        try:
            found = self.ask(wanted, last or Deadline(timing.TIMING.logs_answer_s))
        except (ShoalError, RayError) as error:
            starts = not self._has_answered and isinstance(error, ShoalTimeoutError)
            if last is None and starts:
                return []
            if last is not None or not self._is_lost:
                self._logger.warning(
                    "the logs of %s cannot be read at present, and miss what follows: %s",
                    self._name, error,
                )  # fmt: skip
            self._is_lost = True
            self._quiet_until = time.monotonic() + timing.TIMING.logs_again_s
            return []
        self._has_answered, self._is_lost, self._quiet_until = True, False, 0.0
        return found

    def ask(self, wanted: list[Position], deadline: Deadline) -> Found:
        """Let the actor read.

        Raises:
            ShoalError: The node does not answer.
            RayError: No actor can be started there.
        """
        if not ray.is_initialized():
            return []
        if self._actor is None:
            affinity = NodeAffinitySchedulingStrategy(node_id=self._node_id, soft=False)
            options: dict[str, Any] = {
                "num_cpus": 0,
                "max_restarts": -1,  # it keeps no state
                "scheduling_strategy": affinity,
            }
            self._actor = ray.remote(LogReader).options(**options).remote()
        answer = self._actor.read.remote(wanted)
        found: Found = get(answer, deadline, lambda: "reading logs", self._name)
        return found

    def end(self) -> None:
        """Remove the list, and end the actor."""
        if self._actor is not None and ray.is_initialized():
            if not self._is_lost:
                removed = self._actor.remove.remote(self._list_name)
                ray.wait([removed], timeout=timing.TIMING.logs_answer_s)
            ray.kill(self._actor)
