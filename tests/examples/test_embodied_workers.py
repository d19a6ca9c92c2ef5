"""The embodied example in this process: `shoal.testing` instead of Ray."""

import ast
import contextlib
from pathlib import Path

import numpy as np
import pytest
import torch  # noqa: TID253  (what is tested here is written with it)
import torch.distributed as dist  # noqa: TID253  (as above)

import shoal
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


@contextlib.contextmanager
def runner_of(embodied, cfg):
    folder, progress = embodied.checkpoints.find_checkpoint(cfg)
    with local_cluster(cluster_cfg=cfg) as cluster:
        try:
            groups = embodied.run.launch(cfg, cluster)
            yield embodied.runner.Runner(cfg, **groups, folder=folder, progress=progress)
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()


def train(embodied, cfg):
    with runner_of(embodied, cfg) as runner:
        return runner.run()


def test_a_run_goes_through_all_groups_and_repeats_itself(embodied, cfg, capsys, tmp_path):
    first, second = train(embodied, cfg).curve, train(embodied, cfg).curve
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


def test_a_resumed_run_goes_on_as_if_it_had_not_been_interrupted(embodied, cfg, capsys, tmp_path):
    cfg.runner.iterations, cfg.runner.save_interval, cfg.runner.eval_interval = 4, 2, 2
    whole = train(embodied, cfg)
    assert sorted(whole.evaluations) == [2, 4]
    checkpoint = tmp_path / "checkpoints" / "iteration_2"
    cfg.runner.resume_dir, cfg.runner.output = str(checkpoint), str(tmp_path / "resumed")
    resumed = train(embodied, cfg)
    assert resumed == whole
    assert f"resumed after 2 iterations, from {checkpoint}" in capsys.readouterr().out
    for output in (tmp_path, tmp_path / "resumed"):
        assert (output / "checkpoints" / "iteration_4" / "progress.json").exists()
    # The last checkpoint, evaluated by itself, has the return that the run printed.
    cfg.runner.resume_dir, cfg.runner.only_eval = "auto", True
    with runner_of(embodied, cfg) as runner:
        assert runner.evaluate() == whole.evaluations[4]


def test_checkpoints_that_cannot_be_resumed_are_refused(embodied, cfg, tmp_path):
    find, runner = embodied.checkpoints.find_checkpoint, cfg.runner
    assert find(cfg) == (None, embodied.checkpoints.Progress())
    runner.resume_dir = "auto"
    assert find(cfg)[0] is None  # the first run of a job that is always started with `auto`
    runner.only_eval = True
    with pytest.raises(ValueError, match="only_eval needs a checkpoint: set"):
        find(cfg)
    folder = embodied.checkpoints.folder_of(cfg, 2)
    folder.mkdir(parents=True)
    runner.resume_dir = str(folder)
    with pytest.raises(ValueError, match=r"is not a complete checkpoint: it lacks progress"):
        find(cfg)
    embodied.checkpoints.write_progress(folder, embodied.checkpoints.Progress([-2.0, -1.0]))
    assert find(cfg)[0] == folder
    embodied.checkpoints.begin(folder)  # another run writes there, and may be killed
    with pytest.raises(ValueError, match="is not a complete checkpoint"):
        find(cfg)
    embodied.checkpoints.write_progress(folder, embodied.checkpoints.Progress([-2.0, -1.0]))
    runner.only_eval, runner.resume_dir = False, "auto"
    with pytest.raises(ValueError, match=r"has 2 iterations already; .* runner.iterations=2"):
        find(cfg)


def test_more_steps_than_an_episode_has_are_refused(embodied, cfg):
    embodied.run.check_steps(cfg)
    for steps in (0, 201):
        cfg.env.steps = steps
        with pytest.raises(ValueError, match=f"env.steps={steps}: expected 1 to 200, the steps of"):
            embodied.run.check_steps(cfg)


def test_the_file_for_two_nodes_replaces_the_placement_alone(embodied):
    one = embodied.run.read_config([])
    two = embodied.run.read_config([str(EXAMPLE / "two_nodes.yaml"), "env.steps=8"])
    made = shoal.plan(two, "2x0/2cpu")
    nodes = {c.name: {process.node for process in c.processes} for c in made.components}
    assert nodes == {"env": {0}, "rollout": {1}, "actor": {0, 1}}
    assert (two.env.steps, two.actor) == (8, one.actor)


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
        playing, answering = env.interact(0, *channels), rollout.generate(*channels[:2])
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
