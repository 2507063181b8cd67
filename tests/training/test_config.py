"""What a user chooses, and what is computed from it: settings, optimisers, model tables, pace, statistics, bounds."""

import json
import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dear_mpi.kernels.dtypes import DTYPES
from dear_mpi.kernels.optimizers import OPTIMIZERS, SGD, Adam, Optimizer
from dear_mpi.models import synthetic
from dear_mpi.models.layer import is_exchanging
from dear_mpi.models.synthetic import Module, load_modules, synthetic_layers
from dear_mpi.ranks.world import run_world
from dear_mpi.reporting.stats import median, ratio
from dear_mpi.training.runs.config import PRESETS, Config, kind_of
from dear_mpi.training.runs.train import train
from dear_mpi.training.schedules import SCHEDULES
from tests.training_checks import settings


@pytest.mark.parametrize("name", [*PRESETS, "synthetic:resnet50", "path/to/mine.py:build"])
def test_preset_then_override(name):
    preset = PRESETS[kind_of(name)]
    assert Config.of({"model": name, "seed": None}) == Config(**{"model": name} | preset)
    assert Config.of({"model": name, "lr": 7.0, "iterations": 5}).lr == 7.0
    assert Config.of({}) == Config.of({"model": None}) == Config.of({"model": Config.model})


def test_a_model_of_an_extra_that_is_not_there_names_it(monkeypatch):
    monkeypatch.setattr("dear_mpi.collectives.program.user_file.entry_points_of", lambda group: {})
    said = r"model 'cnn' is unknown\. Allowed: .*; cnn is in the extra dear_mpi/contrib/models"
    with pytest.raises(ValueError, match=said):
        Config.of({"model": "cnn"})


BAD_SETTINGS = {
    "model 'mpl' is unknown: did you mean 'mlp'?": {"model": "mpl"},
    "model 'sinthetic' is unknown: did you mean 'synthetic'?": {"model": "sinthetic:resnet50"},
    "batch must be at least 1, not 0": {"batch": 0},
    "iterations must be at least 1, not -2": {"iterations": -2},
    "context must be at least 1, not 0": {"model": "mine.py:build", "context": 0},
    "forward_time must be from 0 to 86400 seconds, not -0.1": {"model": "synthetic:resnet50", "forward_time": -0.1},
    "forward_time must be from 0 to 86400 seconds, not nan": {"model": "synthetic:resnet50", "forward_time": math.nan},
    "forward_time must be from 0 to 86400 seconds, not 10000000000.0": {
        "model": "synthetic:resnet50",
        "forward_time": 1e10,
    },
    "backward_time must be from 0 to 86400 seconds, not -1": {"model": "synthetic:resnet50", "backward_time": -1},
    "context does not apply to the model 'mlp'": {"model": "mlp", "context": 64},
    "forward_time does not apply to the model 'mlp'": {"model": "mlp", "forward_time": 0.1},
    "straggler does not apply to the model 'mine.py:build'": {"model": "mine.py:build", "straggler": "0:3"},
    "data does not apply to the model 'synthetic:resnet50'": {"model": "synthetic:resnet50", "data": "digits"},
    "setting 'iteration' is unknown: did you mean 'iterations'?": {"iteration": 5},
    "device 'gpu' is unknown: did you mean 'cpu'? Allowed: cpu, cuda": {"device": "gpu"},
    "momentum must be finite and not negative, not -0.9": {"optimizer": "sgd", "momentum": -0.9},
    "weight_decay must be finite and not negative, not -1": {"weight_decay": -1},
    "seed must not be negative, not -1": {"seed": -1},
    "optimizer 'adma' is unknown: did you mean 'adam' or 'adamw'? Allowed: sgd, adam, adamw": {"optimizer": "adma"},
    "lr must be above zero, not 0": {"lr": 0},
    "lr must be above zero, not -0.1": {"lr": -0.1},
    "lr must be above zero, not nan": {"lr": math.nan},
    "lr must be above zero, not inf": {"lr": math.inf},
    "momentum is not a setting of the optimizer adam, which takes lr, beta1, beta2, epsilon, weight_decay": {
        "momentum": 0.0
    },
    "beta1 is not a setting of the optimizer sgd, which takes lr, momentum, nesterov, weight_decay": {
        "optimizer": "sgd:beta1=0.5"
    },
    "beta1 and beta2 must be below 1, not 0.9 and 1.0": {"optimizer": "adam:beta2=1"},
    "epsilon must be above zero in fp32, not 0: an element without a gradient": {"optimizer": "adam:epsilon=0"},
    "epsilon must be above zero in fp32, not 7e-46": {"optimizer": "lamb:epsilon=7e-46"},
    "nesterov is not a setting of the optimizer adam": {"optimizer": "adam:nesterov=0"},
    "nesterov needs a momentum above zero": {"optimizer": "sgd:nesterov=1"},
    "optimizer 'adam:0.5': write settings like adam:lr=0.1, not '0.5'": {"optimizer": "adam:0.5"},
    "optimizer 'adam:lr=few': lr must be a number, not 'few'": {"optimizer": "adam:lr=few"},
    "optimizer adam has lr twice": {"optimizer": "adam:lr=1:lr=2"},
}
BAD_CONSTANTS = {
    "beta1 and beta2 must be below 1, not 1 and 0.999": {"beta1": 1},
    "beta2 must be finite and not negative, not nan": {"beta2": math.nan},
}


