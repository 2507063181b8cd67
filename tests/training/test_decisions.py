"""What is decided once layers have been timed: orders of an iteration, and fusion by time."""

import re
from itertools import pairwise, product

import numpy as np
import pytest

from dear_mpi.collectives.program.errors import AgreedError
from dear_mpi.collectives.transports.loopback import run_loopback
from dear_mpi.models.layers import Dense, Gelu, SoftmaxCrossEntropy
from dear_mpi.ranks.world import run_world
from dear_mpi.reporting.units import parse_link
from dear_mpi.training import Session
from dear_mpi.training.events.profiler import Profiler
from dear_mpi.training.fabric.virtual import WireCost
from dear_mpi.training.fusion import BY_TIME
from dear_mpi.training.routes.route import EXTRAS
from dear_mpi.training.runs.compare import Comparison
from dear_mpi.training.runs.config import Config
from dear_mpi.training.runs.job import Job
from dear_mpi.training.schedules import SCHEDULES, Schedule
from dear_mpi.training.schedules.dear import DearEager
from dear_mpi.training.schedules.lookahead import Chain, list_scheduled
from dear_mpi.training.schedules.schedule import Nominal
from tests.training_checks import agreed, batch, settings, steps

FORESEEING = [name for name, kind in SCHEDULES.items() if kind.foresees and kind.take is Schedule.take]  # an order


def layers():
    rng = np.random.default_rng(0)
    sizes = (6, 40, 30, 20, 4)
    found = []
    for number, (rows, columns) in enumerate(pairwise(sizes)):
        found += [Dense(f"dense{number}", rng.standard_normal((rows, columns))), Gelu()]
    return found[:-1]


def trained(transport, iterations=6, **options):
    """The parameters' digest, the order and the fusion behind some iterations."""
    with Session(layers(), SoftmaxCrossEntropy(), transport, **options) as session:
        digest = steps(session, iterations)
        (trainer,) = session.group.trainers.values()
        order = None if trainer.schedule.order is None else tuple(trainer.schedule.order)
        return digest, order, session.decisions.fusion, bool(session.decisions.waiting)


@pytest.mark.parametrize("schedule", FORESEEING)
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("judged", [{}, {"clip": 0.5}, {"clip": 0.5, "update": "sharded"}])
def test_an_order_is_decided_the_same_on_all_ranks(schedule, ranks, judged):
    options = {"fusion": "none", "algorithm": "ordered", **judged}
    found = run_loopback(ranks, lambda transport: trained(transport, schedule=schedule, **options))
    assert len(set(found)) == 1
    digest, order, _, waiting = found[0]
    assert not waiting
    assert {bucket for _, bucket in order} == {0, 1, 2, 3}
    reference = run_loopback(ranks, lambda transport: trained(transport, schedule="sequential", **options))
    assert digest == reference[0][0]


@pytest.mark.parametrize("link", [None, "1gbit,1us"])
def test_an_order_is_for_what_collectives_took_in_training(link, monkeypatch):
    """Also on an emulated link, where hosts add to what the link takes; on the rank that waited for no other one."""
    took_s, found, note = {0: 9.0, 1: 7.0, 2: 8.0}, {}, Profiler.note

    def noted(profiler):
        note(profiler)
        profiler.carried_s = {("all_reduce", 0): took_s[profiler.group.world.rank]}

    def ordered(schedule, rules, costs):
        (stage,) = rules.route.collectives("all_reduce")
        found[schedule.fabric.world.rank] = costs.price(stage, rules.buckets[0])

    def body(world):
        options = {"schedule": "bytescheduler", "fusion": "buckets:1"}
        with Session(layers(), SoftmaxCrossEntropy(), world, **options) as session:
            steps(session, 3)

    monkeypatch.setattr(Profiler, "note", noted)
    monkeypatch.setattr("dear_mpi.training.fusion.decisions.best_order", ordered)
    run_world(body, threads=3, link=link and parse_link(link))
    assert found == dict.fromkeys(range(3), pytest.approx(7.0))


@pytest.mark.parametrize("policy", BY_TIME)
@pytest.mark.parametrize("ranks", [1, 3])
def test_fusion_by_time_is_decided_the_same_on_all_ranks(policy, ranks):
    options = {"schedule": "wfbp", "fusion": policy, "algorithm": "ordered"}
    found = run_loopback(ranks, lambda transport: trained(transport, **options))
    assert len(set(found)) == 1
    digest, _, fusion, waiting = found[0]
    assert fusion.startswith("at:")
    assert not waiting
    frozen = run_loopback(ranks, lambda transport: trained(transport, **options | {"fusion": fusion}))
    assert frozen[0][0] == digest, "a saved choice gives the same run"


