"""A schedule that would train wrongly, or wait for ever, is refused before the first byte moves."""

import random
import threading
import time
from itertools import count
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dear_mpi.collectives.program.user_file import LIMIT_S
from dear_mpi.collectives.transports.loopback import run_loopback
from dear_mpi.ranks.streams import host_streams
from dear_mpi.ranks.world import World
from dear_mpi.training.buckets.layout import Bucket, Cut
from dear_mpi.training.fabric.fabric import Order
from dear_mpi.training.fabric.live import Engine
from dear_mpi.training.fabric.rules import Rules, ScheduleError
from dear_mpi.training.fabric.virtual import Costs
from dear_mpi.training.routes.find import SHARDED
from dear_mpi.training.runs.config import Config
from dear_mpi.training.runs.train import train
from dear_mpi.training.schedules import SCHEDULES, Dear, Wfbp
from dear_mpi.training.virtual_trainer import VirtualTrainer, rehearse
from tests import training_checks

USES = 5
# Layer 2 is in two buckets, bucket 1 has two layers, and layer 4 shares a parameter with layer 0.
BUCKETS = Cut(tuple(Bucket(i, 32 * i, 32 * i + 32, uses, 128) for i, uses in enumerate([(0, 4), (1, 2), (2,), (3, 4)])))


def rehearsed(name, schedule, buckets, uses, *, accumulate=1, **how):
    rehearse(schedule, Rules(name, buckets, schedule, **how), uses, accumulate=accumulate)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_our_schedules_keep_the_rules(schedule):
    rehearsed(schedule, SCHEDULES[schedule], BUCKETS, USES)


class NeverWaits(Dear):
    def finish(self, bucket):
        if self.under_way.pop(bucket, None) is not None:
            self.fabric.update(bucket)


class StartsTwice(Dear):
    def after_backward(self, use):
        super().after_backward(use)
        if use == 1:
            self.fabric.start("reduce_scatter", self.fabric.buckets.completed_by(1)[0])


class Forgets(Wfbp):
    def after_backward(self, use):
        if use != 2:
            super().after_backward(use)


class UpdatesEarly(Wfbp):
    def after_backward(self, use):
        super().after_backward(use)
        for bucket in self.fabric.buckets.completed_by(use):
            self.fabric.update(bucket)


class NeverUpdates(Wfbp):
    def end_backward(self):
        self.reducing.clear()


class StartsEarly(Wfbp):
    """As soon as any layer of a bucket has written its gradient."""

    def after_backward(self, use):
        for bucket in self.fabric.buckets.needed_by(use):
            self.reducing.append((bucket, self.fabric.start("all_reduce", bucket)))


class UpdatesShards(Dear):
    def end_backward(self):
        for bucket in self.forward_order:
            self.fabric.wait(self.fabric.start("all_gather", bucket))
            self.fabric.update(bucket)
            self.fabric.update(bucket)


class GathersAlone(Dear):
    def after_backward(self, use): ...


class Undeclared(Wfbp):
    collectives = ("reduce_scatter",)


class FlushesNothing(Dear):
    def flush(self): ...


class Stale(Wfbp):
    """It waits for the handle of the first iteration for ever."""

    def after_backward(self, use):
        for bucket in self.fabric.buckets.completed_by(use):
            handle = self.fabric.start("all_reduce", bucket)
            first = self.__dict__.setdefault("first", {}).setdefault(bucket, handle)
            self.reducing.append((bucket, first))


class FlushKeeps(Dear):
    def flush(self):
        for bucket, handle in self.under_way.items():
            self.fabric.wait(handle)
            self.fabric.update(bucket)


class GathersAgain(Dear):
    """In each forward pass, of which a batch in parts has several."""

    due, gathered = False, ()

    def before_forward(self, use):
        if use == 0:
            self.gathered = set()
        self.gather(self.fabric.buckets.needed_by(use))

    def gather(self, buckets):
        for bucket in buckets:
            if self.due and bucket not in self.gathered:
                self.gathered.add(bucket)
                self.fabric.wait(self.fabric.start("all_gather", bucket))
                self.fabric.update(bucket)

    def end_backward(self):
        self.due, self.gathered = True, set()

    def flush(self):
        self.gather(self.fabric.buckets)
        self.due = False


class UpdatesSoon(Wfbp):
    """As soon as a bucket is reduced, though others are not."""

    def after_backward(self, use):
        super().after_backward(use)
        while self.reducing:
            bucket, handle = self.reducing.pop()
            self.fabric.wait(handle)
            self.fabric.update(bucket)


