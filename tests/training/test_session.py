"""The front door: a user's own model, on threads; tests/mpi/test_training.py has the same under mpirun."""

import gc
import os
import weakref

import numpy as np
import pytest

from dear_mpi.collectives.program.errors import CollectiveError
from dear_mpi.collectives.transports.loopback import run_loopback
from dear_mpi.kernels.optimizers import SGD, Adam, AdamW
from dear_mpi.models.layers import Dense, Gelu, Parameter, SoftmaxCrossEntropy
from dear_mpi.training import Session
from dear_mpi.training.schedules import SCHEDULES
from tests.training_checks import KINDS, agreed, batch, on_all, session_script, steps


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_the_script_of_the_page_trains(threads, capsys):
    script, lines = session_script()
    assert lines <= 25
    exec(script.replace("run_world(main)", f"run_world(main, threads={threads})"), {})
    assert float(capsys.readouterr().out.removeprefix("loss ")) < 0.05


def layers():
    rng = np.random.default_rng(0)
    return [Dense("first", rng.standard_normal((6, 40))), Gelu(), Dense("last", rng.standard_normal((40, 4)))]


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_buckets_may_be_cut_anew_at_any_time(ranks):
    """Every third iteration, with state that must stay: the very same bits, under every schedule."""

    def trained(transport, schedule, policies):
        options = {"schedule": schedule, "algorithm": "ordered", "fusion": policies[0], "clip": 1.0}
        with Session(layers(), SoftmaxCrossEntropy(), transport, optimizer=Adam(0.01), **options) as session:
            plans = []
            for iteration in range(12):
                if iteration % 3 == 2:
                    session.cut(policies[iteration % len(policies)])
                plans.append(set(map(id, session.group.fabric.plans.values())))
                session.step(*batch(iteration, transport.rank))
            session.flush()
            assert policies == ["25MB"] or plans[0] != plans[-1]
            return session.parameters_sha256()

    digests = set()
    for schedule in SCHEDULES if ranks == 3 else KINDS:
        for policies in (["25MB"], ["none", "cut:256B", "25MB", "cut:128B", "none"]):
            digests.update(on_all(lambda transport, s=schedule, p=policies: trained(transport, s, p), ranks))
    assert len(digests) == 1


@pytest.mark.parametrize(("algorithm", "fusion"), [("auto", "25MB"), ("ring", "mgwfbp")])
def test_the_memory_of_a_session_that_is_over_goes_with_its_layers(algorithm, fusion):
    """At once: hundreds of sessions held up to 1.2 GB, until Python looked for cycles."""

    def trained(transport):
        options = {"algorithm": algorithm, "fusion": fusion}
        with Session(layers(), SoftmaxCrossEntropy(), transport, **options) as session:
            steps(session, 5)
            return weakref.ref(session.group.arena.values.base)

    gc.collect()
    gc.disable()
    try:
        assert [memory() for memory in on_all(trained, 2)] == [None, None]
    finally:
        gc.enable()


class Other(Gelu):
    pass


def frozen(rank):
    mine = [Dense("one", np.eye(6)), Dense("two", np.eye(6))]
    mine[rank % 2].weight.trained = False
    return mine


def tied(rebind):
    mine = [Dense("one", np.eye(6)), Dense("two", np.eye(6))]
    mine[1].weight.value = mine[0].weight.value
    mine[0].weight.rebind, mine[1].weight.rebind = rebind, not rebind
    return mine


def overlapping(part):
    weight = np.arange(36.0).reshape(6, 6)
    return [Dense("a", weight), Dense("b", part(weight))]


def empty():
    model = [Dense("a", np.zeros((6, 0)))]
    model[0].bias.trained = False
    return model


def typed(dtype):
    return {"layers": lambda rank: [Dense("a", np.eye(6, dtype=dtype))]}