def test_what_was_decided_is_known_when_buckets_are_cut_like_that_again():
    def body(transport):
        with Session(layers(), SoftmaxCrossEntropy(), transport, schedule="dear-eager", fusion="none") as session:
            orders = []
            for fusion in ("none", "layers:2", "none", "layers:2"):
                session.cut(fusion)
                taken = 0
                while session.decisions.waiting or not taken:
                    session.step(*batch(taken, transport.rank))
                    taken += 1
                orders.append((tuple(session.group.trainers["dear-eager"].schedule.order), taken))
            return orders

    first, second, again, once_more = run_loopback(2, body)[0]
    assert (again[0], once_more[0]) == (first[0], second[0])
    assert (first[1], second[1], again[1], once_more[1]) == (3, 3, 1, 1)


@pytest.mark.parametrize(("given", "wrong"), [("", ""), ("1,x", "x"), ("-4", "-4"), ("1,100000000", "100000000")])
def test_borders_are_elements_of_the_model(given, wrong):
    said = rf"fusion 'at:{given}': buckets must begin at elements of this model, from 0 to \d+, not at '{wrong}'"
    assert re.search(said, agreed(lambda each: trained(each, schedule="wfbp", fusion=f"at:{given}"), 2))


def test_own_fusion_is_that_of_one_schedule():
    assert "fusion 'own' needs one schedule, not wfbp, ddp" in agreed(
        lambda each: Session(layers(), SoftmaxCrossEntropy(), each, schedules=["wfbp", "ddp"], fusion="own"), 2
    )


def test_gathers_come_last_where_all_gradients_are_looked_at():
    nominal = Nominal([1.0] * 4, [2.0] * 4, lambda collective, bucket: 3.0, judged=True)
    orders = run_loopback(2, lambda transport: eager_order(transport, nominal))
    kinds = [collective for collective, _ in orders[0]]
    assert kinds == ["reduce_scatter"] * 4 + ["all_gather"] * 4
    assert [bucket for _, bucket in orders[0]][4:] == [0, 1, 2, 3]


def eager_order(transport, nominal):
    with Session(layers(), SoftmaxCrossEntropy(), transport, schedule="dear-eager", fusion="none") as session:
        session.group.buckets = session.group.fabric.buckets
        uses = len(session.group.calls)
        full = Nominal([1.0] * uses, [2.0] * uses, nominal.price, judged=nominal.judged)
        return list(DearEager(session.group.fabric).ordered(full))


def test_the_wire_never_idles_while_anything_is_ready_and_takes_the_most_urgent():
    def chain(number, ready_s, urgency, *seconds):
        return Chain(tuple((f"part {part}", number) for part in range(len(seconds))), seconds, ready_s, urgency)

    chains = [chain(0, 4.0, 0, 1.0, 1.0), chain(1, 2.0, 1, 1.0, 1.0), chain(2, 0.0, 2, 1.0, 1.0)]
    found = list_scheduled(chains)
    assert found == [("part 0", 2), ("part 1", 2), ("part 0", 1), ("part 1", 1), ("part 0", 0), ("part 1", 0)]
    busy = [chain(0, 1.0, 0, 5.0), chain(1, 0.5, 1, 5.0), chain(2, 0.0, 2, 5.0), chain(3, 0.0, 3, 5.0)]
    assert [bucket for _, bucket in list_scheduled(busy)] == [2, 0, 1, 3]
    assert [bucket for _, bucket in list_scheduled(busy, committed=2)] == [2, 3, 0, 1], "two are out of reach"


def test_costs_of_the_wire_are_those_of_the_emulated_link():
    """A ring of 4 takes 6 messages of a quarter one after the other."""

    def body(world):
        with Job(Config.of(settings()), world, ["wfbp", "dear"]) as job:
            job.group.prices.of(["all_reduce", "reduce_scatter"])
            return {stage.name: cost for stage, cost in job.group.prices.costs.items()}

    found = run_world(body, link=parse_link("8gbit,1ms"), threads=4)
    assert found["all_reduce"].alpha == pytest.approx(6e-3)
    assert found["all_reduce"].beta == pytest.approx(1.5e-9)
    assert found["reduce_scatter"](1e9) == pytest.approx(3e-3 + 0.75)
    assert WireCost.through((10, 5.0), (20, 1.0)) == WireCost(5.0, 0.0), "nothing is below zero"


