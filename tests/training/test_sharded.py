"""``--update sharded``: each rank has a part of the optimiser's state, and all have the very same bits."""

from itertools import product

import numpy as np
import pytest

from dear_mpi.collectives.program.program import chunk_bounds
from dear_mpi.collectives.transports.loopback import run_loopback
from dear_mpi.kernels.optimizers import SGD, Adam, AdamW
from dear_mpi.models.layer import Parameter
from dear_mpi.models.layers import Dense, Gelu, SoftmaxCrossEntropy
from dear_mpi.training import Session
from dear_mpi.training.fabric.fabric import LOSS, VERDICT, Order
from dear_mpi.training.fabric.live import LiveFabric
from dear_mpi.training.learning_rate import Cosine
from dear_mpi.training.routes.find import SHARDED, UPDATES
from dear_mpi.training.schedules import SCHEDULES, Dear, Wfbp
from tests.training_checks import KINDS, agreed, batch, on_all, steps, third

OPTIONS = [
    {"optimizer": Adam(0.01), "fusion": "none"},
    {"optimizer": SGD(0.1, momentum=0.9), "fusion": "cut:256B", "wire": "bf16", "accumulate": 2},
    {"optimizer": AdamW(0.01), "fusion": "cut:128B", "clip": 0.5},
    {"optimizer": Adam(), "wire": "fp16", "loss_scale": "dynamic", "clip": 1.0, "learning_rate": Cosine(0.01, 9)},
]
IDS = ["adam", "sgd", "adamw", "scaled"]


def layers():
    """With a tied weight, a frozen bias, and a parameter that stays in its own memory."""
    rng = np.random.default_rng(0)
    first, last = Dense("first", rng.standard_normal((6, 6))), Dense("last", rng.standard_normal((6, 4)))
    tied = Dense("tied", first.weight.value)
    tied.bias.trained, last.weight.rebind = False, False
    return [first, Gelu(), tied, Gelu(), last]