def test_a_batch_in_parts_is_rehearsed_in_parts():
    rehearsed("mine", GathersAgain, BUCKETS, USES)
    with pytest.raises(ScheduleError, match=r"starts the all_gather of bucket 0 .* once too often"):
        rehearsed("mine", GathersAgain, BUCKETS, USES, accumulate=2)
    for schedule in SCHEDULES.values():
        rehearsed("ours", schedule, BUCKETS, USES, accumulate=3, judged=True)


class GathersSoon(Dear):
    """Starts each all-gather right behind its reduce-scatter."""

    def after_backward(self, use):
        for bucket in self.fabric.buckets.completed_by(use):
            self.fabric.start("reduce_scatter", bucket)
            self.under_way[bucket] = self.fabric.start("all_gather", bucket)

    def end_backward(self):
        pass


def test_an_early_update_is_refused_where_all_gradients_are_looked_at_first():
    rehearsed("mine", UpdatesSoon, BUCKETS, USES)
    said = "before all buckets are on their way, which clipping, loss scaling or a statistic needs"
    with pytest.raises(ScheduleError, match=said):
        rehearsed("mine", UpdatesSoon, BUCKETS, USES, judged=True)


def test_an_early_gather_of_values_is_refused_there():
    """With a sharded update the all-gather is of values: they must have been updated, by gradients looked at."""
    rehearsed("mine", GathersSoon, BUCKETS, USES, route=SHARDED)
    rehearsed("mine", GathersSoon, BUCKETS, USES, judged=True)
    said = r"starts the all_gather of bucket . .* before all buckets are on their way"
    with pytest.raises(ScheduleError, match=said):
        rehearsed("mine", GathersSoon, BUCKETS, USES, judged=True, route=SHARDED)


@pytest.mark.parametrize(("name", "extra"), [("horovod", "negotiation"), ("fsdp", "second all_gather")])
def test_what_a_schedule_starts_beside_gradients_must_be_named(name, extra):
    silent = type("Silent", (SCHEDULES[name],), {"extras": ()})
    with pytest.raises(ScheduleError, match=f"starts the {extra} of bucket . .* not among its extras, none"):
        rehearsed("mine", silent, BUCKETS, USES)


def test_one_that_never_ends_is_refused(monkeypatch):
    class Endless(Wfbp):
        def after_backward(self, use):
            while use == 1:
                time.sleep(0.1)

    class Asleep(Wfbp):
        def end_backward(self):
            threading.Event().wait()

    monkeypatch.setattr("dear_mpi.collectives.program.user_file.LIMIT_S", 0.3)
    for schedule, where in ((Endless, r"after_backward\(1\)"), (Asleep, r"end_backward\(\)")):
        with pytest.raises(ScheduleError, match=rf"'mine' did not finish within 0.3 seconds \(in {where}"):
            rehearsed("mine", schedule, BUCKETS, USES)


def test_one_that_gets_on_from_hook_to_hook_is_not_refused(monkeypatch):
    """The limit is that of a hook. Each waits here for a look at it, between which 4 s pass: 20 s in all."""
    looks, times_s = threading.Semaphore(0), count(step=4.0)

    def monotonic():
        looks.release()
        return next(times_s)

    class Slow(Wfbp):
        def after_forward(self, use):
            if self.fabric.rules.iteration == 0:
                looks.acquire()

    monkeypatch.setattr("dear_mpi.collectives.program.user_file.LOOK_S", 0.3)
    monkeypatch.setattr("dear_mpi.collectives.program.user_file.time", SimpleNamespace(monotonic=monotonic))
    rehearsed("mine", Slow, BUCKETS, USES)
    assert next(times_s) > LIMIT_S


def test_an_order_that_gathers_before_it_reduces_is_refused():
    with pytest.raises(ValueError, match="the order lets the all_gather of bucket 1 go before its reduce_scatter"):
        Order([("reduce_scatter", 0), ("all_gather", 1), ("reduce_scatter", 1), ("all_gather", 0)])


class Fails(Dear):
    def after_forward(self, use):
        raise KeyError(use)


class Deadlocks(Wfbp):
    """The collective that is first on the wire is started last, behind the wait for another one."""

    order = tuple(("all_reduce", index) for index in (0, 1, 2, 3))

    def after_backward(self, use):
        super().after_backward(use)
        if use == 3:
            self.fabric.wait(self.reducing[0][1])


