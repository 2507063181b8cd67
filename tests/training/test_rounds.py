"""Rounds: ranks train alone, and come together every so many iterations."""

from dataclasses import replace
from itertools import pairwise
from threading import Thread

import numpy as np
import pytest

from dear_mpi.collectives.program.errors import AgreedError
from dear_mpi.collectives.transports.loopback import run_loopback
from dear_mpi.models.layer import Parameter
from dear_mpi.ranks.world import run_world
from dear_mpi.simulate.settings import Settings
from dear_mpi.simulate.sweep import simulate
from dear_mpi.training import SGD, Session
from dear_mpi.training.routes import ENGINE, MAIN, Pack, Route, Unpack, Update, all_gather, find, reduce_scatter
from dear_mpi.training.routes.proof import RouteError, prove
from dear_mpi.training.runs.config import Config
from dear_mpi.training.runs.train import Saving, train
from dear_mpi.training.schedules import find_schedule
from dear_mpi.training.schedules.local import Delta, DiLoCo, Local, Outer, PostLocal
from tests.rooms import ROOT
from tests.training.route_checks import check_refused_or_alike
from tests.training.test_routes import mutants
from tests.training_checks import on_all, settings


def local(period, **how):
    return (PostLocal if how else Local).specialised(period=period, **how).own_route()


def diloco(period, **how):
    return DiLoCo.specialised(period=period, **how).own_route()


ROUTES = {
    "local": local(3),
    "post-local": local(3, after=2),
    "diloco": diloco(3),
    "streaming": diloco(3, delay=1, mix=0.5, staggered=True),
}
SPELT = ("local:3", "post-local:3:after=4", "diloco:3", "diloco:3:staggered=yes", "diloco:4:delay=2:mix=0.5")


# By own gradients, though all have the same values after each iteration.
SUMMED = Route(
    "summed ways",
    (Pack(), Update(on=MAIN), Delta(), reduce_scatter("delta")),
    (all_gather("delta"), Outer(lr=1.0, momentum=0.0), Unpack()),
)


def run(choices, ranks=3, **how):
    config = Config.of(settings(**{"model": "mlp", "fusion": "cut:8KB", "iterations": 12} | choices))
    return run_world(lambda world: train(config, world, **how), threads=ranks)


@pytest.mark.parametrize("name", ROUTES)
def test_they_are_proved_and_long_ones_too(name):
    proof = prove(ROUTES[name])
    assert (proof.alike, proof.exact, proof.state, proof.summed) == (False, False, "own", False)
    assert prove(local(500)) == prove(local(3))
    assert prove(diloco(500, delay=100, mix=0.5, staggered=True)) == prove(ROUTES["streaming"])


CASES = [(name, what, mutant) for name in ("local", "diloco") for what, mutant in mutants(ROUTES[name])]


@pytest.mark.parametrize(("name", "what", "mutant"), CASES, ids=[f"{name}, {what}" for name, what, _ in CASES])
def test_a_mutant_is_refused_or_ranks_end_alike(name, what, mutant):
    check_refused_or_alike(mutant.name, mutant, 6)


def test_what_was_sent_must_not_be_used_before_its_time():
    route = diloco(4, delay=3)
    *gathered, outer, unpack = route.back
    with pytest.raises(RouteError, match="may be late by less than a round, at the end of the way back"):
        prove(replace(route, back=(*gathered, replace(outer, after=4), unpack)))


@pytest.mark.parametrize("schedule", SPELT)
@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_at_the_end_all_ranks_are_alike(schedule, ranks):
    """In the middle of a round, too; ``train`` compares the ranks."""
    for iterations in (12, 8):
        assert len(run({"schedule": schedule, "iterations": iterations}, ranks=ranks)["loss"]) == iterations


def test_a_schedule_is_the_users_route_by_name():
    users = {"route": f"{ROOT}/tests/routes/local.py:local", "schedule": "dear"}
    assert run({"schedule": "local:4"})["params_sha256"] == run(users)["params_sha256"]


def test_averaging_is_diloco_without_an_outer_optimiser():
    """In float64: the two round differently, and in float32 the network amplifies that a thousandfold."""
    plain, outer = (run({"schedule": each, "dtype": "fp64"}) for each in ("local:4", "diloco:4:lr=1:momentum=0"))
    assert outer["loss"] == pytest.approx(plain["loss"], rel=1e-12)


