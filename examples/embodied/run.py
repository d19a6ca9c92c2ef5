"""The driver of the example: launches the groups, trains, and checks that the policy has learned.

    python -m shoal.compat.rlinf examples/embodied/run.py [FILE.yaml] [KEY=VALUE ...]

The values of the file, such as `two_nodes.yaml`, and then the arguments, such as
`runner.iterations=5`, replace those of `embodied.yaml`. The exit code is 1 if the mean return has
not risen enough.
"""

import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
from actor_worker import ActorWorker
from checkpoints import Progress, find_checkpoint
from env_worker import EnvWorker
from omegaconf import DictConfig, OmegaConf
from rlinf.scheduler import Cluster, ComponentPlacement
from rollout_worker import RolloutWorker
from runner import Runner, check_curve

CONFIG = Path(__file__).with_name("embodied.yaml")


def main(arguments: list[str]) -> None:
    """Train with the configuration, and write the learning curve."""
    cfg = read_config(arguments)
    try:
        check_steps(cfg)
        folder, progress = find_checkpoint(cfg)
    except ValueError as error:
        sys.exit(str(error))
    output = Path(cfg.runner.output)
    output.mkdir(parents=True, exist_ok=True)
    # Each worker's output also goes into a file: logs/<group>/rank_<rank>.log.
    cluster = Cluster(cluster_cfg=cfg.cluster, distributed_log_dir=str(output / "logs"))
    runner = Runner(cfg, **launch(cfg, cluster), folder=folder, progress=progress)
    if cfg.runner.only_eval:
        runner.evaluate()
        return
    progress = runner.run()
    write_curve(progress, output / "learning_curve.png")
    try:
        print(f"learned: {check_curve(progress.curve, **cfg.runner.check)} (results: {output})")
    except ValueError as error:
        sys.exit(f"not learned: {error} (results: {output})")


def read_config(arguments: list[str]) -> DictConfig:
    """Read the configuration; a file, and arguments such as `env.steps=100`, replace its values."""
    cfg = OmegaConf.load(CONFIG)
    OmegaConf.set_struct(cfg, value=True)  # an unknown key is an error
    files = [text for text in arguments if text.endswith(".yaml") and "=" not in text]
    values = OmegaConf.from_cli([text for text in arguments if text not in files])
    return OmegaConf.merge(cfg, *map(OmegaConf.load, files), values)


def check_steps(cfg: DictConfig) -> None:
    """Check that an episode of the environment can have `env.steps` steps.

    Raises:
        ValueError: It cannot.
    """
    most = gym.spec(cfg.env.name).max_episode_steps
    if most is not None and not 1 <= cfg.env.steps <= most:
        raise ValueError(
            f"env.steps={cfg.env.steps}: expected 1 to {most}, the steps of an episode of "
            f"{cfg.env.name}"
        )


def launch(cfg: DictConfig, cluster: Cluster) -> dict[str, Any]:
    """Launch the three groups where the configuration places them."""
    placement = ComponentPlacement(cfg, cluster)
    check_shares(cfg, {name: placement.get_world_size(name) for name in placement.components})
    # Rank 0 of the actors sends new weights to all rollout workers.
    audience = [
        (cfg.actor.group_name, [0]),
        (cfg.rollout.group_name, list(range(placement.get_world_size("rollout")))),
    ]
    groups = {
        "env": EnvWorker.create_group(cfg),
        "rollout": RolloutWorker.create_group(cfg, audience),
        "actor": ActorWorker.create_group(cfg, audience),
    }
    return {
        name: group.launch(
            cluster, name=cfg[name].group_name, placement_strategy=placement.get_strategy(name)
        )
        for name, group in groups.items()
    }


def check_shares(cfg: DictConfig, sizes: dict[str, int]) -> None:
    """Check that environments and trajectories can be shared evenly.

    Raises:
        ValueError: They cannot.
    """
    stages, envs = cfg.env.pipeline_stages, cfg.env.num_envs
    for name in ("env", "rollout"):
        if envs % (stages * sizes[name]):
            raise ValueError(
                f"env.num_envs={envs}: expected a multiple of {stages} stages times "
                f"{sizes[name]} {name} workers"
            )
    if sizes["env"] * stages % sizes["actor"]:
        raise ValueError(
            f"{sizes['env']} env workers with {stages} stages make {sizes['env'] * stages} "
            f"trajectories in each iteration, which {sizes['actor']} actors cannot share evenly"
        )


def write_curve(progress: Progress, path: Path) -> None:
    """Plot the mean return of each iteration and of each evaluation."""
    from matplotlib.figure import Figure  # noqa: PLC0415  (slow, and needed once, at the end)

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(range(1, len(progress.curve) + 1), progress.curve, label="training")
    evaluations = progress.evaluations
    axes.plot(list(evaluations), list(evaluations.values()), "o", label="evaluation")
    axes.legend()
    axes.set(xlabel="iteration", ylabel="mean return of the episodes")
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main(sys.argv[1:])
