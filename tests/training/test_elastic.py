"""Sessions outlive ranks: the bits of an undisturbed run, or of a replay of the log of members.

EVERY=1 plants 300 deaths of each kind; otherwise a tenth of them.
"""

import random
from functools import cache
from itertools import pairwise

import numpy as np
import pytest

from dear_mpi.collectives.program.errors import AgreedError, ArgumentError, RanksLost
from dear_mpi.collectives.program.program import chunk_bounds
from dear_mpi.collectives.transports.loopback import run_loopback
from dear_mpi.kernels.optimizers import SGD, AdamW, Muon
from dear_mpi.models.layers import Dense, SoftmaxCrossEntropy
from dear_mpi.training import Session
from dear_mpi.training.buckets.bound import BoundBucket
from dear_mpi.training.kept import Kept
from tests.collectives.test_elastic import Death, Doomed
from tests.training.route_checks import layers
from tests.training_checks import EVERY, Mixes

BATCH, ITERATIONS = 24, 6
SEEDS = 300 if EVERY else 30
SCHEDULES = ("sequential", "wfbp", "dear", "dear-eager", "mg-wfbp")
SHARDED = ("wfbp", "dear", "dear-eager", "zero", "fsdp")
LOST = "died at once, and both copies of a shard"
USUAL = {"optimizer": AdamW(0.01), "fusion": "cut:128B"}


def part(session, iteration):
    """This rank's part of a batch, and the number of its targets."""
    rng = np.random.default_rng(iteration)
    x, targets = rng.standard_normal((BATCH, 6)), rng.integers(0, 4, BATCH)
    if session.options.invariant:
        each = BATCH // session.options.invariant
        own = slice(session.micro_batches.start * each, session.micro_batches.stop * each)
    else:
        own = slice(*chunk_bounds(BATCH, session.world.size, session.world.rank))
    return x[own], targets[own], BATCH


def steps(session, until, file=None):
    while session.iterations < until:
        x, targets, total = part(session, session.iterations)
        session.step(x, targets, total=total)
        if file is not None and session.iterations % 2 == 0:
            session.save(file)


def run(transport, file=None, **options):
    """Train to the end in spite of deaths; return the SHA-256 and the log of members."""
    with Session(layers(), SoftmaxCrossEntropy(), transport, elastic=True, **USUAL | options) as session:
        lost = []
        session.survival.outlive(lambda: steps(session, ITERATIONS, file), lost.append)
        log = session.survival.log
        assert sorted(rank for each in lost for rank in each.ranks) == sorted(
            rank for each in log for rank in each.lost
        )
        return session.parameters_sha256(), [(each.iteration, each.ranks) for each in log]


def replayed(log, **options):
    """Train with each of the logged groups of ranks in turn, without deaths."""
    state = None
    borders = [*(iteration for iteration, _ in log), ITERATIONS]
    for (_, ranks), (_, end) in zip(log, pairwise(borders), strict=True):

        def one(transport, state=state, end=end):
            with Session(layers(), SoftmaxCrossEntropy(), transport, **USUAL | options) as session:
                if state is not None:
                    session.load(state)
                steps(session, end)
                return session.state(), session.parameters_sha256()

        state, digest = run_loopback(len(ranks), one)[0]
    return digest


@cache
def undisturbed(invariant):
    return replayed([(0, (0,))], invariant=invariant)


def doomed(transport, deaths):
    """Let this rank die, if it is among them, in its n-th call to others."""
    if transport.rank in deaths:
        transport.below = Doomed(transport.below, [deaths[transport.rank]])
    return transport


def planned(rng, ranks, calls):
    """Some ranks, and the numbers of the calls in which they die: one rank, two in turn, two at once."""
    chosen = rng.sample(range(ranks), rng.choice((1, 1, 2)))
    first = rng.randint(1, calls)
    return {rank: first if rng.random() < 0.5 else rng.randint(1, calls) for rank in chosen}


def drawn(seed, schedules, files, variants, **choices):
    """A seed's ranks, file, options and deaths, and the result without deaths."""
    rng = random.Random(seed)
    ranks, schedule, file = rng.randint(3, 5), rng.choice(schedules), rng.choice(files)
    choices |= {"schedule": schedule, **rng.choice(variants)}
    plain, calls = counted(ranks, file, choices)
    return ranks, file, choices, planned(rng, ranks, calls), plain


@pytest.mark.parametrize("invariant", [8, None])
@pytest.mark.parametrize("group", range(3))
def test_planned_deaths(group, invariant, tmp_path):
    disturbed = 0
    for seed in range(SEEDS)[group::3]:
        files, momentum = (None, tmp_path / "run.npz"), {"optimizer": SGD(0.1, momentum=0.9)}
        variants = ({}, {"clip": 0.1}, {"accumulate": 3}, momentum)
        ranks, file, choices, deaths, plain = drawn(seed, SCHEDULES, files, variants, invariant=invariant)
        try:
            found = survivors(ranks, deaths, file, choices)
        except RanksLost as error:
            if error.iteration is not None:  # else it was before the session began
                raise
            continue
        assert len(found) >= ranks - len(deaths), seed
        assert found == found[:1] * len(found), seed
        digest, log = found[0]
        disturbed += len(log) > 1
        assert digest == (plain if invariant else replayed(log, **choices)), (seed, log)
    assert disturbed >= SEEDS // 3 // 2