def test_a_time_of_sums_comes_first():
    """To the bits of ``dear``."""
    dear, post = run({"schedule": "dear"}), run({"schedule": "post-local:4:after=8"})
    assert post["loss"][:8] == dear["loss"][:8]
    assert post["loss"][10:] != dear["loss"][10:]
    assert run({"schedule": "post-local:4:after=12"})["params_sha256"] == dear["params_sha256"]


class Lines(dict):
    """A bucket's memory, as far as stages of rounds need it."""

    def buffer(self, name):
        return self[name]


def test_an_outer_step_is_the_formula():
    """DiLoCo, algorithm 1, in float64, over three rounds: Nesterov as PyTorch has it."""
    lr, momentum, draw = 0.7, 0.9, np.random.default_rng(5)
    bucket = Lines({name: np.zeros(50) for name in ("anchor", "delta", "outer momentum", "values")})
    move, step = Delta().bind(bucket), Outer(lr=lr, momentum=momentum).bind(bucket)
    anchor, kept = np.zeros(50), np.zeros(50)
    for _ in range(3):
        bucket["values"][...] = draw.standard_normal(50)
        delta = anchor - bucket["values"]
        move(1.0)
        step(1.0)
        kept = momentum * kept + delta
        anchor = anchor - lr * (delta + momentum * kept)
        assert np.allclose(bucket["values"], anchor, rtol=1e-13)
        assert np.array_equal(bucket["values"], bucket["anchor"])


def test_late_news_are_mixed_with_what_a_rank_has_done_meanwhile():
    bucket = Lines(
        {"anchor": np.full(4, 8.0), "delta": np.ones(4), "outer momentum": np.zeros(4), "values": np.zeros(4)}
    )
    Outer(lr=1.0, momentum=0.0, mix=0.25).bind(bucket)(1.0)
    assert bucket["anchor"].tolist() == [7.0] * 4
    assert bucket["values"].tolist() == [0.75 * 7.0] * 4


@pytest.mark.parametrize("schedule", ["local:4", "diloco:4", "diloco:4:delay=2:mix=0.5:staggered=yes"])
@pytest.mark.parametrize("at", [4, 6])
def test_it_goes_on_from_a_checkpoint_to_the_same_bits(schedule, at, tmp_path):
    """A checkpoint within a round ends it, in the run that goes on, too."""
    saving = Saving(tmp_path / "c.npz", every=at)
    whole = run({"schedule": schedule, "debug": True}, saving=saving)
    run({"schedule": schedule, "iterations": at}, saving=Saving(tmp_path / "d.npz"))
    again = run({"schedule": schedule}, saving=Saving(tmp_path / "d.npz", every=at, resume=True))
    assert again["params_sha256"] == whole["params_sha256"]
    assert again["loss"] == whole["loss"]


def test_on_another_number_of_ranks_the_outer_momentum_goes_on(tmp_path):
    run({"schedule": "diloco:4", "fusion": "none", "iterations": 4}, saving=Saving(tmp_path / "c.npz"))
    with np.load(tmp_path / "c.npz") as kept:
        lines = [name for name in kept.files if name.startswith("line.outer momentum")]
        assert lines
        assert all("@" not in name for name in lines)
        assert any(kept[name].any() for name in lines)
    choices = {"schedule": "diloco:4", "fusion": "none", "iterations": 8}
    assert len(run(choices, ranks=2, saving=Saving(tmp_path / "c.npz", resume=True))["loss"]) == 8


