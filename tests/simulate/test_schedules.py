"""Schedules of the field on one serial wire: their iteration times are those of independent list scheduling."""

import pytest

from dear_mpi.models.synthetic import load_modules
from dear_mpi.simulate.model import synthetic_model
from dear_mpi.training.fusion import in_cycles, mg_wfbp
from tests.cli_checks import assert_one_line, invoke
from tests.simulate.predicted import predicted

MODELS = ("resnet50", "densenet201", "inceptionv4", "bert_base", "bert_large")
# In units of the forward pass, where backward takes 2 of them, and the all-reduce of the model this many. Computed by a
# script of its own, of 60 lines, before there were these schedules.
PUBLISHED = {  # wfbp 25 MB, all-reduces by priority 4 MB, dear 25 MB, dear 4 MB, dear-eager 4 MB, dear-eager 1 MB
    ("resnet50", 2.5): (3.61, 3.15, 3.61, 3.30, 3.10, 3.03),
    ("resnet50", 3.0): (4.07, 3.23, 3.90, 3.56, 3.17, 3.04),
    ("resnet50", 3.5): (4.56, 3.50, 4.21, 3.82, 3.50, 3.50),
    ("resnet50", 4.0): (5.05, 4.00, 4.51, 4.08, 4.00, 4.00),
    ("densenet201", 3.0): (4.00, 3.25, 3.97, 3.58, 3.17, 3.04),
    ("bert_base", 3.0): (4.53, 3.75, 4.18, 4.08, 3.75, 3.72),
}
CASES = (
    ("wfbp", "25MB"), ("bytescheduler:credit=1", "cut:4MB"), ("dear", "25MB"), ("dear", "cut:4MB"),
    ("dear-eager", "cut:4MB"), ("dear-eager", "cut:1MB"),
)  # fmt: skip


def model_of(name, ranks=4):
    return synthetic_model(f"synthetic:{name}", load_modules(name), ranks=ranks, forward_s=1.0, backward_s=2.0)


def iteration(model, schedule, fusion, all_reduce_s, alpha_s=0.0):
    """Seconds on a wire that carries the whole model's all-reduce in this time, and each half in half of it."""
    beta = all_reduce_s / (model.layout.count * model.layout.itemsize)
    halves = {"all_reduce": 1.0, "reduce_scatter": 0.5, "all_gather": 0.5, "second all_gather": 0.5, "negotiation": 0.0}

    def prices(buckets):
        return lambda stage, bucket: halves[stage.label] * (alpha_s + beta * bucket.nbytes)

    found = predicted(model, schedule, fusion, prices)
    return found.iteration_s, found


@pytest.mark.parametrize(("name", "all_reduce_s"), PUBLISHED)
def test_iterations_are_those_of_list_scheduling(name, all_reduce_s):
    model = model_of(name)
    found = [iteration(model, *case, all_reduce_s)[0] for case in CASES]
    assert found == pytest.approx(PUBLISHED[name, all_reduce_s], rel=0.02)


def test_zero_gathers_behind_the_backward_pass_or_under_the_forward_pass():
    model = model_of("resnet50")
    behind, under = (iteration(model, name, "25MB", 3.0)[0] for name in ("zero", "zero:overlap_param_gather=yes"))
    reduced = iteration(model, "wfbp", "25MB", 1.5)[0]  # forward, and then all reduce-scatters
    assert behind == pytest.approx(reduced + 1.5)
    assert iteration(model, "dear", "25MB", 3.0)[0] < under < behind, "the wire is idle while the host has not asked"


def test_fsdp_sends_half_as_much_again():
    model = model_of("resnet50")
    seconds, _ = iteration(model, "fsdp", "25MB", 40.0)
    assert seconds == pytest.approx(60.0, rel=0.05), "communication alone"


BUCKETS_OF_DDP = {"resnet50": 5, "densenet201": 4, "inceptionv4": 8, "bert_base": 14, "bert_large": 38}


@pytest.mark.parametrize("name", MODELS)
def test_ddp_has_the_buckets_of_pytorch(name):
    _, found = iteration(model_of(name), "ddp", "own", 3.0)
    assert len(found.buckets) == BUCKETS_OF_DDP[name]
    if name == "resnet50":
        sizes = [bucket.nbytes / 2**20 for bucket in reversed(found.buckets)]
        assert sizes == pytest.approx([7.8, 30, 25, 25.3, 9.3], abs=0.1)


@pytest.mark.parametrize(("alpha_s", "beta", "groups"), [
    (7.044e-3, 9.64e-10, (1, 2, 2, 2, 2)),
    (1e-3, 1 / 0.589e9, (4, 4, 3, 6, 5)),
    (8.06e-4, 5.886e-10, (41, 40, 63, 10, 7)),
])  # fmt: skip
def test_merged_gradients_are_those_of_the_published_code(alpha_s, beta, groups):
    """Its groups for 64 GPUs, with backward times in proportion to FLOPs, at the rates of the paper's testbed."""
    tflops = {"resnet50": 6.8, "densenet201": 3.8, "inceptionv4": 6.7, "bert_base": 9.3, "bert_large": 9.8}
    found = []
    for name in MODELS:
        modules = load_modules(name)
        backward_s = [2 * module.flops / (tflops[name] * 1e12) for module in modules]
        nbytes = [4 * sum(module.counts) for module in modules]
        ready_s = [sum(backward_s[place:]) for place in range(len(modules))]
        found.append(len(mg_wfbp(nbytes, ready_s, lambda size: alpha_s + beta * size)))
    assert found == pytest.approx(groups, abs=1), "it merges tensor by tensor, and this layer by layer"


def test_horovod_sends_what_is_ready_in_buffers_that_have_a_limit():
    mib = 2**20
    assert in_cycles([100 * mib, 100 * mib, 20 * mib], [1.0, 1.0, 0.5], lambda nbytes: 0.1) == [[0], [1], [2]]
    assert in_cycles([60 * mib, 60 * mib, 20 * mib], [1.0, 1.0, 0.5], lambda nbytes: 0.1) == [[0, 1], [2]]
    assert in_cycles([mib, mib, mib], [1.0, 0.9, 0.5], lambda nbytes: 0.7) == [[0, 1], [2]], "while the wire is busy"


@pytest.mark.parametrize(("name", "said"), [
    ("wfbp:credit=2", "schedule 'wfbp:credit=2': wfbp has no options, so not 'credit' either"),
    ("bytescheduler:credti=2", "option 'credti' is unknown: did you mean 'credit'? Allowed: credit"),
    ("bytescheduler:credit=0", "schedule 'bytescheduler:credit=0': credit must be a whole number above zero, not"),
    ("zero:overlap_param_gather=maybe", "overlap_param_gather must be yes or no, not 'maybe'"),
])  # fmt: skip
def test_options_that_a_schedule_does_not_have_are_refused(name, said):
    assert_one_line(invoke("simulate", "--schedules", name), said)
