"""Matrices that travel as two thin ones: against float64, on any number of ranks, and no route that trains wrongly."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dear_mpi.contrib.wires.low_rank import LEFT, LowRank, multiply, orthonormal
from dear_mpi.contrib.wires.low_rank_stages import Expand, OfFactors
from dear_mpi.simulate.settings import Settings
from dear_mpi.simulate.sweep import simulate
from dear_mpi.training.buckets.layout import Layout
from dear_mpi.training.fusion import fused
from dear_mpi.training.routes.codes import Recall
from dear_mpi.training.routes.find import find_route
from dear_mpi.training.runs.train import Saving
from tests.cli_checks import succeed
from tests.simulate.test_profile import COUNT, PROFILE, ring_s, simulated
from tests.training.route_checks import check_refused_or_alike, verdict
from tests.training.test_routes import mutants
from tests.training.test_wires import run

SHAPES = ((24, 3, 10), (7,), (40, 20))  # two matrices, of more rows and of more columns, and a vector
RANK, RANKS = 2, 3


def drawn(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_columns_are_made_orthonormal_and_span_what_they_spanned(dtype):
    factor = drawn(1, 50, 4).astype(dtype)
    found = orthonormal(factor)
    assert np.allclose(found.T @ found, np.eye(4), atol=1e-14)
    assert np.allclose(found @ (found.T @ factor), factor, atol=1e-13)
    assert np.array_equal(found, orthonormal(np.asfortranarray(factor)))


def test_a_column_without_a_direction_of_its_own_gets_one():
    factor = drawn(2, 50, 4)
    factor[:, 1], factor[:, 2] = 0, 3 * factor[:, 0]
    for each in (factor, np.zeros((50, 4))):
        found = orthonormal(each)
        assert np.allclose(found.T @ found, np.eye(4), atol=1e-14)
    with np.errstate(all="ignore"):
        assert np.isnan(orthonormal(np.full((5, 2), np.nan))).all()


@given(rows=st.integers(1, 40), columns=st.integers(1, 40), rank=st.integers(1, 5))
def test_products_are_products(rows, columns, rank):
    left, right, found = drawn(3, rows, rank), drawn(4, columns, rank), np.zeros((rows, columns))
    multiply(left, right, found)
    assert np.allclose(found, left @ right.T, atol=1e-13)
    half = np.zeros((rows, columns), np.float16)
    multiply(left.astype(np.float16), right.astype(np.float16), half)
    assert np.allclose(half, left @ right.T, atol=0.05)


@given(shapes=st.lists(st.tuples(st.integers(8, 300), st.integers(8, 300)), min_size=1, max_size=8))
def test_both_turns_are_of_like_length(shapes):
    wire = LowRank(1)
    first = wire.first_sides(shapes)
    lengths = [sum(wire.lengths(shapes, sides)) for sides in (first, [1 - side for side in first])]
    kept = [wire.matrix(shape) for shape in shapes]
    assert abs(lengths[0] - lengths[1]) <= max((abs(each[0] - each[1]) for each in kept if each), default=0)


def test_what_would_not_get_smaller_travels_as_it_is():
    wire = LowRank(4)
    shapes = [(64, 128), (16, 1, 3, 3), (32, 16, 3, 3), (1000,), (), (16, 16), (15, 16)]
    assert [wire.matrix(shape) for shape in shapes] == [(64, 128), None, (32, 144), None, None, (16, 16), None]
    assert LowRank(400).matrix((64, 128)) is None


@pytest.mark.parametrize(("wire", "most"), [("acp:4", 0.06), ("powersgd:4", 0.11)])
def test_the_bytes_of_the_digits_classifier(wire, most):
    uses = [[((use, place), shape) for place, shape in enumerate(shapes)] for use, shapes in enumerate(MLP)]
    dense, layout = (Layout.of(uses, itemsize=4, ranks=4, whole=whole) for whole in (False, True))
    route = find_route("full", wire=wire)
    (bucket,) = fused("25MB", layout)
    sizes = {"wire": 4, "values": 4, "ranks": 4, "shapes": bucket.shapes}
    assert sum(route.nbytes(line, bucket.count, **sizes) for line in route.codes) <= most * 4 * dense.count


MLP = [[(64, 128), (128,)], [(128, 128), (128,)], [(128, 10), (10,)]]


# One step, against float64 --------------------------------------------------------------------------------------------


class Memory(dict):
    """A bucket of one rank, as far as stages need it, and what it is called with."""

    def __init__(self, route, dtype=np.float64):
        count = sum(map(math.prod, SHAPES))
        super().__init__({name: np.zeros(count, dtype) for name in ("gradients", *route.buffers)})
        sizes = {"wire": 8, "values": 8, "ranks": RANKS, "shapes": SHAPES}
        self |= {line: np.full(route.nbytes(line, count, **sizes) // 8, np.nan, dtype) for line in route.codes}
        self.own_updates = 0
        self.calls = [stage.bind(self) for stage in route.stages if isinstance(stage, OfFactors | Recall)]

    buffer = dict.__getitem__

    def tensors(self, name):
        ends = np.cumsum([0, *map(math.prod, SHAPES)])
        return [self[name][ends[at] : ends[at + 1]].reshape(shape) for at, shape in enumerate(SHAPES)]


def step(route, memories, gradients):
    """All stages of all ranks, in turns; the sum of codes where the route has a collective."""
    for memory, gradient in zip(memories, gradients, strict=True):
        memory["gradients"][...] = gradient
    numbers = iter(range(len(memories[0].calls)))
    for stage in route.stages:
        if isinstance(stage, OfFactors | Recall):
            at = next(numbers)
            for memory in memories:
                memory.calls[at](1.0)
        elif getattr(stage, "buffer", None) in route.codes and stage.name != "all_gather":
            total = sum(memory[stage.buffer] for memory in memories)
            for memory in memories:
                memory[stage.buffer][...] = total
    for memory in memories:
        memory.own_updates += 1


def matrices(line):
    ends = np.cumsum([0, *map(math.prod, SHAPES)])
    parts = [line[ends[at] : ends[at + 1]] for at in range(3)]
    return parts[0].reshape(24, 30), parts[1], parts[2].reshape(40, 20)


def projector(factor):
    basis, _ = np.linalg.qr(factor)
    return basis @ basis.T


@pytest.mark.parametrize("kind", ["acp", "powersgd"])
def test_steps_are_the_formula(kind):
    """Zhang et al. and Vogels et al., with all ranks' errors, over four updates; NumPy's QR makes the bases."""
    route = find_route("full", wire=f"{kind}:{RANK}")
    memories = [Memory(route) for _ in range(RANKS)]
    errors = [[np.zeros((24, 30)), np.zeros((40, 20))] for _ in range(RANKS)]
    kept = [None, None]  # the last factor of each matrix, by its side
    first = LowRank(RANK).first_sides(SHAPES)
    for update in range(4):
        gradients = [drawn([update, rank], sum(map(math.prod, SHAPES))) for rank in range(RANKS)]
        step(route, memories, gradients)
        for number, tensor in enumerate((0, 2)):
            own = [matrices(each)[tensor] + errors[rank][number] for rank, each in enumerate(gradients)]
            total = sum(own)
            side = (first[tensor] + update) % 2 if kind == "acp" else LEFT
            along = total if side == LEFT else total.T  # what is multiplied by the other factor
            if kept[number] is None:  # the drawn one, as it was left
                pair = memories[0].tensors("factors")[tensor]
                factors = Expand(wire=LowRank(RANK), codes="").factors(pair, SHAPES[tensor])
                kept[number] = orthonormal(np.zeros_like(factors[1 - side]))
            if kind == "acp":
                before, kept[number] = projector(kept[number]), along @ np.linalg.qr(kept[number])[0]
                due = along @ before
                lost = [(each if side == LEFT else each.T) @ (np.eye(len(before)) - before) for each in own]
                due, lost = (due, lost) if side == LEFT else (due.T, [each.T for each in lost])
            else:
                left = projector(total @ kept[number])
                due, lost = left @ total, [each - left @ each for each in own]
                kept[number] = total.T @ np.linalg.qr(total @ kept[number])[0]
            for rank, memory in enumerate(memories):
                assert np.allclose(matrices(memory["gradients"])[tensor], due, atol=1e-12)
                assert np.array_equal(memory["gradients"], memories[0]["gradients"])
                assert np.array_equal(memory["factors"], memories[0]["factors"])
                assert np.allclose(matrices(memory["residual"])[tensor], lost[rank], atol=1e-12)
                errors[rank][number] = lost[rank]
        vector = sum(matrices(each)[1] for each in gradients)
        assert np.allclose(matrices(memories[0]["gradients"])[1], vector, atol=1e-13)


@pytest.mark.parametrize("kind", ["acp", "powersgd"])
def test_a_type_of_two_bytes_comes_close(kind):
    route = find_route("full", wire=f"{kind}:{RANK}")
    exact, rounded = ([Memory(route, dtype)] for dtype in (np.float64, np.float16))
    for update in range(3):
        gradient = drawn(update, sum(map(math.prod, SHAPES)))
        step(route, exact, [gradient])
        step(route, rounded, [gradient])
    for line in ("gradients", "residual"):
        off = np.linalg.norm(rounded[0][line] - exact[0][line])
        assert off < 0.01 * np.linalg.norm(exact[0][line])


def test_what_is_lost_comes_later():
    """The same gradient again and again: what arrives is, on average, all of it."""
    route = find_route("full", wire=f"acp:{RANK}")
    memories = [Memory(route) for _ in range(RANKS)]
    gradients = [drawn([9, rank], sum(map(math.prod, SHAPES))) for rank in range(RANKS)]
    arrived = 0
    for _ in range(60):
        step(route, memories, gradients)
        arrived = arrived + memories[1]["gradients"]
    lost = sum(memory["residual"] for memory in memories)
    assert np.allclose(arrived + lost, 60 * sum(gradients), atol=1e-9)
    assert np.linalg.norm(lost) < 0.5 * np.linalg.norm(arrived)


# Training -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2, 4, 5])
@pytest.mark.parametrize("wire", ["acp:4", "powersgd:4:after=2"])
def test_the_same_bits_on_any_number_of_ranks_and_under_all_schedules(wire, ranks):
    """``train`` compares the ranks; on three ranks see ``tests/training/test_wires.py``."""
    found = [run({"wire": wire, "schedule": name, "iterations": 5}, ranks) for name in ("wfbp", "dear", "dear-eager")]
    assert len({report["params_sha256"] for report in found}) == 1


def test_late_codes_begin_late():
    dense, late = run({"iterations": 8}), run({"wire": "acp:4:after=4", "iterations": 8})
    assert late["loss"][:5] == pytest.approx(dense["loss"][:5], rel=1e-6)
    assert late["loss"][6:] != pytest.approx(dense["loss"][6:], rel=1e-6)


def test_on_another_number_of_ranks_factors_go_on(tmp_path):
    choices, file = {"wire": "powersgd:4"}, tmp_path / "c.npz"
    before = run({**choices, "iterations": 6}, saving=Saving(file))
    with np.load(file) as kept:
        names = [name for name in kept.files if name.startswith("line.factors")]
        assert any(kept[name].any() for name in names)
        assert all("@" not in name for name in names)
        assert any(name.startswith("line.residual@2") for name in kept.files)
    after = run({**choices, "iterations": 12}, ranks=2, saving=Saving(file, resume=True))
    assert after["loss"][-1] < before["loss"][-1]


OTHERS = ({"optimizer": "lamb", "iterations": 40}, {"fusion": "bo:8KB..100KB", "iterations": 20})


@pytest.mark.parametrize("choices", [*OTHERS, {"fusion": "tensors"}, {"dtype": "fp64"}])
def test_it_goes_with_optimisers_of_tensors_and_with_other_buckets(choices):
    """And with other types."""
    report = run({"wire": "acp:4", "iterations": 10} | choices)
    assert report["loss"][-1] < report["loss"][0]


# Its routes -----------------------------------------------------------------------------------------------------------

ROUTES = {wire: find_route("full", wire=wire) for wire in ("acp:1", "powersgd:1", "acp:1:after=1", "noise:1%")}
CASES = [(wire, what, mutant) for wire in ROUTES for what, mutant in mutants(ROUTES[wire])]


@pytest.mark.parametrize(("wire", "what", "mutant"), CASES, ids=[f"{wire}, {what}" for wire, what, _ in CASES])
def test_a_mutant_is_refused_or_ranks_end_alike(wire, what, mutant):
    check_refused_or_alike(f"full over {wire}", mutant, 3)


def test_a_shard_of_codes_is_no_shard_of_gradients():
    """A rank that has one shard of the codes can make nothing of it; nor of a shard of the gradients."""
    route = ROUTES["acp:1"]
    pack, recall, project, reduce = route.out
    gather, expand, update, unpack = route.back
    own = replace(update, shard=True, on="engine")
    values = replace(gather, buffer="values")
    assert "has no whole value" in verdict(replace(route, back=(expand, own, values, unpack)))
    early = replace(reduce, buffer="gradients")
    assert "has no whole value" in verdict(replace(route, out=(pack, early, recall, project, reduce)))


def test_explain_shows_the_route_of_a_wire():
    shown = succeed("explain", "--wire", "powersgd:4:after=50")
    assert "all_reduce" in shown.output
    assert "from 50 on" in shown.output
    assert "each gradient of each rank counts once" in shown.output


@pytest.mark.parametrize(("wire", "floats"), [("acp:4", 4 * 1024), ("powersgd:4", 2 * 4 * 1024)])
def test_factors_of_matrices_are_priced_by_the_shapes_of_a_profile(wire, floats):
    dense, codes = (simulated(profile=PROFILE, wire=each).row["exposed_comm_s"] for each in ("fp32", wire))
    rank = LowRank(4)
    passes = rank.encode_s * (1 if wire == "acp:4" else 1.5) + rank.decode_s
    assert dense - codes == pytest.approx(ring_s(4, 4) * (1 - floats / COUNT) - COUNT * passes, rel=1e-6)


def test_a_table_has_no_matrices():
    with pytest.raises(ValueError, match="a table of layers has no shapes"):
        list(simulate(Settings(wire="acp:4", ranks=(4,), models=("synthetic:resnet50",))))