@pytest.mark.parametrize(("choices", "said"), [
    ({"schedule": "local:0"}, "period must be a whole number above zero, not '0'"),
    ({"schedule": "local:-3"}, "period must be a whole number above zero, not '-3'"),
    ({"schedule": "diloco:10:mix=2"}, "mix must be a number from 0 to 1, not '2'"),
    ({"schedule": "diloco:4:delay=4"}, "delay must be less than the period, 4, not 4"),
    ({"schedule": "diloco:10:staggered=perhaps"}, "staggered must be yes or no, not 'perhaps'"),
    ({"schedule": "local:10:11"}, "has period twice"),
    ({"schedule": "local:10", "clip": 1.0}, "the route 'local:10' does not have them"),
    ({"schedule": "local:10", "wire": "int8"}, "sets the route: leave out wire"),
    ({"schedule": "local:10", "update": "sharded"}, "sets the route: leave out update"),
    ({"schedule": "local:10", "update": "full", "wire": "int8"}, "sets the route: leave out wire$"),
    ({"schedule": "local:10", "update": "sharded", "wire": "bf16"}, "sets the route: leave out update$"),
    ({"schedule": "local:10", "route": "full", "wire": "int8"}, "sets the route: leave out wire$"),
    ({"schedule": "local:10", "update": "auto", "wire": "int8"}, "sets the route: leave out update, wire$"),
    (
        {"schedule": "local:10", "wire": "fp16"},
        "wire 'fp16' does not apply, because no gradients travel under schedule 'local:10' on the route 'local:10'"
        ": leave it out, or give fp32, the type of the parameters",
    ),
    ({"schedule": "diloco:4:delay=2", "wire": "bf16"}, "'diloco:4:delay=2' on the route 'streaming:4'"),
    (
        {"route": f"{ROOT}/tests/routes/local.py:local", "wire": "fp16"},
        "no gradients travel under schedule 'dear' on the route 'local'",
    ),
])  # fmt: skip
def test_what_cannot_be_is_refused(choices, said):
    with pytest.raises((AgreedError, ValueError), match=said):
        run(choices)


def test_a_type_for_gradients_is_taken_where_gradients_travel():
    """Before the rounds begin. The parameters' own type changes nothing anywhere."""
    own, none = (run({"schedule": "local:4", "wire": wire}) for wire in ("fp32", None))
    assert own["params_sha256"] == none["params_sha256"]
    half, post = (run({"schedule": each, "wire": "fp16"}) for each in ("dear", "post-local:4:after=12"))
    assert half["params_sha256"] == post["params_sha256"]


def predicted(schedule, **choices):
    given = {"models": ("synthetic:resnet50",), "ranks": (4,), "network": "1gbit,50us", "schedules": (schedule,)}
    settings = Settings(**given | choices)
    settings.check()
    (found,) = [each for each in simulate(settings) if each.prediction.schedule == schedule]
    return found.prediction


def test_they_are_simulated_over_whole_rounds():
    rows = [predicted(f"local:{period}") for period in (1, 2, 10, 50)]
    assert all(one.exposed_s > other.exposed_s for one, other in pairwise(rows))
    assert rows[0].iteration_s == pytest.approx(predicted("dear").iteration_s, rel=0.01)
    assert all(row.iteration_s >= row.bound_s - 1e-9 for row in rows)


def test_what_is_used_late_is_hidden():
    """A link that is slower than a round's computation by less than the delay."""
    prompt, late = predicted("diloco:10:staggered=yes"), predicted("diloco:10:staggered=yes:delay=5")
    assert late.exposed_s < 0.02 * prompt.exposed_s


def test_the_bound_of_a_round_has_one_wait():
    kind = find_schedule("local:10")
    dear = find_schedule("dear").least(1.0, 2.0, {"reduce_scatter": 5.0, "all_gather": 5.0})
    found = kind.least(1.0, 2.0, {"reduce_scatter": 0.5, "all_gather": 0.5})
    assert found == pytest.approx((9 * 3.0 + dear) / 10)


def test_what_is_late_is_over_before_other_messages_travel():
    """Fusion by time asks all ranks in the middle of a round, and cuts buckets anew."""
    choices = {"schedule": "diloco:3:delay=2:mix=0.5", "fusion": "mgwfbp", "debug": True}
    assert len(run(choices)["loss"]) == 12


@pytest.mark.parametrize(("until", "first"), [(50, 60), (60, 50)])
def test_times_that_leave_a_gap_or_overlap_are_seen(until, first):
    out = (Pack(), reduce_scatter("gradients", until=until), reduce_scatter("gradients", first=first))
    back = (all_gather("gradients", until=until), all_gather("gradients", first=first), Update(on=MAIN), Unpack())
    with pytest.raises(RouteError, match=r"buffer '(gradients|values|layers)'"):
        prove(Route("two times", out, back))


