"""The runner: it runs in the driver, and calls the groups of workers in turn."""

import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from checkpoints import Progress, begin, folder_of, write_progress
from omegaconf import DictConfig
from rlinf.scheduler import Channel, Tracer, WorkerGroupFuncResult as Handle


class Runner:
    """Trains the policy.

    Args:
        cfg: The configuration of the job.
        env: The group of env workers.
        rollout: The group of rollout workers.
        actor: The group of actors.
        folder: The folder of the checkpoint to go on from; None to begin.
        progress: The progress of this checkpoint.
    """

    def __init__(
        self,
        cfg: DictConfig,
        env: Any,
        rollout: Any,
        actor: Any,
        folder: Path | None = None,
        progress: Progress | None = None,
    ) -> None:
        self._cfg = cfg
        self._progress = Progress() if progress is None else progress
        if folder is not None:
            actor.load(str(folder)).wait()
            print(f"resumed after {len(self._progress.curve)} iterations, from {folder}")
        self._env, self._rollout, self._actor = env, rollout, actor
        self._observations = Channel.create("observations")
        self._actions = Channel.create("actions")
        self._trajectories = Channel.create("trajectories")
        self._seconds = {name: Counter[str]() for name in ("env", "rollout", "actor")}

    def run(self) -> Progress:
        """Run the iterations that are left, with their evaluations and checkpoints."""
        progress, cfg = self._progress, self._cfg.runner
        for iteration in range(len(progress.curve), cfg.iterations):
            started = time.perf_counter()
            with Tracer.trace_span("iteration", cat="runner", args={"number": iteration}):
                mean, loss = self._iterate(iteration)
            progress.curve.append(mean)
            print(
                f"iteration {iteration:2d}   mean return {mean:7.1f}   loss {loss:7.4f}   "
                f"{time.perf_counter() - started:.1f} s"
            )
            done = iteration + 1
            if cfg.eval_interval and done % cfg.eval_interval == 0:
                progress.evaluations[done] = self.evaluate()
            if cfg.save_interval and done % cfg.save_interval == 0:
                self._save(done)
        for group, seconds_of in self._seconds.items():
            times = ", ".join(f"{name} {value:.1f} s" for name, value in seconds_of.most_common())
            print(f"times of {group}: {times}")
        return progress

    def evaluate(self) -> float:
        """Return the mean return of one episode in each environment, without random actions."""
        iterations = len(self._progress.curve)
        self._sync_weights(iterations)
        with Tracer.trace_span("evaluate", cat="runner"):
            playing: Handle = self._env.evaluate(self._observations, self._actions)
            self._rollout.generate(self._observations, self._actions, explore=False).wait()
            mean = float(np.mean(np.concatenate(playing.wait())))
        print(f"evaluation after {iterations} iterations: mean return {mean:.1f}")
        return mean

    def _save(self, iterations: int) -> None:
        folder = folder_of(self._cfg, iterations)
        with Tracer.trace_span("save", cat="runner"):
            begin(folder)
            self._actor.save(str(folder)).wait()
            write_progress(folder, self._progress)

    def _sync_weights(self, version: int) -> None:
        with Tracer.trace_span("sync weights", cat="runner"):
            receiving: Handle = self._rollout.receive_weights()
            self._actor.send_weights(version).wait()
            versions = receiving.wait()  # of each rank
        if set(versions) != {version}:
            raise RuntimeError(f"the rollout workers have the versions {versions}, not {version}")

    def _iterate(self, iteration: int) -> tuple[float, float]:
        self._sync_weights(iteration)
        with Tracer.trace_span("roll out", cat="runner"):
            playing: Handle = self._env.interact(
                iteration, self._observations, self._actions, self._trajectories
            )
            answering: Handle = self._rollout.generate(self._observations, self._actions)
            self._actor.recv_trajectories(self._trajectories).wait()
            returns = playing.wait()
            answering.wait()
        with Tracer.trace_span("train", cat="runner"):
            training: Handle = self._actor.train(iteration)
            losses = training.wait()
        for group, handle in (("env", playing), ("rollout", answering), ("actor", training)):
            # All timers of the group since the last iteration; those of the slowest rank.
            self._seconds[group].update(handle.consume_durations())
        return float(np.mean(np.concatenate(returns))), float(np.mean(losses))


def check_curve(curve: list[float], window: int, rise: float) -> str:
    """Return how much the curve has risen.

    Raises:
        ValueError: It has not risen by `rise`.
    """
    first, last = float(np.mean(curve[:window])), float(np.mean(curve[-window:]))
    summary = (
        f"the mean return was {first:.1f} in the first {window} iterations and {last:.1f} in the "
        f"last {window}"
    )
    if not last - first >= rise:
        raise ValueError(f"{summary}; it should have risen by {rise:g}")
    return summary