class Boundless(Wfbp):
    @staticmethod
    def bound(ff, bp, network):
        return None


class Disordered(Wfbp):
    order = tuple(("all_reduce", index) for index in (0, 1, 2))


WRONG = {
    NeverWaits: "updates bucket 0 (layers 0..4, 128 bytes) before its all_gather was waited for (in before_forward(0)",
    StartsTwice: "starts the reduce_scatter of bucket 1 (layers 1..2, 128 bytes) after its reduce_scatter, once too",
    Forgets: "forgets bucket 2 (layers 2..2, 128 bytes): it has started no collective for it (in end_backward()",
    UpdatesEarly: "updates bucket 3 (layers 3..4, 128 bytes) before its all_reduce was waited for (in after_back",
    NeverUpdates: "lets layer 0 run though bucket 0 (layers 0..4, 128 bytes) was not waited for (in before_forward(0)",
    StartsEarly: "starts the all_reduce of bucket 0 (layers 0..4, 128 bytes) before layer 0 wrote gradients",
    UpdatesShards: "updates bucket 0 (layers 0..4, 128 bytes), which has no new gradients",
    GathersAlone: "starts the all_gather of bucket 0 (layers 0..4, 128 bytes) without a reduce_scatter before it",
    Undeclared: "which is not among its collectives, reduce_scatter (in after_backward(3) of iteration 0)",
    FlushesNothing: "forgets bucket 0 (layers 0..4, 128 bytes): it has not updated it (in flush()",
    Stale: "before its all_reduce was waited for (in end_backward() of iteration 1)",
    FlushKeeps: "which has no new gradients (in flush() of iteration 3)",
    Fails: "fails in after_forward(0): KeyError: 0",
    Deadlocks: "it has not started what comes before, the all_reduce of bucket 0: it would wait for ever",
    Disordered: "must have an order that is a list of all pairs of a collective and the index of a bucket, each once",
    Boundless: "fails in bound(): ValueError: it must return seconds, not None",
}


@pytest.mark.parametrize("schedule", WRONG, ids=lambda schedule: schedule.__name__)
def test_wrong_ones_are_refused_with_the_layer_and_the_bucket(schedule):
    with pytest.raises(ScheduleError) as error:
        rehearsed("mine.py:Mine", schedule, BUCKETS, USES)
    assert str(error.value).startswith("schedule 'mine.py:Mine' ")
    assert WRONG[schedule] in str(error.value)


MINE = """
from dear_mpi.training.schedules import Schedule, Wfbp

class Mine(Wfbp):
    pass

class Ordered(Wfbp):
    @property
    def order(self):
        return [("all_reduce", bucket.index) for bucket in self.fabric.buckets]

class Forgets(Wfbp):
    def after_backward(self, use): ...

class Unfused(Wfbp):
    fusion = None

def function(): ...
"""