def trained(transport, schedule, update, *, recut=False, **options):
    """The parameters behind nine iterations, and the bytes of state on this rank."""
    options = {"algorithm": "ordered", "schedule": schedule, "update": update} | options
    with Session(layers(), SoftmaxCrossEntropy(), transport, **options) as session:
        for iteration in range(9):
            if recut and iteration % 3 == 2:
                session.cut(["25MB", "cut:128B", "none"][iteration // 3])
            session.step(*batch(iteration, transport.rank))
        session.flush()
        return session.parameters_sha256(), sum(array.nbytes for array in session.group.arena.state)


@pytest.mark.parametrize("ranks", [1, 3, 4])
@pytest.mark.parametrize(("number", "options"), list(enumerate(OPTIONS)), ids=IDS)
def test_same_bits_as_with_whole_updates(number, options, ranks):
    """Under every schedule, and when buckets are cut anew; in the memory of a rank's share."""
    ((expected, whole),) = set(run_loopback(ranks, lambda each: trained(each, "sequential", "full", **options)))
    for recut, schedules in {False: third(number + ranks), True: KINDS}.items():
        for schedule in schedules:
            run = lambda each, s=schedule, r=recut: trained(each, s, "sharded", recut=r, **options)  # noqa: E731
            assert set(run_loopback(ranks, run)) == {(expected, whole // ranks)}


def test_an_overflow_is_told_to_all_ranks_alike():
    """One rank alone meets it, in its shard; all raise what they raise with whole updates."""

    def broken(transport, update):
        options = {"update": update, "fusion": "none", "optimizer": Adam()}
        with Session(layers(), SoftmaxCrossEntropy(), transport, **options) as session:
            steps(session, 2)
            if transport.rank == 1:
                session.loss.backward = lambda scale: np.full((4, 4), 1e308) * [[0, 0, 0, 1e308]]
            steps(session, 2, 4)

    full, sharded = (agreed(lambda each, u=update: broken(each, u)) for update in ("full", "sharded"))
    assert full == sharded
    assert "gradients, summed in float64, are infinite or not a number in update 2" in full


@pytest.mark.parametrize("algorithm", ["ring", "auto", "bruck", "naive"])
@pytest.mark.parametrize("schedule", KINDS)
def test_same_bits_with_other_algorithms(algorithm, schedule):
    """Where an all-reduce is a reduce-scatter and an all-gather, and so sums in one order."""
    options = {"algorithm": algorithm, "fusion": "25MB", "optimizer": Adam(0.01)}
    digests = {run_loopback(3, lambda each, u=update: trained(each, "dear", u, **options)[0])[0] for update in UPDATES}
    digests.add(run_loopback(3, lambda each: trained(each, schedule, "sharded", **options)[0])[0])
    assert len(digests) == 1


def test_algorithms_must_have_both_halves():
    assert trained_alone("wfbp", "full", algorithm="recursive_doubling"), "it has all_reduce"
    said = agreed(lambda each: trained(each, "wfbp", "sharded", algorithm="recursive_doubling"), 2)
    assert "schedule 'wfbp' on the route 'sharded' takes reduce_scatter and all_gather: algorithm" in said


def trained_alone(schedule, update, **options):
    return run_loopback(2, lambda each: trained(each, schedule, update, **options)[0])[0]


class Early(Dear):
    """Lets the first all-gather go before the last reduce-scatter."""

    def __init__(self, fabric):
        super().__init__(fabric)
        first, *others = [bucket.index for bucket in reversed(fabric.buckets)]
        self.order = [("reduce_scatter", first), ("all_gather", first)]
        self.order += [(each, number) for each in ("reduce_scatter", "all_gather") for number in others]


@pytest.mark.parametrize("update", UPDATES)
def test_no_gather_may_go_before_the_verdict(update, monkeypatch):
    """It would be of values that the verdict of the iteration before has scaled; or wait for ever."""
    monkeypatch.setitem(SCHEDULES, "early", Early)
    said = agreed(lambda each: trained(each, "early", update, clip=0.5, fusion="none"), 2)
    assert "schedule 'early' has an order in which an all_gather goes before the last reduction" in said
    assert trained_alone("early", update, fusion="none") == trained_alone("dear", "full", fusion="none")


class Flat:
    """A layer whose gradient is 1."""

    def __init__(self):
        self.parameters = [Parameter.of("flat", np.zeros(40, np.float32))]

    def forward(self, x):
        return x

    def backward(self, dy):
        self.parameters[0].grad[...] = 1.0
        return dy


@pytest.mark.parametrize("update", UPDATES)
def test_each_update_has_its_rate(update):
    """Also behind a checkpoint, and where the rate is one of NumPy's numbers."""

    def body(transport):
        options = {"update": update, "learning_rate": lambda number: np.float64(2.0**-number)}
        layer, again = Flat(), Flat()
        with Session([layer], SoftmaxCrossEntropy(), transport, optimizer=SGD(1.0), **options) as session:
            for _ in range(3):
                session.step(np.zeros((1, 2)), np.zeros(1, int))
            state = session.state()
        with Session([again], SoftmaxCrossEntropy(), transport, optimizer=SGD(1.0), **options) as session:
            session.load(state)
            session.step(np.zeros((1, 2)), np.zeros(1, int))
            session.flush()
            return set(again.parameters[0].value.tolist()), again.parameters[0].value.dtype.name

    assert run_loopback(2, body) == [({-2 * (1 + 1 / 2 + 1 / 4 + 1 / 8)}, "float32")] * 2


def test_values_that_overflow_are_no_gradients_that_do():
    """Both say the same, in the same iteration: the gradients are finite."""

    def body(transport, update):
        with Session(layers(), SoftmaxCrossEntropy(), transport, update=update, optimizer=SGD(1e300)) as session:
            steps(session, 4)

    said = {text for update in UPDATES for text in on_all(lambda each, u=update: body(each, u))}
    assert len(said) == 1
    assert said != {None}


def test_a_checkpoint_knows_nothing_of_shards(tmp_path):
    """Another session goes on from it, with whole updates or on other ranks."""
    file = tmp_path / "run.npz"

    def body(transport, update, iterations, fusion):
        options = {"algorithm": "ordered", "optimizer": Adam(0.01), "update": update, "fusion": fusion}
        with Session(layers(), SoftmaxCrossEntropy(), transport, **options) as session:
            done = session.resume(file) if file.exists() else 0
            for iteration in range(done, iterations):
                x, targets = batch(iteration, 0)
                own = slice(*chunk_bounds(len(x), transport.size, transport.rank))
                session.step(x[own], targets[own], total=len(x))
            session.save(file, iterations)
            return np.concatenate([parameter.value.ravel() for parameter in session.parameters])

    expected = run_loopback(3, lambda each: body(each, "full", 6, "25MB"))[0]
    for first, second in (("sharded", "full"), ("full", "sharded"), ("sharded", "sharded")):
        file.unlink()
        run_loopback(3, lambda each, u=first: body(each, u, 3, "cut:128B"))
        assert (run_loopback(3, lambda each, u=second: body(each, u, 6, "none"))[0] == expected).all()
    file.unlink()
    for ranks, iterations in ((3, 2), (1, 4), (2, 6)):
        found = run_loopback(ranks, lambda each, n=iterations: body(each, "sharded", n, "none"))[0]
    assert found == pytest.approx(expected, rel=1e-10)


class Ordered(Wfbp):
    """An order decided in advance."""

    def __init__(self, fabric):
        super().__init__(fabric)
        self.order = [("all_reduce", bucket.index) for bucket in reversed(fabric.buckets)]


class Backwards(Dear):
    """The all-gathers in another order than they are started."""

    def __init__(self, fabric):
        super().__init__(fabric)
        numbers = [bucket.index for bucket in fabric.buckets]
        self.order = [("reduce_scatter", number) for number in reversed(numbers)]
        self.order += [("all_gather", number) for number in numbers]


@pytest.mark.parametrize("schedule", [Ordered, Backwards])
@pytest.mark.parametrize("clip", [None, 0.5])
def test_an_order_of_the_iteration(schedule, clip, monkeypatch):
    monkeypatch.setitem(SCHEDULES, "mine", schedule)
    options = {"clip": clip, "fusion": "none", "optimizer": Adam(0.01)}
    runs = product(("mine", "wfbp"), ("full", "sharded"))
    assert len({run_loopback(3, lambda each, run=run: trained(each, *run, **options)[0])[0] for run in runs}) == 1


def test_where_the_gathers_of_an_order_go():
    fabric = object.__new__(LiveFabric)
    fabric.route, fabric.judged, fabric.followed, fabric.order = SHARDED, False, None, Order()
    order = [("all_reduce", 1), ("all_reduce", 0)]
    fabric.follow(order)
    whole = [turn.key for turn in fabric.order.turns]
    assert whole == [LOSS, ("all_reduce", 1), ("all_gather", 1), ("all_reduce", 0), ("all_gather", 0)]
    fabric.judged = True
    fabric.follow([*order])
    whole = [turn.key for turn in fabric.order.turns]
    assert whole == [LOSS, *order, VERDICT, ("all_gather", 0), ("all_gather", 1)]


def test_a_parameter_in_its_own_memory_has_the_values_of_all_shards():
    def body(transport):
        weight = np.random.default_rng(1).standard_normal((40, 4))
        mine = Dense("only", weight)
        mine.parameters[0].rebind = False
        assert isinstance(mine.weight, Parameter)
        with Session([mine], SoftmaxCrossEntropy(), transport, update="sharded", algorithm="ordered") as session:
            for iteration in range(3):
                rng = np.random.default_rng([iteration, transport.rank])
                session.step(rng.standard_normal((4, 40)), rng.integers(0, 4, 4))
            session.flush()
            assert (session.group.arena.view(session.group.arena.values, 0) == mine.weight.value).all()
            return session.parameters_sha256()

    assert len(set(run_loopback(3, body))) == 1
