"""The embodied example in this process: `shoal.testing` instead of Ray."""

import ast
from pathlib import Path

import numpy as np
import pytest
import torch  # noqa: TID253  (what is tested here is written with it)
import torch.distributed as dist  # noqa: TID253  (as above)

from shoal import Channel, ComponentPlacement, Worker
from shoal.testing import local_cluster

pytestmark = pytest.mark.nightly

EXAMPLE = Path(__file__).parents[2] / "examples" / "embodied"
AUDIENCE = [("actor", [0]), ("rollout", [0, 1])]


class Weights(Worker):
    """Stands for the actors: sends the weights of a new network."""

    def __init__(self, policy):
        super().__init__()
        self._policy = policy

    def send_weights(self, version):
        weights = {**self._policy.state_dict(), "version": torch.tensor([version])}
        self.broadcast(weights, groups=AUDIENCE, src=("actor", 0))


@pytest.fixture
def cfg(embodied, tmp_path):
    small = ["env.num_envs=12", "env.steps=8", "actor.epochs=2", "actor.minibatch=24"]
    # torch's process group is one per process, so there is one actor.
    one_actor = ["cluster.component_placement.actor.placement=0:0", "runner.iterations=2"]
    return embodied.run.read_config([*small, *one_actor, f"runner.output={tmp_path}"])


def train(embodied, cfg):
    with local_cluster(cluster_cfg=cfg) as cluster:
        try:
            groups = embodied.run.launch(cfg, cluster)
            return embodied.runner.Runner(cfg, **groups).run()
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()


def test_a_run_goes_through_all_groups_and_repeats_itself(embodied, cfg, capsys, tmp_path):
    first, second = train(embodied, cfg), train(embodied, cfg)
    assert len(first) == 2
    assert all(mean < 0 for mean in first)
    assert first[0] != first[1]
    assert first == second
    shown = capsys.readouterr().out
    assert shown.count("iteration  1   mean return") == 2
    assert "times of env: interact" in shown
    trace = (tmp_path / "trace.jsonl").read_text()
    for name in ("roll out", "interact", "generate", "receive_weights", "send_weights", "train"):
        assert f'"name": "{name}"' in trace


def test_each_environment_gets_the_answers_to_its_own_observations(embodied, cfg):
    policy = embodied.model.Policy(cfg.model, seed=3)
    with local_cluster(cluster_cfg=cfg) as cluster:
        placement = ComponentPlacement(cfg, cluster)
        env = embodied.env_worker.EnvWorker.create_group(cfg).launch(
            cluster, placement.get_strategy("env"), name="env"
        )
        rollout = embodied.rollout_worker.RolloutWorker.create_group(cfg, AUDIENCE).launch(
            cluster, placement.get_strategy("rollout"), name="rollout"
        )
        actor = Weights.create_group(policy).launch(
            cluster, placement.get_strategy("actor"), name="actor"
        )
        receiving, sending = rollout.receive_weights(), actor.send_weights(7)
        assert (receiving.wait(), sending.wait()) == ([7, 7], [None])
        channels = [Channel.create(name) for name in ("observations", "actions", "trajectories")]
        playing, answering = env.interact(*channels), rollout.generate(*channels[:2])
        returns = playing.wait()
        answering.wait()
        taken = channels[2].drain(key=0)
        assert [channel.qsize() for channel in channels[:2]] == [0, 0]
    assert sorted(number for number, _ in taken) == list(range(6))  # 3 env workers, 2 stages
    assert [len(of_rank) for of_rank in returns] == [4, 4, 4]
    for _, trajectory in taken:
        seen = torch.from_numpy(trajectory["observations"])
        assert seen.shape == (2, 9, 3)
        with torch.no_grad():
            means, stds, values = policy(seen)
        np.testing.assert_allclose(trajectory["values"], values.squeeze(-1), atol=1e-5)
        actions = torch.from_numpy(trajectory["actions"])
        log_probs = embodied.model.log_probabilities(means[:, :-1], stds, actions)
        np.testing.assert_allclose(trajectory["log_probs"], log_probs, atol=1e-5)
    sums = [s for _, one in sorted(taken) for s in one["rewards"].sum(1)]
    np.testing.assert_allclose(sums, [value for of_rank in returns for value in of_rank])


def test_shares_that_do_not_fit_are_told_before_a_launch(embodied, cfg):
    sizes = {"env": 3, "rollout": 2, "actor": 2}
    embodied.run.check_shares(cfg, sizes)
    with pytest.raises(ValueError, match=r"num_envs=12: expected a multiple of 2 .* 5 rollout"):
        embodied.run.check_shares(cfg, {**sizes, "rollout": 5})
    with pytest.raises(ValueError, match="6 trajectories in each iteration, which 4 actors"):
        embodied.run.check_shares(cfg, {**sizes, "actor": 4})


def test_an_unknown_setting_is_an_error(embodied):
    with pytest.raises(Exception, match="Key 'step' is not in struct"):
        embodied.run.read_config(["env.step=8"])


def test_a_curve_that_does_not_rise_is_an_error(embodied):
    check = embodied.runner.check_curve
    assert "-9.0 in the first 2 iterations and -3.0 in the last 2" in check([-10, -8, -4, -2], 2, 5)
    with pytest.raises(ValueError, match="should have risen by 7"):
        check([-10, -8, -4, -2], 2, 7)
    with pytest.raises(ValueError, match="should have risen"):
        check([-10, float("nan")], 1, 1)


def test_the_example_is_a_program_for_rlinf(embodied):
    """It imports the scheduler in one way only, and does not mention shoal in its code."""
    found = []
    for path in EXAMPLE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                found.append(node.module)
            elif isinstance(node, ast.Import):
                found += [name.name for name in node.names]
    roots = {name for name in found if name.partition(".")[0] in ("rlinf", "shoal")}
    assert roots == {"rlinf.scheduler"}
