"""The driver of the example: launches the groups, trains, and checks that the policy has learned.

    python -m shoal.compat.rlinf examples/embodied/run.py [KEY=VALUE ...]

Arguments replace values of `embodied.yaml`, for example `runner.iterations=5`. The exit code is 1
if the mean return has not risen enough.
"""

import sys
from pathlib import Path
from typing import Any

from actor_worker import ActorWorker
from env_worker import EnvWorker
from omegaconf import DictConfig, OmegaConf
from rlinf.scheduler import Cluster, ComponentPlacement
from rollout_worker import RolloutWorker
from runner import Runner, check_curve

CONFIG = Path(__file__).with_name("embodied.yaml")


def main(arguments: list[str]) -> None:
    """Train with the configuration, and write the learning curve."""
    cfg = read_config(arguments)
    output = Path(cfg.runner.output)
    output.mkdir(parents=True, exist_ok=True)
    # Each worker's output also goes into a file: logs/<group>/rank_<rank>.log.
    cluster = Cluster(cluster_cfg=cfg.cluster, distributed_log_dir=str(output / "logs"))
    curve = Runner(cfg, **launch(cfg, cluster)).run()
    write_curve(curve, output / "learning_curve.png")
    try:
        print(f"learned: {check_curve(curve, **cfg.runner.check)} (results: {output})")
    except ValueError as error:
        sys.exit(f"not learned: {error} (results: {output})")


def read_config(arguments: list[str]) -> DictConfig:
    """Read the configuration; arguments such as `env.steps=100` replace its values."""
    cfg = OmegaConf.load(CONFIG)
    OmegaConf.set_struct(cfg, value=True)  # an unknown key is an error
    return OmegaConf.merge(cfg, OmegaConf.from_cli(arguments))


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


def write_curve(curve: list[float], path: Path) -> None:
    """Plot the mean return of each iteration."""
    from matplotlib.figure import Figure  # noqa: PLC0415  (slow, and needed once, at the end)

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(curve)
    axes.set(xlabel="iteration", ylabel="mean return of the episodes")
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main(sys.argv[1:])