@pytest.fixture
def mine(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    return file


def trained(schedule, ranks=3, **choices):
    config = Config.of(training_checks.settings(schedule=schedule, **choices))
    return training_checks.on_all(lambda transport: train(config, World(transport)), ranks)


@pytest.mark.parametrize("name", ["Mine", "Ordered"])
def test_a_schedule_of_a_file_trains(mine, name):
    (first, *_), (ours, *_) = trained(f"{mine}:{name}"), trained("wfbp")
    assert first["params_sha256"] == ours["params_sha256"]
    assert first["schedule"] == f"{mine}:{name}"


@pytest.mark.parametrize(("name", "said"), [
    ("Forgets", "forgets bucket 0 (layers 1..3, "),
    ("Nobody", "schedule file mine.py has no function or class 'Nobody'; it has Mine, Ordered, Forgets"),
    ("function", "must be a class derived from Schedule, not <function function"),
    ("Unfused", "fusion must be a text such as '25MB', not None"),
])  # fmt: skip
def test_a_wrong_one_of_a_file_is_refused_on_all_ranks(mine, name, said):
    answers = trained(f"{mine}:{name}")
    assert answers == answers[:1] * 3
    assert said in answers[0]


def test_a_file_that_is_not_there_is_named():
    assert "schedule file" in trained("nowhere.py:Mine")[0]
    assert "did you mean 'dear'? Allowed: sequential, wfbp, ddp" in trained("daer")[0]


def timed(schedule, price, *, forward_s=1.0, backward_s=2.0, iterations=4):
    """Seconds of the last iteration, and of waiting in it."""
    layers = {"forward_s": [forward_s / USES] * USES, "backward_s": [backward_s / USES] * USES}
    costs = Costs(**layers, price=lambda stage, bucket: price(stage.label, bucket))
    trainer = VirtualTrainer(schedule, Rules("test", BUCKETS, schedule), costs)
    return [trainer.one() for _ in range(iterations)][-1]


def test_fsdp_gathers_the_buckets_of_a_layer_before_those_of_the_one_before_it():
    """Backward, a layer in several buckets waits for all of them, and one of another layer is under way beside."""
    buckets = Cut(tuple(Bucket(i, 32 * i, 32 * i + 32, uses, 128) for i, uses in enumerate([(0,), (1,), (1,), (1,)])))
    asked = []

    class Watched(SCHEDULES["fsdp"]):
        def gather_again(self, last):
            held = set(self.held)
            super().gather_again(last)
            asked.extend(sorted((each.index for each in self.held - held), reverse=True))

    rehearsed("mine", Watched, buckets, 2)
    assert asked[:4] == [3, 2, 1, 0]


def test_the_clock_of_the_virtual_fabric():
    """Sequential adds all up; WFBP and DeAR come near to their bounds, and never below them."""
    price = {"all_reduce": 0.8, "reduce_scatter": 0.4, "all_gather": 0.4, "second all_gather": 0.4, "negotiation": 0.0}
    network = {collective: len(BUCKETS) * each for collective, each in price.items()}
    times = {name: timed(SCHEDULES[name], lambda collective, bucket: price[collective]) for name in SCHEDULES}
    assert times["sequential"].iteration_s == pytest.approx(3 + 3.2)
    assert times["sequential"].exposed_s == pytest.approx(3.2)
    for name, schedule in SCHEDULES.items():
        bound = schedule.bound(1, 2, network)
        assert bound - 1e-9 <= times[name].iteration_s <= bound + 1.8, name
        assert times[name].forward_s == pytest.approx(1)
        assert times[name].backward_s == pytest.approx(2)
    assert times["dear"].iteration_s < times["wfbp"].iteration_s < times["sequential"].iteration_s


@pytest.mark.parametrize("seed", range(3))
def test_an_order_is_kept_on_all_ranks_however_late_they_come(seed):
    """Each rank starts plans with delays of its own; on the wire they have one order, and nobody deadlocks."""
    keys, ran = [("all_gather", index) for index in (2, 0, 3, 1)], {}

    def body(transport):
        delays, log = random.Random(100 * seed + transport.rank), []

        def plan(key):
            def run():
                time.sleep(delays.random() * 0.002)
                assert set(transport.gather_values(key)) == {key}, "ranks meet in the same collective"
                log.append(key)

            return run

        with Engine(host_streams()) as engine:
            fabric = training_checks.fabric_on(engine)
            fabric.order = fabric.order.replaced(keys)
            for _ in range(5):
                handles = []
                for index in delays.sample(range(4), 4):  # each rank in an order of its own
                    time.sleep(delays.random() * 0.002)
                    key = "all_gather", index
                    handles.append(fabric.launch_act(key, plan(key), str(key)))
                for handle in handles:
                    handle.wait()
        ran[transport.rank] = log

    run_loopback(3, body)
    assert list(ran.values()) == [keys * 5] * 3


def test_the_order_is_not_changed_within_an_iteration():
    with Engine(host_streams()) as engine:
        fabric = training_checks.fabric_on(engine)
        fabric.order = fabric.order.replaced([("all_gather", 0), ("all_gather", 1)])
        fabric.launch_act(("all_gather", 0), lambda: None, "first").wait()
        with pytest.raises(ValueError, match="within an iteration: it is the turn of the all_gather of bucket 1"):
            fabric.follow(None)
        fabric.launch_act(("all_gather", 1), lambda: None, "second").wait()
        fabric.follow(None)


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_any_cut_keeps_the_rules_of_our_schedules(data):
    """Buckets of any uses: what is tied may be far apart."""
    uses = data.draw(st.integers(1, 6))
    groups = data.draw(st.lists(st.sets(st.integers(0, uses - 1), min_size=1), min_size=1, max_size=6))
    buckets = Cut(tuple(Bucket(i, 32 * i, 32 * i + 32, tuple(sorted(group)), 128) for i, group in enumerate(groups)))
    for name, schedule in SCHEDULES.items():
        rehearsed(name, schedule, buckets, uses)