@pytest.mark.parametrize("message", [*BAD_SETTINGS, *BAD_CONSTANTS])
def test_bad_choices(message):
    with pytest.raises(ValueError) as error:  # noqa: PT011 (the message is compared as it is, not as a pattern)
        Config.of(BAD_SETTINGS[message]) if message in BAD_SETTINGS else Adam(**BAD_CONSTANTS[message])
    assert message in str(error.value)


@pytest.mark.parametrize(("choices", "optimizer", "arrays"), [
    ({"optimizer": "sgd"}, SGD(0.1), 0),
    ({"optimizer": "sgd", "lr": 0.2, "weight_decay": 0.1}, SGD(0.2, weight_decay=0.1), 0),
    ({"optimizer": "sgd:nesterov=1", "momentum": 0.9}, SGD(0.1, 0.9, True), 1),
    ({"optimizer": "adam"}, Adam(3e-3), 2),
    ({"optimizer": "adam", "lr": 0.2, "weight_decay": 0.1}, Adam(0.2, weight_decay=0.1), 2),
    ({"optimizer": "adam:beta1=0.5:beta2=0.7:epsilon=0.2"}, Adam(beta1=0.5, beta2=0.7, epsilon=0.2), 2),
])  # fmt: skip
def test_optimizers(choices, optimizer, arrays):
    assert Config.of(choices).new_optimizer() == optimizer
    for dtype, wide in (("fp64", "fp64"), ("fp32", "fp32"), ("bf16", "fp32")):
        state = optimizer.new_state(np.ones((2, 3), DTYPES[dtype]))
        assert [(a.shape, a.dtype, a.any()) for a in state] == [((2, 3), DTYPES[wide], False)] * arrays


@dataclass(frozen=True)
class Lion(Optimizer):
    """A user's own: the sign of a mean of gradients (Chen et al. 2023)."""

    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.99
    weight_decay: float = 0.0
    state_arrays = 1

    def update(self, iteration, value, grad, state):
        (mean,) = state
        value -= self.lr * (np.sign(self.beta1 * mean + (1 - self.beta1) * grad) + self.weight_decay * value)
        mean += (1 - self.beta2) * (grad - mean)


@pytest.mark.parametrize("threads", [1, 3])
def test_a_new_optimizer_is_a_class_and_a_line_in_the_table(threads, monkeypatch):
    monkeypatch.setitem(OPTIMIZERS, "lion", Lion)
    config = Config.of(settings(optimizer="lion", weight_decay=0.1, iterations=30))
    loss = run_world(lambda world: train(config, world), threads=threads)["loss"]
    assert loss[-1] < loss[0] / 2
    with pytest.raises(ValueError, match="momentum is not a setting of the optimizer lion, which"):
        Config.of({"optimizer": "lion", "momentum": 0.9})


@pytest.mark.parametrize(("name", "modules", "tensors", "parameters"), [
    ("resnet50", 107, 161, 25_557_032),
    ("densenet201", 402, 604, 20_013_928),
    ("inceptionv4", 299, 449, 42_679_816),
    ("bert_base", 105, 206, 110_111_042),
    ("bert_large", 201, 398, 336_232_258),
])  # fmt: skip
def test_totals_of_the_papers_models(name, modules, tensors, parameters):
    table = load_modules(name)
    counts = [count for module in table for count in module.counts]
    assert (len(table), len(counts), sum(counts)) == (modules, tensors, parameters)


ROW = {"name": "a", "params": [3, 4], "fwd_flops": 10}


