"""Which layers share a bucket: properties of every policy, and the groups of the paper's models."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dear_mpi.collectives.plans.notes import Noted, Part
from dear_mpi.collectives.transports.loopback import run_loopback
from dear_mpi.models.synthetic import load_modules
from dear_mpi.ranks.clock import Aligned, Offset
from dear_mpi.ranks.world import World
from dear_mpi.training.buckets.layout import Layout, cut
from dear_mpi.training.events.spans import COMPUTE, ClocksError, Iteration, Rank, Recording, Span, merged
from dear_mpi.training.fusion import PassTimes, borders, by_time, fuse
from dear_mpi.training.runs.config import Config
from dear_mpi.training.runs.train import train
from tests.training_checks import agreed, settings

SIZES = st.lists(st.integers(0, 40), max_size=20)
COUNTS = st.integers(1, 8)


def trained(nbytes):
    return [layer for layer, size in enumerate(nbytes) if size]


def totals(groups, nbytes):
    return [sum(nbytes[layer] for layer in group) for group in groups]


def policies(nbytes):
    """Every policy that these layers allow."""
    counts = [f"{kind}:{count}" for kind in ("layers", "buckets") for count in range(1, len(trained(nbytes)) + 1)]
    return ["none", "1b", "17b", "40b", "1e3b", *counts]


@given(nbytes=SIZES)
def test_every_policy_keeps_the_trained_layers_in_order(nbytes):
    for policy in policies(nbytes):
        groups = fuse(policy, nbytes)
        assert [layer for group in groups for layer in group] == trained(nbytes), policy
        assert all(groups), f"{policy}: an empty bucket"


@given(nbytes=SIZES, limit=st.integers(1, 60))
def test_by_bytes_fills_a_bucket_to_strictly_below_the_limit(nbytes, limit):
    groups = fuse(f"{limit}B", nbytes)
    for group, total in zip(groups, totals(groups, nbytes), strict=True):
        assert total < limit or len(group) == 1
    for total, following in zip(totals(groups, nbytes), groups[1:], strict=False):
        assert total + nbytes[following[0]] >= limit, "the layer would have fitted into the bucket before"


@pytest.mark.parametrize(("nbytes", "groups"), [
    ([5, 4, 1], [[0, 1], [2]]),
    ([5, 5, 1], [[0], [1, 2]]),
    ([10, 1, 1], [[0], [1, 2]]),
    ([1, 99, 1, 1], [[0], [1], [2, 3]]),
    ([0, 5, 0, 4, 0], [[1, 3]]),
    ([0, 0], []),
    ([], []),
])  # fmt: skip
def test_by_bytes_with_a_limit_of_10(nbytes, groups):
    assert fuse("10B", nbytes) == groups


@given(nbytes=SIZES, count=COUNTS)
def test_by_layers_fills_all_buckets_but_the_last(nbytes, count):
    lengths = [len(group) for group in fuse(f"layers:{count}", nbytes)]
    assert all(length == count for length in lengths[:-1])
    assert all(1 <= length <= count for length in lengths)


@given(nbytes=st.lists(st.integers(1, 40), min_size=1, max_size=20), data=st.data())
def test_equal_buckets_makes_exactly_that_many(nbytes, data):
    count = data.draw(st.integers(1, len(nbytes)))
    assert len(fuse(f"buckets:{count}", nbytes)) == count


@pytest.mark.parametrize(("nbytes", "groups"), [
    ([90, 1, 1, 1], [[0], [1], [2, 3]]),
    ([1, 1, 1, 90], [[0, 1], [2], [3]]),
    ([3, 0, 3, 6, 6], [[0, 2], [3], [4]]),
    ([1, 2, 3], [[0], [1], [2]]),
])  # fmt: skip
def test_three_equal_buckets(nbytes, groups):
    """Small layers beside a large one still give the number of buckets that was asked for."""
    assert fuse("buckets:3", nbytes) == groups


def test_policies_by_name():
    nbytes = [8, 0, 8, 8, 8]
    assert fuse("none", nbytes) == fuse("layers:1", nbytes) == fuse("buckets:4", nbytes) == [[0], [2], [3], [4]]
    assert fuse("layers:3", nbytes) == [[0, 2, 3], [4]]
    assert fuse("buckets:2", nbytes) == [[0, 2], [3, 4]]
    assert fuse("24b", nbytes) == [[0, 2], [3, 4]]
    assert fuse("25 B", nbytes) == [[0, 2, 3], [4]]


@pytest.mark.parametrize(("model", "policy", "groups"), [
    ("resnet50", "25MB", 5),
    ("resnet50", "5MB", 19),
    ("resnet50", "1MB", 65),
    ("densenet201", "25MB", 4),
    ("densenet201", "5MB", 16),
    ("inceptionv4", "25MB", 7),
    ("inceptionv4", "5MB", 37),
    ("inceptionv4", "64MB", 3),
    ("bert_base", "25MB", 16),
    ("bert_large", "25MB", 50),
])  # fmt: skip
def test_groups_of_the_papers_models(model, policy, groups):
    """Computed independently, with the rule of DeAR's code on fp32 gradients."""
    assert len(fuse(policy, [4 * sum(module.counts) for module in load_modules(model)])) == groups


