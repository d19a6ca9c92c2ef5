"""Loading snapshots into modules and dicts: reports, what is refused, hooks, and casts."""

import numpy as np
import pytest

from shoal.errors import ShoalValueError

torch = pytest.importorskip("torch")


class Tied(torch.nn.Module):
    """Two layers with one weight, and a third."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Linear(3, 3, bias=False)
        self.head = torch.nn.Linear(3, 3, bias=False)
        self.head.weight = self.embed.weight
        self.norm = torch.nn.LayerNorm(3)


def test_the_report_lists_the_outcome_of_each_name(snapshot_of):
    trained, fresh = Tied(), Tied()
    snapshot = snapshot_of(trained.state_dict() | {"step": 7})
    report = snapshot.load_into(fresh)
    assert report.loaded == ("embed.weight",)
    assert report.tied == ("head.weight",)
    assert report.unchanged == ("norm.weight", "norm.bias")
    assert report.missing == report.unexpected == report.differing == ()
    assert torch.equal(fresh.embed.weight, trained.embed.weight)
    assert fresh.head.weight is fresh.embed.weight
    text = "0 loaded, 3 unchanged, 1 tied, 0 missing, 0 unexpected, 0 differing"
    assert str(snapshot.load_into(fresh)) == text


def test_a_target_that_does_not_fit_is_refused_before_any_write(snapshot_of):
    snapshot = snapshot_of({"weight": torch.ones(2, 3), "extra": torch.ones(1)})
    module = torch.nn.Linear(3, 2)
    before = module.weight.clone()
    text = "nothing was loaded: missing in the snapshot: 'bias'; missing in the target: 'extra'"
    with pytest.raises(ShoalValueError, match=text):
        snapshot.load_into(module)
    text = r"'weight' has shape \(2, 3\), and shape \(4, 3\) in the target"
    with pytest.raises(ShoalValueError, match=text):
        snapshot.load_into(torch.nn.Linear(3, 4), strict=False)
    assert torch.equal(module.weight, before)
    report = snapshot.load_into(module, strict=False)
    assert (report.loaded, report.missing, report.unexpected) == (
        ("weight",), ("bias",), ("extra",),
    )  # fmt: skip
    assert (module.weight == 1).all()
    with pytest.raises(
        ShoalValueError, match="a target of type list: expected a module, or a dict"
    ):
        snapshot.load_into([])


def test_a_target_with_other_tied_tensors_is_refused_or_reported(snapshot_of):
    snapshot = snapshot_of({"a": torch.ones(3), "b": torch.zeros(3)})
    tied = torch.full((3,), 5.0)
    with pytest.raises(ShoalValueError, match="nothing was loaded: 'b' share their memory"):
        snapshot.load_into({"a": tied, "b": tied})
    assert tied[0] == 5
    report = snapshot.load_into({"a": tied, "b": tied}, strict=False)
    assert (report.loaded, report.differing) == (("a",), ("b",))
    assert tied[0] == 1


def test_values_are_compared_as_the_target_holds_them(snapshot_of):
    state = {"a": np.array([0.1, np.nan]), "t": torch.tensor([0.1, float("nan")]), "n": 1}
    snapshot = snapshot_of(state)
    target = {"a": np.zeros(2, np.float32), "t": torch.zeros(2, dtype=torch.bfloat16), "n": 1}
    assert snapshot.diff(target) == ("a", "t")
    snapshot.load_into(target)
    assert snapshot.diff(target) == ()
    assert snapshot.diff({"a": torch.as_tensor(state["a"]), "t": state["t"], "n": 2}) == ("n",)
    with pytest.raises(ShoalValueError, match=r"'n' has no tensor, and shape \(2,\) in the target"):
        snapshot.load_into({"n": torch.zeros(2)}, strict=False)


def test_tensors_are_compared_whatever_their_strides_and_views(snapshot_of):
    numbers = torch.tensor([1 + 2j, 3 - 4j])
    state = {
        "one of a column": torch.arange(6.0).view(3, 2)[1:2, 0],
        "conj": numbers.conj(),
        "negative": numbers.conj().imag,
    }
    snapshot = snapshot_of(state)
    assert snapshot.diff(state) == ()
    assert snapshot.diff(state | {"conj": numbers, "negative": numbers.imag}) == (
        "conj",
        "negative",
    )


def test_a_dict_of_tensors_and_arrays_is_loaded_in_place(snapshot_of):
    snapshot = snapshot_of(
        {
            "net": {"w": torch.ones(3), "same": torch.zeros(2)},
            "a": np.arange(3.0),
            "whole": np.array([1.7]),
            "half": torch.full((2,), 0.5, dtype=torch.bfloat16),  # which numpy lacks
            "step": 7,
        }
    )
    target = {
        "half": np.zeros(2, np.float16),
        "net": {"w": torch.zeros(3, dtype=torch.float64), "same": torch.zeros(2)},
        "a": np.zeros(3, np.float32),
        "whole": np.zeros(1, np.int64),
        "step": 0,
    }
    weight = target["net"]["w"]
    report = snapshot.load_into(target)
    assert report.loaded == ("half", "net.w", "a", "whole", "step")
    assert report.unchanged == ("net.same",)
    assert weight.tolist() == [1, 1, 1]
    assert target["a"].tolist() == [0, 1, 2]
    assert (target["whole"][0], target["step"], *target["half"]) == (1, 7, 0.5, 0.5)
    assert snapshot.diff(target) == ()


def test_an_array_that_cannot_be_written_to_is_refused_before_any_write(snapshot_of):
    target = {"a": np.zeros(1), "b": np.zeros(1)}
    target["b"].flags.writeable = False
    text = "nothing was loaded: the target's arrays 'b' cannot be written to"
    with pytest.raises(ShoalValueError, match=text):
        snapshot_of({"a": np.ones(1), "b": np.ones(1)}).load_into(target)
    assert target["a"][0] == 0


class Averaging(torch.nn.Module):
    """A module whose extra state is an array, which each load replaces."""

    mean = np.zeros(2)

    def get_extra_state(self):
        return self.mean

    def set_extra_state(self, state):
        self.mean = state


def test_an_array_that_each_load_replaces_need_not_be_written_to(snapshot_of):
    module = Averaging()
    for number in range(3):
        snapshot_of({"_extra_state": np.full(2, number)}).load_into(module)
        assert module.mean.tolist() == [number, number]


def test_small_values_that_hold_arrays_are_compared(snapshot_of):
    array = np.ones(2)
    snapshot = snapshot_of({"t": (array, [np.float64(1)], array)})
    assert snapshot.diff({"t": (np.ones(2), [np.float64(1)], array)}) == ()
    assert snapshot.diff({"t": (np.ones(2), [np.float64(1)], np.zeros(2))}) == ("t",)
    assert snapshot.diff({"t": (np.ones(2), [np.float64(1)])}) == ("t",)


class Fused(torch.nn.Module):
    """A layer that has q and k as one parameter, and as two in its state dict."""

    def __init__(self, drops=False):
        super().__init__()
        self.qk = torch.nn.Parameter(torch.randn(4, 3))
        self._drops = drops
        self._register_state_dict_hook(self._split)
        self.register_load_state_dict_pre_hook(self._fuse)

    @staticmethod
    def _split(module, state, prefix, _):
        fused = state.pop(f"{prefix}qk")
        state[f"{prefix}q"], state[f"{prefix}k"] = fused[:2], fused[2:]

    @staticmethod
    def _fuse(module, state, prefix, *_):
        parts = [state.pop(f"{prefix}{name}") for name in ("q", "k")]
        state[f"{prefix}qk"] = module.qk.detach() if module._drops else torch.cat(parts)


def test_hooks_of_a_fused_layer_run_or_are_reported(snapshot_of):
    trained = torch.nn.Sequential(Fused())
    snapshot = snapshot_of(trained.state_dict())
    assert list(snapshot) == ["0.q", "0.k"]
    fresh = torch.nn.Sequential(Fused())
    assert snapshot.load_into(fresh).loaded == ("0.q", "0.k")
    assert torch.equal(fresh[0].qk, trained[0].qk)
    stale = torch.nn.Sequential(Fused(drops=True))
    text = "the module has other values of '0.q', '0.k' after the load: hooks of '0'"
    with pytest.raises(ShoalValueError, match=text):
        snapshot.load_into(stale)
    assert snapshot.load_into(stale, strict=False).differing == ("0.q", "0.k")


def test_floating_point_tensors_are_cast_on_the_way(snapshot_of):
    whole = torch.arange(12.0).reshape(3, 4)
    state = {
        "whole": whole,
        "turned": whole.t(),
        "row": whole[1],
        "gaps": torch.arange(20.0)[::4],
        "int": torch.arange(3),
        "same": torch.ones(2, dtype=torch.bfloat16),
        "array": np.ones(2),
    }
    snapshot = snapshot_of(state, torch.bfloat16)
    for name in ("whole", "turned", "row", "gaps", "same"):
        assert snapshot[name].dtype == torch.bfloat16
        assert torch.equal(snapshot[name], state[name].to(torch.bfloat16))
    assert snapshot["int"].dtype == torch.int64
    assert snapshot["array"].dtype == np.float64
    snapshot["whole"][1, 0] = 99
    assert snapshot["turned"][0, 1] == snapshot["row"][0] == 99
    mixed = {"floats": whole, "bits": whole.view(torch.int32)}
    with pytest.raises(
        ShoalValueError, match=r"'floats' and 'bits' share memory .* float32 and int32"
    ):
        snapshot_of(mixed, torch.bfloat16)