def write(tmp_path, content):
    path = tmp_path / "table.json"
    path.write_text(content)
    return str(path)


def test_a_users_table(tmp_path):
    rows = [ROW, {"name": "b", "params": [], "fwd_flops": 2.5}]
    modules = [Module("a", (3, 4), 10.0), Module("b", (), 2.5)]
    assert load_modules(write(tmp_path, json.dumps({"modules": rows}))) == modules
    called = [row | {"fwd_call": -number} for number, row in enumerate(rows)]
    assert load_modules(write(tmp_path, json.dumps({"modules": called}))) == modules[::-1], "the order of forward"
    exchanges = [ROW | {"exchange_bytes": 4096}]
    assert load_modules(write(tmp_path, json.dumps({"modules": exchanges})))[0].exchange_bytes == 4096


NEEDS = "a module needs name, params and fwd_flops"
BAD_TABLES = {
    "no JSON": ("{", "is no readable JSON file"),
    "no modules": (json.dumps({"layers": [ROW]}), NEEDS),
    "a list": (json.dumps([ROW]), NEEDS),
    "no row": (json.dumps({"modules": [3]}), NEEDS),
    "empty": (json.dumps({"modules": []}), "some module must have params"),
    "no parameters": (json.dumps({"modules": [ROW | {"params": []}]}), "some module must have params"),
    "negative FLOPs": (json.dumps({"modules": [ROW | {"fwd_flops": -1}]}), "fwd_flops must be finite and not negative"),
    "FLOPs not a number": (json.dumps({"modules": [ROW | {"fwd_flops": math.nan}]}), "synthetic model"),
    "FLOPs of text": (json.dumps({"modules": [ROW | {"fwd_flops": "many"}]}), NEEDS),
    **{
        f"count {value!r}": (json.dumps({"modules": [ROW | {"params": [1, value]}]}), f"above zero, not {value!r}")
        for value in (-3, 0, 1.5, "7", None)
    },
    **{
        f"exchange {value!r}": (
            json.dumps({"modules": [ROW | {"exchange_bytes": value}]}),
            f"exchange_bytes must be a whole number from 0 to 10000000000000, not {value!r}",
        )
        for value in (-1, 1.5, "7", None, True, 10**13 + 1)
    },
    **{
        f"no {key}": (json.dumps({"modules": [{k: v for k, v in ROW.items() if k != key}]}), f"KeyError('{key}')")
        for key in ROW
    },
}


@pytest.mark.parametrize("what", BAD_TABLES)
def test_bad_tables(tmp_path, what):
    content, message = BAD_TABLES[what]
    path = write(tmp_path, content)
    with pytest.raises(ValueError) as error:  # noqa: PT011 (the message is compared as it is, not as a pattern)
        load_modules(path)
    assert str(error.value).startswith(f"synthetic model {path!r}")
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("name", "said"),
    [("missing.json", "is no readable JSON file"), ("resnet5", "is unknown: did you mean 'resnet50'")],
)
def test_unknown_names(name, said):
    with pytest.raises(ValueError, match=f"synthetic model '{name}' {said}"):
        load_modules(name)


class Clock:
    """Stands for the module time: nothing sleeps. Every look takes ``look_s``, every sleep ``late_s`` too long."""

    def __init__(self, look_s=0.0, late_s=0.0):
        self.now_s, self.look_s, self.late_s, self.slept = 0.0, look_s, late_s, []

    def perf_counter(self):
        self.now_s += self.look_s
        return self.now_s

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now_s += seconds + self.late_s


CLOCKS = {"exact": Clock(), "late": Clock(0, 3e-3), "slow and late": Clock(1e-6, 3e-3)}


@pytest.mark.parametrize("name", CLOCKS)
@given(times=st.lists(st.floats(0, 0.02), max_size=30))
def test_pace_keeps_the_sum_of_the_times(name, times):
    """To what is too short to sleep for, and the last sleep's lateness."""
    clock = CLOCKS[name]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(synthetic, "time", clock)
        pace, begin_s = synthetic.ComputeTime(), clock.now_s
        for seconds in times:
            pace.spend(seconds, clock.perf_counter())
    assert clock.now_s - begin_s == pytest.approx(sum(times), abs=1e-3 + clock.late_s + 1e-4)