@pytest.mark.parametrize("update", ["full", "sharded"])
def test_a_collective_is_priced_by_what_carries_it_out_and_what_travels(update):
    """With sharded updates values are gathered in their own type, and an all-reduce is two halves."""

    def body(transport):
        options = {"schedules": ["wfbp", "fsdp", "horovod"], "wire": "fp32", "update": update, "fusion": "none"}
        with Session(layers(), SoftmaxCrossEntropy(), transport, **options) as session:
            prices = session.group.prices.of(["all_reduce", "reduce_scatter", "all_gather", *EXTRAS])
            bucket = session.group.buckets[1]
            price = session.group.route.priced(prices)
            costs = {stage.label: cost for stage, cost in session.group.prices.costs.items()}
            wire, values = bucket.count * 4, bucket.count * 8
            assert session.group.arena.values.itemsize == 8
            assert price("reduce_scatter", bucket) == costs["reduce_scatter"](wire)
            gathered = costs["all_gather"](values if update == "sharded" else wire)
            assert price("all_gather", bucket) == gathered
            assert price("second all_gather", bucket) == costs["second all_gather"](values)
            halves = price("reduce_scatter", bucket) + gathered
            assert price("all_reduce", bucket) == (halves if update == "sharded" else costs["all_reduce"](wire))
            assert price("negotiation", bucket) == price("negotiation", session.group.buckets[0]) > 0
            return True

    assert run_loopback(2, body) == [True, True]


def test_a_comparison_has_each_schedule_with_each_fusion():
    schedules, fusions = ["wfbp", "mg-wfbp", "dear-eager"], ["none", "own"]

    def body(world):
        return Comparison(Config.of(settings(iterations=4)), world, schedules, fusions=fusions).run()

    rows = run_world(body, threads=2)
    assert [(row["asked_fusion"], row["schedule"]) for row in rows] == [*product(fusions, schedules)]
    assert [row["fusion"].partition(":")[0] for row in rows] == ["none", "none", "none", "25MB", "at", "cut"]
    for row in rows:
        assert len(row["iteration_s"]) == len(row["loss"]) == 4
        assert row["buckets"] == len(row["chosen"])
        assert row["predicted_s"] > 0
        assert row["hidden"] >= 0
    assert {row["speedup"] for row in rows if row["schedule"] == "wfbp"} == {1.0}
    assert len({row["params_sha256"] for row in rows}) == 1
    assert rows[0]["sent_bytes"] > 0


def test_fusions_of_a_comparison_must_differ():
    with pytest.raises(AgreedError, match="fusion must be different ones, not none, none"):
        run_world(lambda world: Comparison(Config.of(settings()), world, ["wfbp"], fusions=["none"] * 2), threads=2)


def test_an_order_that_would_wait_for_ever_is_refused_by_all_ranks(monkeypatch):
    """Its gathers come in the reverse order of need, though one is under way at a time."""

    class Backwards(SCHEDULES["zero"]):
        overlap_param_gather = True
        foresees = True

        def ordered(self, nominal):
            keys = [("reduce_scatter", bucket.index) for bucket in reversed(self.fabric.buckets)]
            return keys + [("all_gather", bucket.index) for bucket in reversed(self.fabric.buckets)]

    monkeypatch.setitem(SCHEDULES, "backwards", Backwards)
    said = agreed(lambda each: trained(each, schedule="backwards", fusion="none"), 2)
    assert "schedule 'backwards' waits for the all_gather of bucket 0" in said


def test_ranks_that_decide_apart_are_told(monkeypatch):
    def body(transport):
        class Apart(DearEager):
            def orders(self, nominal):
                buckets = range(len(self.fabric.buckets))
                reduces, gathers = ([(each, number) for number in buckets] for each in self.collectives)
                return [reduces + gathers[:: -1 if transport.rank else 1]]

        with Session(layers(), SoftmaxCrossEntropy(), transport, schedule="dear-eager", fusion="none") as session:
            hooks = Apart(session.group.fabric)
            session.group.trainers["dear-eager"].schedule = hooks
            session.schedules["dear-eager"] = Apart
            steps(session, 2)
            with pytest.raises(AgreedError, match="the order of dear-eager must be the same on all ranks"):
                session.step(*batch(2, transport.rank))
            hooks.order = None

    run_loopback(2, body)
