"""The driver of the example: trains CartPole with PPO.

    python examples/cartpole/train.py

It starts two groups of workers, which play and learn, where `cartpole.yaml` places them. Episodes go
from one to the other through a channel, and policies come back as versions of weights. The driver
calls the workers' methods until the policy is good enough, and writes to the output folder:

- `learning_curve.png`: the mean score against the steps played,
- `policy.pt`: the weights, for `Network.load_state_dict` (see `ppo.py`),
- `plan.yaml`: the node and devices of each worker.

The exit code is 0 if the target was reached, else 1.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
import yaml
from actor import Actor
from report import Board, Progress, placement_table, times_table, write_curve
from rich.console import Console
from rollout import Rollout
from settings import Settings

from shoal import Channel, Cluster, ComponentPlacement, Weights, WorkerGroupFuncResult

HERE = Path(__file__).parent


def main(
    config: Annotated[Path, typer.Argument(exists=True)] = HERE / "cartpole.yaml",
    output: Annotated[Path, typer.Option(help="Folder of results.")] = Path("outputs/cartpole"),
    target: Annotated[float, typer.Option(help="Stop at this mean of 100 scores.")] = 475.0,
    max_seconds: Annotated[float, typer.Option(help="Give up after this long.")] = 300.0,
    seed: Annotated[int | None, typer.Option(help="Replaces the seed in CONFIG.")] = None,
) -> None:
    """Train a CartPole policy on the workers that CONFIG places."""
    console = Console()
    document = yaml.safe_load(config.read_text())
    settings = read_settings(document, seed)

    # The `cluster:` section has the number of nodes and the placement of the components.
    with Cluster(cluster_cfg=document) as cluster:
        placement = ComponentPlacement(document, cluster)
        plan = resolve(placement, cluster)
        console.print(placement_table(plan))

        num_rollouts = placement.get_world_size("rollout")
        num_actors = placement.get_world_size("actor")
        steps = num_rollouts * settings.environments * settings.steps
        if num_rollouts * settings.environments % num_actors:
            raise typer.BadParameter(
                f"{num_rollouts} rollout workers with {settings.environments} environments each "
                f"cannot be shared evenly by {num_actors} actors"
            )

        # A group runs one worker class in a process for each placement. `launch` returns at once,
        # so the groups start side by side. `ready` waits, and raises the error of a constructor.
        rollouts = Rollout.create_group(settings, num_actors).launch(
            cluster, placement.get_strategy("rollout"), name="rollout"
        )
        actors = Actor.create_group(settings, steps // num_actors).launch(
            cluster, placement.get_strategy("actor"), name="actor"
        )
        groups = {"rollout": rollouts, "actor": actors}
        for group in groups.values():
            group.ready()
        # A channel is a set of queues, one for each key. Here a key is an actor's rank.
        episodes = Channel.create("episodes", maxsize=1024)
        policies = Weights.create("policies")

        progress = Progress()
        with Board(console, progress) as board:
            while progress.mean < target and progress.seconds < max_seconds:
                # One iteration is one call on each group, at the same time. The groups exchange
                # data twice: the actors publish a policy, and get the episodes played with it.
                calls = [rollouts.play(episodes, policies), actors.learn(episodes, policies)]
                while not finished(calls):
                    board.refresh(lambda: sum(episodes.qsize(rank) for rank in range(num_actors)))
                    time.sleep(0.02)
                scores, _ = (call.wait() for call in calls)  # of each rank
                progress.add([score for rank in scores for score in rank], steps)

        times = {name: group.pop_execution_times().wait() for name, group in groups.items()}
        console.print(times_table(times, progress.seconds))
        (weights,) = actors.execute_on(0).state_dict().wait()
        write_results(output, plan, progress, weights)

    seconds = f"{progress.seconds:.0f} s"
    outcome = f"mean score {progress.mean:.1f} after {progress.steps} steps, {seconds}"
    if progress.mean < target:
        console.print(f"[red]target {target:g} not reached[/]: {outcome}", soft_wrap=True)
        raise typer.Exit(1)
    console.print(f"[green]target {target:g} reached[/]: {outcome}; see {output}", soft_wrap=True)


def finished(calls: Sequence[WorkerGroupFuncResult]) -> bool:
    """Say whether all calls have ended; raise if one failed, because others may wait for it."""
    over = [call for call in calls if call.done()]
    for call in over:
        call.wait()
    return len(over) == len(calls)


def read_settings(document: Any, seed: int | None) -> Settings:
    """Read the `train:` section; a seed from the command line overrides its seed."""
    section = document.get("train") if isinstance(document, dict) else None
    try:
        return Settings.from_mapping((section or {}) | ({} if seed is None else {"seed": seed}))
    except ValueError as error:
        raise typer.BadParameter(f"CONFIG: {error}") from None


def resolve(placement: ComponentPlacement, cluster: Cluster) -> list[dict[str, Any]]:
    """Return the placement as one entry for each worker."""
    return [
        {
            "component": component,
            "rank": place.rank,
            "node": place.cluster_node_rank,
            "address": cluster.get_node_ip(place.cluster_node_rank),
            "devices": list(place.visible_accelerators),
        }
        for component in placement.components
        for place in placement.get_strategy(component).get_placement(cluster)
    ]


def write_results(
    output: Path, plan: list[dict[str, Any]], progress: Progress, weights: dict[str, Any]
) -> None:
    """Write the files that the module's docstring lists."""
    output.mkdir(parents=True, exist_ok=True)
    (output / "plan.yaml").write_text(yaml.safe_dump(plan, sort_keys=False))
    torch.save(weights, output / "policy.pt")
    write_curve(progress, output / "learning_curve.png")


if __name__ == "__main__":
    typer.run(main)