def test_pace_saves_up_short_times_and_counts_what_was_computed(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(synthetic, "time", clock)
    pace = synthetic.ComputeTime()
    for _ in range(8):
        pace.spend(0.25e-3, clock.now_s)
    assert clock.slept == pytest.approx([1.25e-3])
    pace.spend(5e-3, clock.now_s - 2e-3)
    assert clock.slept == pytest.approx([1.25e-3, 0.75e-3 + 3e-3])


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_synthetic_layers(dtype, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(synthetic, "time", clock)
    modules = [Module("a", (30, 4), 30.0), Module("relu", (), 0.0), Module("b", (50,), 10.0)]
    rng = np.random.default_rng(0)
    layers = synthetic_layers(modules, forward_s=4.0, backward_s=8.0, dtype=dtype, rng=rng)
    parameters = [parameter for layer in layers for parameter in layer.parameters]
    assert [(p.name, p.value.shape) for p in parameters] == [("a.0", (30,)), ("a.1", (4,)), ("b.0", (50,))]
    x, places = np.zeros(0), [parameter.grad for parameter in parameters]
    assert all(layer.forward(x) is x for layer in layers)
    assert clock.slept == pytest.approx([3, 1])
    assert all(layer.backward(x) is x for layer in reversed(layers))
    assert clock.slept == pytest.approx([3, 1, 2, 6])
    for layer in reversed(layers):
        assert layer.backward_input(x) is x
        layer.backward_weights()
    assert clock.slept[4:] == pytest.approx([1, 1, 3, 3]), "half of it for the weights"
    for parameter, place in zip(parameters, places, strict=True):
        assert parameter.grad is place, "a bucket may lie there"
        assert place.dtype == dtype
        assert (place != 0).all()


def test_a_synthetic_layer_exchanges_before_each_pass():
    asked, modules = [], [Module("a", (30,), 1.0, exchange_bytes=64), Module("b", (50,), 1.0)]
    how = {"dtype": np.dtype("f4"), "rng": np.random.default_rng(0), "exchange": asked.append}
    one, other = synthetic_layers(modules, forward_s=0.0, backward_s=0.0, **how)
    assert (is_exchanging(one), is_exchanging(other)) == (True, False)
    x = np.zeros(3)
    assert one.exchange_forward(x) is x is one.exchange_backward(x)
    assert asked == [64, 64]


@pytest.mark.parametrize(("count", "low", "high"), [(20, 5, 16), (100, 40, 61), *((n, 1, n) for n in range(1, 7))])
def test_median_and_the_ranks_of_its_interval(count, low, high):
    samples = np.random.default_rng(0).permutation(np.arange(1, count + 1)).astype(float).tolist()
    result = median(samples)
    assert (result.value, result.low, result.high) == ((count + 1) / 2, low, high)


@given(samples=st.lists(st.floats(1, 100), min_size=1, max_size=20), factor=st.sampled_from([0.5, 1, 4]))
def test_ratio_of_the_same_samples(samples, factor):
    result = ratio([factor * sample for sample in samples], samples)
    assert result.value == factor
    assert result.low <= factor <= result.high


def test_ratio_finds_a_difference():
    samples = np.random.default_rng(0).permutation(np.linspace(0.95, 1.05))
    result = ratio(2 * samples, samples)
    assert 1.8 < result.low < 2 < result.high < 2.2


@given(all_reduce_s=st.floats(0, 100))
def test_gain_of_dear_over_wfbp(all_reduce_s):
    """Where forward takes 1 s: none up to 2 s, most at 4 s."""

    def gain(seconds):
        network = {"all_reduce": seconds, "reduce_scatter": seconds / 2, "all_gather": seconds / 2}
        return SCHEDULES["wfbp"].bound(1, 2, network) / SCHEDULES["dear"].bound(1, 2, network)

    assert 1 <= gain(all_reduce_s) <= gain(4) == 1.25
    assert gain(min(all_reduce_s, 2)) == 1


@given(times=st.tuples(*[st.floats(0, 100)] * 4))
def test_bounds_lie_between_the_longer_of_compute_and_communication_and_their_sum(times):
    forward_s, backward_s, scatter_s, gather_s = times
    network = {"reduce_scatter": scatter_s, "all_gather": gather_s, "all_reduce": scatter_s + gather_s}
    least = max(forward_s + backward_s, scatter_s + gather_s)
    for name, schedule in SCHEDULES.items():
        most = sum(times) + network["all_gather"] * ("second all_gather" in schedule.extras)
        assert least * (1 - 1e-12) <= schedule.bound(forward_s, backward_s, network) <= most * (1 + 1e-12), name