TYPES = "parameter a.bias must have one of the types fp64, fp32, fp16, bf16, not "
SHARE = "share a part of their memory"
REFUSED = [
    ({"schedule": "daer"}, "session: schedule 'daer' is unknown: did you mean 'dear'?"),
    ({"fusoin": "none"}, "session: option 'fusoin' is unknown: did you mean 'fusion'?"),
    ({"optimizer": "adam"}, "session: optimizer must be an Optimizer, such as Adam(lr=0.001)"),
    ({"wire": "fp99"}, "session: wire 'fp99' is unknown"),
    ({"accumulate": 1.5}, "session: accumulate must be a whole number of at least 1, not 1.5"),
    ({"calls": [0, 1, 5]}, "session: calls must be of numbers below 3, the layers of the model, not 5"),
    ({"schedules": "dear"}, "schedules must be a sequence of names, not 'dear'"),
    ({"optimizer": lambda rank: AdamW(0.1) if rank else Adam(0.1)}, "session: optimizer must be the same on all ranks"),
    ({"layers": lambda rank: [*layers()[:1], Other() if rank else Gelu()]}, "of Dense, Gelu, SoftmaxCrossEntropy"),
    ({"layers": frozen}, "session: model must be the same on all ranks"),
    ({"layers": lambda rank: tied(rebind=False)}, "two.weight is tied"),
    ({"layers": lambda rank: tied(rebind=True)}, "two.weight is tied"),
    *(
        ({"layers": lambda rank, part=part: overlapping(part)}, SHARE)
        for part in (lambda w: w.T, lambda w: w[:, ::-1], lambda w: w.reshape(-1)[:36].reshape(4, 9))
    ),
    ({"layers": lambda rank: empty()}, "a model must have a parameter that is trained, with an element"),
    *((typed(each), TYPES) for each in (bool, np.int64, np.longdouble, np.complex64)),
]


@pytest.mark.parametrize(("options", "said"), REFUSED)
def test_what_cannot_be_trained_is_refused_on_all_ranks(options, said):
    def body(transport):
        own = {name: value(transport.rank) if callable(value) else value for name, value in options.items()}
        Session(own.pop("layers", None) or layers(), SoftmaxCrossEntropy(), transport, **own)

    assert said in agreed(body)


def test_unequal_parts_need_a_total():
    def body(transport, total=None):
        with Session(layers(), SoftmaxCrossEntropy(), transport, optimizer=SGD()) as session:
            return session.step(*batch(0, transport.rank, rows=2 + transport.rank), total=total)

    assert "ranks expect different numbers of targets in the whole batch, 9 on average" in agreed(body)
    agreed(lambda transport: body(transport, 9))
    said = agreed(lambda transport: body(transport, 12))
    assert "total must be at most 9, the targets of all ranks, not 12: if ranks have unequal parts" in said


@pytest.mark.parametrize("shape", [(7, 3), (16,), (5,), ()])
def test_the_loss_is_given_all_targets_whatever_their_shape(shape):
    """A batch that is split must have an entry for each example, or it is refused before anything is sent."""

    def body(transport, accumulate):
        loss = Summed()
        options = {"optimizer": SGD(1e-9), "accumulate": accumulate}
        with Session([Dense("a", np.eye(6))], loss, transport, **options) as session:
            session.step(np.ones((8, 6)), np.zeros(shape))
            return loss.shapes

    assert on_all(lambda transport: body(transport, 1)) == [[shape]] * 3
    with pytest.raises(ValueError, match=r"targets of shape \(.*\) cannot be split like x, of shape \("):
        on_all(lambda transport: body(transport, 2))


@pytest.mark.parametrize("total", [-1, 2.5, float("nan"), "many", [4, 4]])
def test_a_total_must_be_a_whole_number(total):
    def body(transport):
        with Session([Dense("a", np.eye(6))], SoftmaxCrossEntropy(), transport) as session:
            session.step(np.ones((8, 6)), np.zeros(8, int), total=total)

    with pytest.raises(ValueError, match="total must be a whole number, the targets of all ranks that count, not"):
        on_all(body)


def test_a_total_may_be_0_only_if_the_loss_is():
    """No target of the whole batch counts, as ``ignore_index`` may have it."""

    def body(transport, factor):
        with Session([Dense("a", np.eye(6))], Summed(), transport) as session:
            return session.step(np.full((8, 6), factor), np.zeros(8), total=0)

    assert on_all(lambda transport: body(transport, 0.0)) == [0.0] * 3
    assert on_all(lambda transport: body(transport, 1.0)) == ["total must not be 0, because the loss is not: 144"] * 3