def test_what_is_late_is_nothing_else():
    route = diloco(10, delay=5)
    pack, update, delta, averaged = route.out
    with pytest.raises(RouteError, match="must be a collective of each round"):
        prove(replace(route, out=(pack, update, replace(delta, on=ENGINE), averaged)))
    with pytest.raises(RouteError, match="must be a collective of each round"):
        prove(replace(route, out=(pack, reduce_scatter("gradients"), update, delta, averaged)))


def test_an_order_of_each_iteration_and_late_news_do_not_go_together(tmp_path):
    text = "from {0.__module__} import {0.__name__}\nlate = {0.__name__}.specialised(period=4, delay=2).own_route()\n"
    (tmp_path / "mine.py").write_text(text.format(DiLoCo), encoding="utf-8")
    with pytest.raises((AgreedError, ValueError), match="schedule 'dear-eager' decides an order of each iteration"):
        run({"schedule": "dear-eager", "route": f"{tmp_path}/mine.py:late"})


class Given:
    """Its gradients are the sums of the columns of its input, and nothing depends on its values."""

    def __init__(self):
        self.parameters = [Parameter.of(name, np.ones(32, np.float32)) for name in ("first", "last")]

    def forward(self, x):
        self.x = x
        return x

    def backward(self, dy):
        for parameter, half in zip(self.parameters, np.split(dy @ self.x, 2), strict=True):
            parameter.grad[...] = half
        return dy


class Count:
    def forward(self, out, targets):
        self.examples = len(out)
        return float(self.examples)

    def backward(self, scale):
        return np.full(self.examples, scale, np.float32)


def spoilt(transport, bad, at, iterations=9, **options):
    """The error on this rank if one gradient is ``bad`` on rank 1 in iteration ``at``."""
    with Session([Given()], Count(), transport, optimizer=SGD(0.1), algorithm="ring", **options) as session:
        for iteration in range(iterations):
            x = np.full((2, 64), 0.01, np.float32)
            if iteration == at and transport.rank == 1:
                x[0, 40] = bad
            session.step(x, np.zeros(2, int))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("at", [5, 7, 8], ids=["within a round", "before the last", "last"])
@pytest.mark.parametrize(
    "how", [{"schedule": name} for name in (*SPELT, "local:1")] + [{"route": SUMMED.name}], ids=str
)
def test_all_ranks_end_alike_if_one_alone_has_a_gradient_that_is_not_finite(how, at, bad, monkeypatch):
    """That rank asked the others what was wrong, and they never came."""
    monkeypatch.setitem(find.ROUTES, SUMMED.name, SUMMED)
    found = []
    ranks = Thread(target=lambda: found.extend(on_all(lambda each: spoilt(each, bad, at, **how))), daemon=True)
    ranks.start()
    ranks.join(60)
    assert not ranks.is_alive(), "they wait for each other"
    (said,) = set(found)
    assert f"parameter last: gradients are infinite or not a number in update {at}: " in said
    assert said.endswith(", on rank 1")


def test_what_is_under_way_at_the_end_is_used_before_the_average():
    """After 4 iterations all have sent what they have moved, and it would be used after 6."""

    def last(transport, iterations, schedule):
        layer, own = Given(), np.full((2, 64), 0.01 * (transport.rank + 1), np.float32)
        with Session([layer], Count(), transport, optimizer=SGD(0.1), schedule=schedule) as session:
            for _ in range(iterations):
                session.step(own, np.zeros(2, int))
        return layer.parameters[0].value.copy()

    found, average = (
        run_loopback(3, lambda each, case=case: last(each, *case))[0]
        for case in ((5, "diloco:4:delay=2:lr=1:momentum=0"), (4, "local:4"))
    )
    assert found == pytest.approx(average, rel=1e-6)
    assert found != pytest.approx(np.ones(32), rel=1e-3)


def test_the_first_round_of_a_staggered_bucket_is_longer():
    route = diloco(4, staggered=True)
    (sent,) = (stage for stage in route.out if stage.every > 1 and stage.on == ENGINE)
    ends = [[at for at in range(14) if sent.is_due(at - route.shift(bucket, 2))] for bucket in range(2)]
    assert ends == [[3, 7, 11], [5, 9, 13]]