@pytest.mark.parametrize("invariant", [8, None])
@pytest.mark.parametrize("group", range(3))
def test_planned_deaths_with_sharded_updates(group, invariant, tmp_path):
    """A shard is lost only with two neighbours: then all survivors report it."""
    disturbed = 0
    for seed in range(SEEDS)[group::3]:
        files, given = (None, None, tmp_path / "run.npz"), {"update": "sharded", "invariant": invariant}
        variants = ({}, {"clip": 0.1}, {"optimizer": SGD(0.1, momentum=0.9)}, {"optimizer": Muon(0.01)})
        ranks, file, choices, deaths, plain = drawn(seed, SHARDED, files, variants, **given)
        try:
            found = survivors(ranks, deaths, file, choices)
        except RanksLost as error:
            if error.iteration is not None:
                raise
            continue
        except AgreedError as error:
            if LOST not in str(error) or np.diff(sorted(deaths)) not in (1, ranks - 1):
                raise
            continue
        assert found == found[:1] * len(found), seed
        digest, log = found[0]
        disturbed += len(log) > 1
        assert digest == (plain if invariant else replayed(log, **choices)), (seed, log)
    assert disturbed >= SEEDS // 3 // 3


PHASES = {
    "before the update": (BoundBucket, "update_own", 3, False),
    "before the copy": (Kept, "share", 4, False),
    "before the gather": (Kept, "share", 4, True),
    "after the gather": (BoundBucket, "updated", 4, False),
}