def test_a_layer_of_the_session_runs_where_the_order_says():
    def body(transport, order):
        with Session(layers(), SoftmaxCrossEntropy(), transport, calls=order) as session:
            return session.group.layout.calls

    assert on_all(lambda transport: body(transport, [0, 1, 2]), 1) == [((0, 1), (), (2, 3))]

    def other(transport):
        turned = [Dense("b", np.eye(6)), Dense("a", np.eye(6))]
        with Session(turned, SoftmaxCrossEntropy(), transport, calls=[1, 0, 1], fusion="none") as session:
            loss = [session.step(np.ones((2, 6)), np.zeros(2, int)) for _ in range(20)]
            return session.group.layout.calls, loss[-1] < loss[0]

    assert on_all(other, 2) == [(((0, 1), (2, 3), (0, 1)), True)] * 2


def test_an_overflow_of_the_first_loss_scale_skips_an_iteration_of_half_floats():
    """What comes in is infinite, so gradients are NaN: no layer is to blame."""

    def body(transport):
        rng = np.random.default_rng(1)
        weights = (factor * rng.standard_normal((6, 6)) for factor in (0.01, 100))
        model = [Dense(f"dense{number}", each.astype(np.float16)) for number, each in enumerate(weights)]
        with Session(model, SoftmaxCrossEntropy(), transport, optimizer=SGD(1e-9), loss_scale="dynamic") as session:
            with np.errstate(all="ignore"):
                for _ in range(3):
                    session.step(rng.standard_normal((4, 6)).astype(np.float16), np.zeros(4, int))
                session.flush()
            return session.group.loss_scale.skipped > 0

    assert on_all(body) == [True] * 3


def test_large_numbers_of_targets_are_compared_exactly():
    """95 million and one: its square is no number of float64."""

    def body(transport, more):
        with Session([Dense("a", np.eye(6))], Summed(), transport, optimizer=SGD(1e-9)) as session:
            session.step(np.ones((1, 6)), np.zeros(95_000_001, bool), total=3 * 95_000_001 + more * transport.rank)
        return "trained"

    assert on_all(lambda transport: body(transport, 0)) == ["trained"] * 3
    assert all("ranks expect different numbers of targets" in said for said in on_all(lambda each: body(each, 1)))


class Summed:
    def __init__(self):
        self.shapes = []

    def forward(self, y, targets):
        self.y = y
        self.shapes.append(targets.shape)
        return y.sum()

    def backward(self, scale):
        return np.full_like(self.y, scale)


def test_what_the_last_iteration_did_wrong_is_said_by_the_flush():
    def body(transport, scale):
        with Session(layers(), SoftmaxCrossEntropy(), transport, wire="fp16", optimizer=SGD(1e-9)) as session:
            for iteration in range(2):
                x, targets = batch(iteration, transport.rank)
                session.step(x * scale[iteration], targets)

    assert on_all(lambda transport: body(transport, [1, 1])) == [None] * 3
    assert "are infinite or not a number in update 1" in agreed(lambda transport: body(transport, [1, 1e9]))


def test_a_session_that_is_over_says_so():
    def body(transport):
        with Session(layers(), SoftmaxCrossEntropy(), transport) as session:
            session.step(*batch(0, transport.rank))
        with pytest.raises(CollectiveError, match="the session is over"):
            session.step(*batch(1, transport.rank))
        return np.geterr()["over"]

    assert on_all(body) == ["warn"] * 3


def test_threads_with_the_same_layers_are_refused():
    """Each would train them with a part of the batch, one over the other."""
    shared = layers()
    said = agreed(lambda transport: Session(shared, SoftmaxCrossEntropy(), transport), 2)
    assert "is trained by another session that is not over; ranks that are threads need layers of their own" in said


def test_a_value_that_was_bound_anew_is_named():
    def body(transport):
        mine = layers()
        with Session(mine, SoftmaxCrossEntropy(), transport) as session:
            session.step(*batch(0, transport.rank))
            session.flush()
            mine[0].weight.value = np.zeros((6, 40))
            session.step(*batch(1, transport.rank))

    assert "parameter first.weight: its value was bound to another array; change it in place" in agreed(body)


def replaced(layers):
    layers[0].weight = Parameter.of("new", layers[0].weight.value.copy())
    layers[0].parameters = (layers[0].weight, layers[0].bias)


