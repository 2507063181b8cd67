"""Where the seconds of compute come from: what follows from a profile, and from FLOPs at a rate; bad input is told."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest

from dear_mpi.collectives.transports.loopback import run_loopback
from dear_mpi.models.synthetic import load_modules, measured_seconds, synthetic_layers
from dear_mpi.ranks.world import World
from dear_mpi.simulate.settings import Settings
from dear_mpi.simulate.sweep import simulate
from dear_mpi.simulate.table import heading
from dear_mpi.training.events.profile import Profile, Tensor, Use, read_profile
from dear_mpi.training.fabric.virtual import Costs
from dear_mpi.training.runs.config import Config
from dear_mpi.training.runs.job import make_workload
from tests.cli_checks import assert_one_line, invoke
from tests.rooms import DELETED

COUNT = 2**20  # elements of the one tensor: all ranks' shards are whole, so nothing is padded
PROFILE = Profile(
    model="mine.py:build",
    device="cuda",
    ranks=2,
    rank=1,
    batch=64,
    accumulate=1,
    dtype="fp32",
    wire="bf16",
    schedule="sequential",
    iterations=10,
    update_s_per_element=1e-9,
    rest_s=0.002,
    uses=(
        Use("relu", (), 0.01, 0.05),
        Use("dense", (Tensor(0, (1024, 1024)),), 0.03, 0.02),
        Use("again", (Tensor(0, (1024, 1024)),), 0.0, 0.0),
    ),
)
QUICK = {"models": (PROFILE.model,), "ranks": (4,), "network": "8gbit,0s", "schedules": ("sequential",)}


def simulated(**settings):
    (found,) = simulate(Settings(**QUICK | {"fusions": ("25MB",)} | settings))
    return found


def ring_s(ranks, itemsize):
    """Of an all-reduce, at 1 GB/s."""
    return 2 * (ranks - 1) / ranks * COUNT * itemsize * 1e-9


@pytest.mark.parametrize("ranks", [2, 4, 16])
def test_an_iteration_is_what_was_measured_and_the_network(ranks):
    """The loss, one element of each rank for now, goes over the wire with the rest."""
    found = simulated(profile=PROFILE, ranks=(ranks,))
    updates_s, loss_s = COUNT * 1e-9, ranks.bit_length() * ranks * 2e-9
    assert found.row["compute_s"] == pytest.approx(0.11)
    assert found.row["exposed_comm_s"] == pytest.approx(ring_s(ranks, itemsize=2), abs=loss_s)
    assert found.row["iteration_s"] == pytest.approx(0.11 + 0.002 + updates_s + ring_s(ranks, 2), abs=loss_s)
    assert found.row["compute"] == "profile of mine.py:build on cuda, 2 ranks, batch 64, sequential"
    assert (found.row["compute_origin"], found.row["update_origin"]) == ("measured", "measured")
    assert found.row["update_s_per_element"] == 1e-9


def test_type_of_the_wire_and_updates_may_be_others():
    found = simulated(profile=PROFILE, wire="fp32", update_s=0.0)
    assert found.row["iteration_s"] == pytest.approx(0.112 + ring_s(4, itemsize=4), abs=1e-6)
    assert (found.row["compute_origin"], found.row["update_origin"]) == ("measured", "given")


@pytest.mark.parametrize(("profile", "flags", "forward_s", "backward_s", "factor"), [
    (PROFILE, {"forward_s": 0.02}, 0.02, 0.035, 0.5),
    (PROFILE, {"forward_s": 0.02, "backward_s": 0.14}, 0.02, 0.14, 0.5),
    (PROFILE, {"backward_s": 0.14}, 0.04, 0.14, 1.0),
])  # fmt: skip
def test_a_profile_is_scaled(profile, flags, forward_s, backward_s, factor):
    """Layers keep their shares of a pass; updates and the rest are scaled as the forward pass is."""
    found = simulated(profile=profile, **flags)
    model = found.scenario.model
    assert model.costs.forward_s == pytest.approx((0.25 * forward_s, 0.75 * forward_s, 0.0))
    assert model.costs.backward_s == pytest.approx((5 / 7 * backward_s, 2 / 7 * backward_s, 0.0))
    assert (model.costs.update_s, model.costs.rest_s) == pytest.approx((factor * 1e-9, factor * 0.002))
    assert found.row["compute_s"] == pytest.approx(forward_s + backward_s)
    assert (found.row["compute_origin"], found.row["update_origin"]) == ("measured, scaled", "measured, scaled")
    said = f"scaled to {forward_s:.4g} s forward and {backward_s:.4g} s backward"
    assert found.row["compute"] == f"profile of mine.py:build on cuda, 2 ranks, batch 64, sequential, {said}"


def test_a_pass_without_time_is_not_scaled():
    nothing = replace(PROFILE, uses=tuple(replace(use, backward_s=0.0) for use in PROFILE.uses))
    assert nothing.scaled(0.08).passes_s == pytest.approx((0.08, 0.0))
    with pytest.raises(ValueError, match=r"profile of 'mine\.py:build' has a pass that takes no time"):
        nothing.scaled(0.08, 0.1)


def test_a_profile_of_several_ranks_is_doubted(tmp_path):
    said = "warning: the profile was taken on 2 ranks under sequential, where layers share cores and memory"
    assert said in unwrapped(run(tmp_path, asdict(PROFILE), "--ranks", "4").output)
    alone = asdict(replace(PROFILE, ranks=1, rank=0))
    assert "warning" not in run(tmp_path, alone, "--ranks", "4").output


@pytest.mark.skipif("lancet" in DELETED, reason="an extra, which was deleted")
def test_halves_and_exchanges_of_a_profile(tmp_path):
    """Both passes of ``dense`` wait for an exchange; the first one backward may be filled with weights of ``last``."""
    last = Use("last", (Tensor(1, (8, 8)),), 0.0, 0.04, weights_s=0.03)
    dense = replace(PROFILE.uses[1], weights_s=0.01, exchange_s=0.05)
    profile = replace(PROFILE, ranks=1, rank=0, uses=(dense, last))
    times = {name: simulated(profile=profile, schedules=(name,), wire="fp32").row for name in ("dear", "lancet")}
    gained = times["dear"]["exposed_comm_s"] - times["lancet"]["exposed_comm_s"]
    assert gained == pytest.approx(0.025, abs=1e-4)
    assert times["dear"]["compute_s"] == pytest.approx(times["lancet"]["compute_s"])
    said = "warning: what layers exchange takes as long as in the profile, on whatever network"
    assert said in unwrapped(run(tmp_path, asdict(profile), "--ranks", "4").output)
    scaled = profile.scaled(backward_s=0.12).uses
    assert [use.weights_s for use in scaled] == pytest.approx([0.02, 0.06])
    assert [use.exchange_s for use in scaled] == [0.05, 0.0]
    profile.write(tmp_path / "profile.json")
    assert [module.weights for module in load_modules(str(tmp_path / "profile.json"))] == pytest.approx([0.5, 0.75])


def test_a_profile_is_a_synthetic_model(tmp_path):
    """In train; simulate, which knows what is tied, asks for --profile."""
    file = tmp_path / "profile.json"
    PROFILE.write(file)
    modules = load_modules(str(file))
    assert [(module.name, module.counts) for module in modules] == [("relu", ()), ("dense", (COUNT,)), ("again", ())]
    assert measured_seconds(modules) == pytest.approx((0.04, 0.07))
    layers = synthetic_layers(
        modules, forward_s=1.0, backward_s=1.0, dtype=np.dtype("f4"), rng=np.random.default_rng(0)
    )
    shares = [(layer.forward_s, layer.backward_s) for layer in layers]
    assert shares == [pytest.approx(each) for each in ((0.25, 5 / 7), (0.75, 2 / 7), (0.0, 0.0))]
    config = Config.of({"model": f"synthetic:{file}", "seed": 1})
    for each, backward_s in ((config, 0.07), (replace(config, forward_time=0.08), 0.14)):
        (workload,) = run_loopback(1, lambda transport, each=each: make_workload(each, World(transport)))
        assert sum(layer.backward_s for layer in workload.layers) == pytest.approx(backward_s)
    done = invoke("simulate", "--model", f"synthetic:{file}")
    assert_one_line(done, f"model 'synthetic:{file}' is a profile: give it as --profile {file}")


def test_only_the_last_part_of_a_batch_hides_communication():
    """Behind the gradients of ``dense`` the last part has one layer left, of half of 50 ms."""
    slow = {"network": "0.8gbit,0s", "wire": "fp32", "update_s": 0.0, "schedules": ("wfbp",)}
    for accumulate, hidden_s in ((1, 0.05), (2, 0.025)):
        row = simulated(profile=Profile(**vars(PROFILE) | {"accumulate": accumulate}), **slow).row
        assert row["compute_s"] == pytest.approx(0.11)
        assert row["exposed_comm_s"] == pytest.approx(10 * ring_s(4, itemsize=4) - hidden_s, abs=1e-5)


def test_a_profile_reads_as_it_was_written(tmp_path):
    PROFILE.write(tmp_path / "profile.json")
    assert read_profile(tmp_path / "profile.json") == PROFILE


def unwrapped(text):
    """On one line: a title is as wide as its table."""
    return " ".join(text.split())


def run(tmp_path, content, *flags):
    file = tmp_path / "profile.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return invoke("simulate", "--profile", file, *flags)


def test_the_model_comes_from_the_profile(tmp_path):
    for flags in ([], ["--model", PROFILE.model]):
        done = run(tmp_path, asdict(PROFILE), "--ranks", "2,4", *flags)
        assert done.exit_code == 0, done.output
        said = "compute: profile of mine.py:build on cuda, 2 ranks, batch 64, sequential (measured)"
        assert f"{said}; updates: 1 ns for each parameter (measured)" in unwrapped(done.output)


def changed(*where, to):
    """The profile with one thing in it changed; None leaves it out."""
    content = json.loads(json.dumps(asdict(PROFILE)))
    inner = content
    for key in where[:-1]:
        inner = inner[key]
    if to is None:
        del inner[where[-1]]
    else:
        inner[where[-1]] = to
    return content


@pytest.mark.parametrize(("content", "said"), [
    ([], "must be a file of dear-mpi train --profile: it must be an object, not a list"),
    (changed("rest_s", to=None), "it must have the field 'rest_s'"),
    (changed("uses", to=[]), "uses must be a list, and some use must have tensors"),
    (changed("uses", 0, "forward_s", to=-1.0), "uses[0].forward_s must be a number >= 0.0, not -1.0"),
    (changed("uses", 1, "backward_s", to=float("inf")), "uses[1].backward_s must be a number <= 86400.0, not Infi"),
    (changed("update_s_per_element", to=float("nan")), "update_s_per_element must be a number >= 0.0, not NaN"),
    (changed("rest_s", to=10**400), "rest_s: Number out of range"),
    (changed("uses", 1, "tensors", 0, "shape", to=[4, -1]), "uses[1].tensors[0].shape[1] must be a whole number >"),
    (changed("uses", 1, "tensors", 0, "shape", to=[4]), "tensors of key 0 must have one shape, not (4,) and"),
    (changed("accumulate", to=0), "accumulate must be a whole number >= 1, not 0"),
    (changed("wire", to="fp7"), "wire 'fp7' is unknown"),
    (changed("schedule", to="deer"), "schedule 'deer' is unknown: did you mean 'dear'?"),
    (changed("model", to=""), 'model must be a text of length >= 1, not ""'),
    (changed("uses", 0, "name", to="\n"), "names must be printable, not '\\n'"),
    (changed("uses", 1, "weights_s", to=0.021), "weights_s must be a part of backward_s, and is more in some use"),
    (changed("rank", to=2), "rank must be below ranks, 2, not 2"),
])  # fmt: skip
def test_a_bad_profile_is_one_line(content, said, tmp_path):
    done = run(tmp_path, content)
    command = "" if isinstance(content, str) else "must be a file of dear-mpi train --profile: "
    assert_one_line(done, f"profile '{tmp_path / 'profile.json'}'", command, said)


def test_codes_take_as_many_times_as_long_as_in_the_profile():
    rows = [simulated(profile=replace(PROFILE, code_factor=factor), wire="int8") for factor in (None, 3.0)]
    stages = rows[0].scenario.settings.chosen_route.stages
    said_s = sum(stage.compute_s(COUNT, 4) for stage in stages)
    once, thrice = (each.row["iteration_s"] for each in rows)
    assert thrice - once == pytest.approx(2 * said_s)
    assert "codes: 3 times as long as their wire says" in heading(rows[1:])
    assert replace(PROFILE, code_factor=3.0).scaled(0.02).code_factor == pytest.approx(1.5)


def test_the_code_of_a_profile_is_the_usual_wire():
    profile = replace(PROFILE, wire="int8")
    assert simulated(profile=profile).row == simulated(profile=profile, wires=("int8",)).row
    assert "wire int8" in heading([simulated(profile=profile)])
    found = simulate(Settings(**QUICK | {"profile": profile, "schedules": ("dear", "local:2")}))
    assert [each.row["wire"] for each in found] == ["int8", "fp32"]
    assert simulated(profile=profile, wires=("fp32",)).row["exposed_comm_s"] == pytest.approx(ring_s(4, 4), rel=1e-6)


def test_ranks_that_share_a_core_compute_one_after_the_other():
    """All that one does takes twice as long."""
    profile = replace(PROFILE, start_s=1e-3, wake_s=2e-3, code_factor=1.5)
    (alone, shared) = (simulated(profile=profile, ranks_per_core=ranks) for ranks in (1, 2))
    one, two = (vars(each.scenario.model.costs) for each in (alone, shared))
    for name in ("rest_s", "code_factor", "start_s", "wake_s"):
        assert two[name] == 2 * one[name], name
    for name in ("forward_s", "backward_s"):
        assert two[name] == pytest.approx([2 * each for each in one[name]])
    assert "2 ranks share a core" in heading([shared])
    assert shared.row["update_s"] == pytest.approx(2 * alone.row["update_s"])
    owners = Costs(update_s=1.0, ranks_per_core=2)
    assert owners.update_seconds(np.array([4.0, 0.0, 0.0, 0.0])).max() == 4.0, "nobody else needs a core"
    assert owners.update_seconds(np.array([1.0, 1.0, 2.0, 0.0])).max() == 2.0, "each core has as much to do"
    assert owners.update_seconds(np.array([1.0, 1.0])).tolist() == [2.0, 2.0]


def test_a_profile_of_another_model_is_refused(tmp_path):
    done = run(tmp_path, asdict(PROFILE), "--model", "mlp")
    assert_one_line(done, "profile of another model: it is of 'mine.py:build', not of 'mlp'")
