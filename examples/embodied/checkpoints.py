"""Checkpoints: a folder for each, with the shards of the actors and the progress of the runner."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from omegaconf import DictConfig

_PROGRESS = "progress.json"


@dataclass
class Progress:
    """The results of the iterations that a run has finished.

    Attributes:
        curve: The mean return of the episodes of each iteration.
        evaluations: The mean return of each evaluation, by the number of iterations before it.
    """

    curve: list[float] = field(default_factory=list)
    evaluations: dict[int, float] = field(default_factory=dict)


def folder_of(cfg: DictConfig, iterations: int) -> Path:
    """Return the folder of the checkpoint after a number of iterations."""
    return Path(cfg.runner.output).resolve() / "checkpoints" / f"iteration_{iterations}"


def begin(folder: Path) -> None:
    """Make a checkpoint incomplete, before the actors write shards over those of an earlier run."""
    (folder / _PROGRESS).unlink(missing_ok=True)


def write_progress(folder: Path, progress: Progress) -> None:
    """Complete a checkpoint, after the actors have written their shards."""
    unfinished = folder / f"{_PROGRESS}.unfinished"
    unfinished.write_text(json.dumps(asdict(progress)), encoding="utf-8")
    unfinished.replace(folder / _PROGRESS)


def find_checkpoint(cfg: DictConfig) -> tuple[Path | None, Progress]:
    """Return the checkpoint that the configuration names, and its progress.

    Raises:
        ValueError: There is no complete checkpoint of this name; or it is needed and not named; or
            it has all iterations of the configuration already.
    """
    wanted, folder = cfg.runner.resume_dir, None
    if wanted == "auto":
        complete = [path.parent for path in folder_of(cfg, 0).parent.glob(f"*/{_PROGRESS}")]
        folder = max(complete, key=lambda path: int(path.name.rpartition("_")[2]), default=None)
    elif wanted is not None:
        folder = Path(wanted).resolve()
    if folder is None:
        if cfg.runner.only_eval:
            raise ValueError(
                "runner.only_eval needs a checkpoint: set runner.resume_dir to its folder; "
                f"auto finds those in {folder_of(cfg, 0).parent}"
            )
        return None, Progress()
    try:
        found = json.loads((folder / _PROGRESS).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(
            f"runner.resume_dir={wanted}: {folder} is not a complete checkpoint: it lacks "
            f"{_PROGRESS}"
        ) from None
    evaluations = {int(number): value for number, value in found["evaluations"].items()}
    progress = Progress(found["curve"], evaluations)
    if len(progress.curve) >= cfg.runner.iterations and not cfg.runner.only_eval:
        raise ValueError(
            f"runner.resume_dir={wanted}: {folder} has {len(progress.curve)} iterations already; "
            f"expected fewer than runner.iterations={cfg.runner.iterations}"
        )
    return folder, progress