def added(layers):
    layers[1].parameters = (Parameter.of("new", np.zeros(3)),)


def removed(layers):
    layers[2].parameters = (layers[2].weight,)


@pytest.mark.parametrize("change", [replaced, added, removed])
@pytest.mark.parametrize("where", [{1}, {0, 1, 2}])
def test_other_parameters_of_a_layer_are_refused_on_all_ranks(change, where):
    """They would be used, and never trained."""

    def body(transport):
        mine = layers()
        with Session(mine, SoftmaxCrossEntropy(), transport) as session:
            session.step(*batch(0, transport.rank))
            if transport.rank in where:
                change(mine)
            session.step(*batch(1, transport.rank))

    assert "its trained parameters were replaced, added or removed since the session began; begin a new" in agreed(body)


@pytest.mark.parametrize("update", ["full", "sharded"])
def test_schedules_take_turns_without_a_flush_between_them(update):
    """What one has left under way ends before another one begins: the same bits as under one of them."""

    def trained(transport, *schedules):
        options = {"schedules": [*dict.fromkeys(schedules)], "fusion": "none", "algorithm": "ordered", "update": update}
        with Session(layers(), SoftmaxCrossEntropy(), transport, optimizer=Adam(0.01), **options) as session:
            for iteration in range(6):
                x, targets = batch(iteration, transport.rank)
                session.iterate(schedules[iteration % len(schedules)], x, targets, len(targets) * transport.size)
            session.flush()
            return session.parameters_sha256()

    together = on_all(lambda transport: trained(transport, "dear", "wfbp", "fsdp"))
    assert {*together} == {*on_all(lambda transport: trained(transport, "sequential"))}


@pytest.mark.parametrize("wrong", [{"segment_bytes": -5}, {"algorithm": "ring", "clip": -1.0}])
def test_layers_of_a_session_that_could_not_open_are_free(wrong):
    mine = layers()

    def body(transport):
        with pytest.raises((ValueError, CollectiveError)):
            Session(mine, SoftmaxCrossEntropy(), transport, **wrong)
        with Session(mine, SoftmaxCrossEntropy(), transport) as session:
            return session.step(*batch(0, 0))

    (loss,) = on_all(body, ranks=1)
    assert np.isfinite(loss)


@pytest.mark.parametrize("saves", [False, True])
def test_parameters_that_ranks_have_changed_differently_are_named(saves, tmp_path):
    """As a layer that changes its values in forward, by its own part of the batch."""

    def body(transport):
        mine = layers()
        with Session(mine, SoftmaxCrossEntropy(), transport) as session:
            session.step(*batch(0, transport.rank))
            session.flush()
            mine[2].weight.value[0] *= 1.0 + transport.rank // 2
            if saves:
                session.save(tmp_path / "run.npz")

    assert "parameter 2 (last.weight) must be the same on all ranks, not checksum " in agreed(body)
    assert list(tmp_path.iterdir()) == []


class Forks(Dense):
    """In its second pass, a child runs what a test gives it and comes back, unless that ends it."""

    passes = 0

    def forward(self, x):
        self.passes += 1
        if self.passes == 2:
            child = os.fork()
            if child == 0:
                self.in_child()
            else:
                self.status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return super().forward(x)


def leave(status):
    raise SystemExit(status)


@pytest.mark.parametrize(("in_child", "status", "said"), [
    (lambda: 1 / 0, 1, "ZeroDivisionError: division by zero"),
    (lambda: leave(3), 3, ""),
    (lambda: None, 1, "is a forked child of a rank, and cannot train"),
    (lambda: os._exit(4), 4, ""),
], ids=["raises", "exits", "goes on", "ends itself"])  # fmt: skip
def test_a_forked_child_ends_alone(in_child, status, said, capfd):
    """It must not wait for a thread that it does not have, nor take its rank's way out of the session."""

    def body(transport):
        layer = Forks("a", np.eye(6))
        layer.in_child = in_child
        with Session([layer], SoftmaxCrossEntropy(), transport) as session:
            for _ in range(3):
                session.step(np.ones((8, 6)), np.zeros(8, int))
            return layer.status

    assert run_loopback(1, body) == [status]
    assert said in capfd.readouterr().err