ALLOWED = (
    "Allowed: tensors, none, layers:K, buckets:N, a size, cut:SIZE, ddp, ddp:SIZE, at:N,N or FILE.py:FUNCTION"
    "; of a schedule also own, mgwfbp and horovod; in training also bo and auto"
)
ERRORS = {
    "25": f"fusion '25': size '25' has no unit: write it like 25MB; units are b, kb, mb, gb, kib, mib, gib. {ALLOWED}",
    "nonsense": "fusion 'nonsense': size 'nonsense' cannot be read",
    "": "fusion '': size '' cannot be read",
    "25MB:2": "fusion '25MB:2': size '25MB:2' cannot be read",
    "none:2": "fusion 'none:2': none takes nothing after a colon",
    "mgwfbp:2": "fusion 'mgwfbp:2': mgwfbp takes nothing after a colon",
    "-5MB": "fusion '-5MB': size '-5MB' cannot be read",
    "1e400MB": "fusion '1e400MB': size '1e400MB'",
    "layers:0": "fusion 'layers:0' needs a whole number above zero after the colon, as in layers:4",
    "layers:x": "fusion 'layers:x' needs a whole number above zero after the colon, as in layers:4",
    "layers:²": "fusion 'layers:²' needs a whole number above zero after the colon, as in layers:4",
    "layers": "fusion 'layers' needs a whole number above zero after the colon, as in layers:4",
    "buckets:-1": "fusion 'buckets:-1' needs a whole number above zero after the colon, as in buckets:4",
    "buckets:1.5": "fusion 'buckets:1.5' needs a whole number above zero after the colon, as in buckets:4",
    "buckets:3": "fusion buckets:3 asks for more buckets than the 2 layers with parameters",
}


def test_tensors_have_a_bucket_each_unless_the_grid_is_coarser():
    layout = Layout.of([[("a", (64,)), ("b", (64,))], [("c", (8,)), ("d", (128,))]], itemsize=4, ranks=1)
    buckets = cut(layout, borders("tensors", layout))
    assert [(bucket.start, bucket.stop) for bucket in buckets] == [(0, 64), (64, 128), (128, 160), (160, 288)]
    coarse = replace(layout, grid=128)
    assert [bucket.stop for bucket in cut(coarse, borders("tensors", coarse))] == [128, 256, 384]


@pytest.mark.parametrize("policy", ERRORS)
def test_errors(policy):
    with pytest.raises(ValueError) as error:  # noqa: PT011 (the message is compared as it is, not as a pattern)
        fuse(policy, [8, 0, 8])
    assert str(error.value).startswith(ERRORS[policy])


LAYOUT = Layout.of([[("a", (64,))], [], [("b", (64,))], [("c", (64,))]], itemsize=4, ranks=1)
TIMES = PassTimes((1.0, 1.0, 1.0, 1.0), (2.0, 2.0, 2.0, 2.0))


def of_file(tmp_path, body):
    file = tmp_path / "mine.py"
    file.write_text(f"import numpy as np\n\ndef cut(layout, times, network):\n    {body}\n")
    return by_time(f"{file}:cut", LAYOUT, TIMES, lambda nbytes: 1.0 + nbytes)


@pytest.mark.parametrize(("body", "found"), [
    ("return [layout.begin(2)]", "at:0,64"),
    ("return reversed(layout.offsets)", "at:0,64,128"),
    ("return np.array([64])", "at:0,64"),
    ("return []", "at:0"),
    ("return [64] if network(3) == 4.0 and sum(times.backward_s) == 8.0 else []", "at:0,64"),
])  # fmt: skip
def test_a_users_function_cuts(body, found, tmp_path):
    assert of_file(tmp_path, body) == found


@pytest.mark.parametrize(("body", "said"), [
    ("return 1 / 0", "fails: ZeroDivisionError: division by zero"),
    ("return None", "fails: TypeError: 'NoneType' object is not iterable"),
    ("return [0.5]", "fails: TypeError: 'float' object cannot be interpreted as an integer"),
    ("return [192]", "must return a list of elements of the flat buffer, from 0 to 191, not 192"),
    ("return [-1]", "must return a list of elements of the flat buffer, from 0 to 191, not -1"),
])  # fmt: skip
def test_what_a_users_function_does_wrong_is_told(body, said, tmp_path):
    with pytest.raises(ValueError, match=re.escape(f"fusion '{tmp_path}/mine.py:cut' {said}")):
        of_file(tmp_path, body)


def test_a_users_function_cuts_while_training(tmp_path):
    """All ranks cut where it says, from the same mean times; a file without it is refused before training."""
    file = tmp_path / "mine.py"
    file.write_text("def cut(layout, times, network):\n    return layout.offsets[2:3]\n")
    config = Config.of(settings(model="mlp", iterations=5, fusion=f"{file}:cut"))
    reports = run_loopback(2, lambda transport: train(config, World(transport)))
    assert {report["buckets"] for report in reports} == {2}
    assert reports[0]["fusion"].startswith("at:0,")
    config = Config.of(settings(model="mlp", iterations=5, fusion=f"{file}:cutt"))
    said = agreed(lambda transport: train(config, World(transport)), 2)
    assert "fusion file mine.py has no function or class 'cutt'; it has cut" in said