@pytest.mark.parametrize("optimizer", [SGD(0.1, momentum=0.9), AdamW(0.01)], ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("schedule", ["wfbp", "dear", "dear-eager"])
@pytest.mark.parametrize("phase", PHASES)
def test_deaths_around_a_shards_update(phase, schedule, optimizer, monkeypatch):
    """The others have its state, or the one before it; of 5 ranks two die that are no neighbours."""
    ranks = {"wfbp": 3, "dear": 4, "dear-eager": 5}[schedule]
    place, name, number, late = PHASES[phase]
    plain, dead = getattr(place, name), {1} if ranks < 5 else {1, 4}

    def fails(self, *given):
        bound = getattr(self, "bound", self)
        for after in (False, True):
            if after:
                plain(self, *given)
            due = bound.ranks == ranks and bound.rank in dead and bound.bucket.index == 1
            if after == late and due and bound.own_updates == number:
                raise Death("as planned")

    monkeypatch.setattr(place, name, fails)
    choices = {"update": "sharded", "schedule": schedule, "optimizer": optimizer}
    found = survivors(ranks, {}, None, choices | {"invariant": 8})
    digest, log = found[0]
    assert found == found[:1] * len(found)
    assert ranks - len(dead) <= len(found) < ranks
    assert log[1][0] in ((3, 4) if phase == "after the gather" else (3,))
    assert digest == replayed([(0, (0,))], optimizer=optimizer, invariant=8)


@pytest.mark.parametrize(("second", "left"), [(3, (0, 2)), (2, None), (0, None)])
def test_a_neighbours_death_in_the_repair_of_shards(second, left):
    """A shard and its copy are lost, so all survivors report it; others are recovered."""

    def begin(transport):
        if transport.rank == 1:
            transport.below = Doomed(transport.below, [600])
        if transport.rank == second:
            transport.below = Doomed(transport.below, [1], ("shrink",))
        return run(transport, update="sharded", invariant=8)

    if left is None:
        with pytest.raises(AgreedError, match=f"ranks {min(second, 1)}, {max(second, 1)} {LOST}"):
            run_loopback(4, begin, elastic=True)
    else:
        digest, log = run_loopback(4, begin, elastic=True)[0]
        assert (digest, log[-1][1]) == (undisturbed(8), left)


def survivors(ranks, deaths, file, choices):
    return run_loopback(ranks, lambda each: run(doomed(each, deaths), file, **choices), elastic=True)


def counted(ranks, file, choices):
    """The SHA-256 without deaths, and the number of a rank's calls to others."""
    left = [10**9]

    def one(transport):
        if transport.rank == 0:
            transport.below = Doomed(transport.below, left)
        return run(transport, file, **choices)

    found = run_loopback(ranks, one, elastic=True)
    return found[0][0], 10**9 - left[0]


@pytest.mark.parametrize(
    ("call", "number"), [("agree", 1), ("shrink", 1), ("agree", 2), ("gather_values", 1), ("Wait", 1)]
)
def test_a_second_death_in_the_repair(call, number):
    """Of the agreement itself, or while the survivors make their new group."""

    def begin(transport):
        if transport.rank == 1:
            transport.below = Doomed(transport.below, [500])
        if transport.rank == 2:
            plain = transport.repair

            def repair(mask=0):
                if transport.size == 4 and not isinstance(transport.below, Doomed):
                    transport.below = Doomed(transport.below, [number], (call,))
                return plain(mask)

            transport.repair = repair
        return run(transport, invariant=8)

    digest, log = run_loopback(4, begin, elastic=True)[0]
    assert (digest, log[-1][1]) == (undisturbed(8), (0, 3))


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("bucket", [0, 2])
def test_a_death_in_the_optimizer(schedule, bucket, monkeypatch):
    plain = BoundBucket.update_own

    def fails(self, factor):
        if self.rank == 1 and self.ranks == 3 and self.bucket.index == bucket and self.own_updates == 3:
            raise Death("as planned")
        plain(self, factor)

    monkeypatch.setattr(BoundBucket, "update_own", fails)
    found = run_loopback(3, lambda each: run(each, schedule=schedule, invariant=8), elastic=True)
    at = found[0][1][1][0]
    assert at in (3, 4)  # the others have the sum, so they may update
    assert found == [(undisturbed(8), [(0, (0, 1, 2)), (at, (0, 2))])] * 2


def test_a_death_while_a_state_is_loaded_ends_the_session(monkeypatch):
    from dear_mpi.training import checkpoint

    state = run_loopback(1, lambda each: one_step(each).state())[0]
    plain = checkpoint.broadcast

    def fails(array, transport, root=0):
        if transport.rank == 1:
            raise Death("as planned")
        plain(array, transport, root)

    def load(transport):
        with Session(layers(), SoftmaxCrossEntropy(), transport, elastic=True, **USUAL) as session:
            session.load(state)

    monkeypatch.setattr(checkpoint, "broadcast", fails)
    with pytest.raises(Exception, match="no common state: start again"):
        run_loopback(3, load, elastic=True)


def one_step(transport):
    with Session(layers(), SoftmaxCrossEntropy(), transport, **USUAL) as session:
        steps(session, 1)
        return session


def test_a_loaded_state_is_a_beginning(monkeypatch):
    """Checkpoints and deaths together: the log begins where the checkpoint ends."""

    def state(transport):
        with Session(layers(), SoftmaxCrossEntropy(), transport, invariant=8, **USUAL) as session:
            steps(session, 3)
            return session.state()

    kept = run_loopback(2, state)[0]

    def rest(transport):
        with Session(layers(), SoftmaxCrossEntropy(), transport, invariant=8, elastic=True, **USUAL) as session:
            session.load(kept)
            doomed(transport, {1: 2})  # after all have come to the beginning
            return session.survival.outlive(lambda: steps(session, ITERATIONS), lambda lost: None), (
                session.parameters_sha256(),
                [(each.iteration, each.ranks) for each in session.survival.log],
            )

    found = run_loopback(3, rest, elastic=True)
    assert [each[1] for each in found] == [(undisturbed(8), [(3, (0, 2))])] * 2


@pytest.mark.parametrize(("choices", "what"), [
    ({"schedule": "local:2"}, "ranks differ in what they keep"),
    ({"schedule": "diloco:2"}, "ranks differ in what they keep"),
    ({"weights": (1, 2)}, "weights are of ranks that may die"),
    ({"loss_scale": "dynamic"}, "loss_scale and statistic"),
    ({"algorithm": "shared"}, "does not notice a death"),
    ({"algorithm": "native"}, "native"),
    ({"fusion": "mgwfbp"}, "is decided from measured times"),
    ({"schedules": ("dear", "wfbp")}, "one schedule"),
], ids=str)  # fmt: skip
def test_choices_that_lose_with_a_rank_are_refused(choices, what):
    def start(transport):
        with Session(layers(), SoftmaxCrossEntropy(), transport, elastic=True, **USUAL | choices):
            pass

    with pytest.raises(ArgumentError, match=what):
        run_loopback(2, start, elastic=True)


def test_exchanging_layers_and_new_cuts_are_refused():
    def mixing(transport):
        Session([Mixes("mixes", np.eye(6), transport)], SoftmaxCrossEntropy(), transport, elastic=True)

    def cutting(transport):
        with Session(layers(), SoftmaxCrossEntropy(), transport, elastic=True) as session:
            session.cut("none")

    for function, what in ((mixing, "layers exchange data"), (cutting, "cut must be left out")):
        with pytest.raises(ArgumentError, match=what):
            run_loopback(2, function, elastic=True)


def test_a_transport_that_ends_with_a_rank_is_refused():
    def start(transport):
        Session([Dense("only", np.eye(6))], SoftmaxCrossEntropy(), transport, elastic=True)

    with pytest.raises(ValueError, match="begin with run_world"):
        run_loopback(1, start)


def test_finish_is_not_needed_if_nobody_dies():
    def whole(transport):
        with Session(layers(), SoftmaxCrossEntropy(), transport, elastic=True, invariant=8, **USUAL) as session:
            steps(session, ITERATIONS)
        return session.parameters_sha256()

    assert run_loopback(3, whole, elastic=True) == [undisturbed(8)] * 3