def test_a_users_function_that_fails_on_one_rank_ends_all(tmp_path):
    file = tmp_path / "mine.py"
    body = "    calls.append(1)\n    return [1 // (len(calls) - 1)]\n"  # the first call divides by zero
    file.write_text(f"calls = []\n\n\ndef cut(layout, times, network):\n{body}")
    config = Config.of(settings(model="mlp", iterations=5, fusion=f"{file}:cut"))

    said = agreed(lambda transport: train(config, World(transport)), 2)
    assert re.search(r"cut' fails: ZeroDivisionError: .*, on rank \d", said)


# Recordings of ranks, with clocks of their own, become one run or are refused; what was inside of collectives.

AHEAD_S = 1000.0  # the clock of rank 1
UNCERTAIN_S = 0.01
SAID = {"collective": "all_gather", "algorithm": "ring", "bucket": 3}


def noted(rank, sent_s, number=7):
    """Rank 0 sends 4 bytes at 10 s, rank 1 waits for them from 9 s to 11 s; or the other way round at another time."""
    peer, to = 1 - rank, rank == 1
    parts = [Part("starting", 0, 0, peer, to, 0, 4), Part("ending", 0, 0, peer, to, 0, 4)]
    times = [sent_s, sent_s + 0.5, sent_s + 1] if rank == 0 else [8.0, 9.0, 11.0]
    return Noted(number, SAID, parts, times)


def recording(rank, *, sent_s=10.0, uncertainty_s=UNCERTAIN_S, looks=None):
    own = noted(rank, sent_s)
    ahead_s = AHEAD_S * rank
    iterations = (Iteration(0, 8.0 + ahead_s, 12.0 + ahead_s),)
    spans = (Span(COMPUTE, "forward", "forward a", 8.0 + ahead_s, 9.5 + ahead_s),)
    done = Rank(f"rank {rank}", iterations, spans, rank, (own.earlier(-ahead_s),))
    if rank == 0:
        return Recording("dear", 2, done, Aligned())
    looks = looks or (Offset(AHEAD_S, AHEAD_S, uncertainty_s), Offset(AHEAD_S + 20, AHEAD_S, uncertainty_s))
    return Recording("dear", 2, done, Aligned(looks))


def test_times_are_by_the_clock_of_rank_0():
    run = merged([recording(0), recording(1)])
    other = run.ranks[1]
    assert other.iterations == (Iteration(0, 8.0, 12.0),)
    assert other.spans[0].begin_s == 8.0
    assert list(other.noted[0].times) == [8.0, 9.0, 11.0]
    assert UNCERTAIN_S < run.uncertainty_s < 2 * UNCERTAIN_S
    (flow,) = run.flows
    assert flow[:4] == (0, 10.0, 1, 11.0)


@pytest.mark.parametrize(("how", "said"), [
    (
        {"looks": (Offset(AHEAD_S, AHEAD_S, 1e-3), Offset(AHEAD_S + 20, AHEAD_S + 3, 1e-3))},
        "clocks of ranks 0 and 1 cannot",
    ),
    ({"sent_s": 11.1}, "rank 1 has a message 0.1 s before rank 0 sent it"),
    ({"uncertainty_s": 2.0}, "are known within .* only, and half of all messages took no longer than 1 s"),
], ids=["set", "before it was sent", "worse than messages"])  # fmt: skip
def test_clocks_that_cannot_be_known_are_refused(how, said):
    with pytest.raises(ClocksError, match=said):
        merged([recording(0, **({"sent_s": how["sent_s"]} if "sent_s" in how else {})), recording(1, **how)])


def test_a_message_may_come_before_it_was_sent_by_as_much_as_clocks_are_uncertain():
    parts = [Part("starting", 0, 1, 1, False, 0, 4)], [Part("ending", 0, 1, 0, True, 0, 4)]
    early = Noted(8, SAID, parts[0], [12.0, 12.1]), Noted(8, SAID, parts[1], [11.0 + AHEAD_S, 11.995 + AHEAD_S])
    both = [recording(0), recording(1)]
    for number, more in enumerate(early):
        rank = both[number].rank
        both[number] = replace(both[number], rank=replace(rank, noted=(*rank.noted, more)))
    assert min(flow.seconds for flow in merged(both).flows) == pytest.approx(-0.005)


def test_collectives_that_not_all_ranks_have_noted_any_more_are_left_out():
    both = [recording(0), recording(1)]
    older = replace(both[0], rank=replace(both[0].rank, noted=(noted(0, 1.0, number=6), *both[0].rank.noted)))
    (their,) = merged([older, both[1]]).collectives
    assert {rank: noted.number for rank, noted in their.items()} == {0: 7, 1: 7}
