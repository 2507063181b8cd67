"""Run the fabric on real memory: bound buckets, plans of collectives, and the engine, a thread that runs them."""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import product
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from dear_mpi.collectives import make_plan
from dear_mpi.collectives.algorithms.registry import runner_of
from dear_mpi.collectives.launch.launcher import ADVICE
from dear_mpi.collectives.lowering.messages import WHOLE, Portion
from dear_mpi.collectives.plans.plan import Plan
from dear_mpi.collectives.program.errors import CollectiveError
from dear_mpi.collectives.transports.agree import agree
from dear_mpi.kernels.array import Array, array_module, to_host
from dear_mpi.kernels.dtypes import DTYPES
from dear_mpi.ranks.streams import Streams
from dear_mpi.ranks.world import World
from dear_mpi.training.buckets.arena import Arena
from dear_mpi.training.buckets.bound import BoundBucket
from dear_mpi.training.buckets.layout import Bucket, Cut
from dear_mpi.training.events import Log
from dear_mpi.training.fabric.fabric import Fabric, Handle, Key, Sequenced, Tasks, Turn, portions_of
from dear_mpi.training.routes.stages import Collective, Stage

if TYPE_CHECKING:
    from dear_mpi.training.fabric.statistic import Statistic, Verdict

Counts: TypeAlias = tuple[int, ...] | None  # elements of each rank; None: equal
Place: TypeAlias = tuple[tuple[int, int], Counts]  # interval of the flat buffer, owners


class PlanKey(NamedTuple):
    stage: Collective
    interval: tuple[int, int]
    counts: Counts
    portion: Portion


def checksum(array: Array) -> str:
    """Return a checksum in a third of SHA-256's time."""
    return f"{zlib.crc32(np.ascontiguousarray(to_host(array)).view('u1').data):08x}"


class LiveFabric(Fabric):
    """Move buckets through their route, in place in their memory; ``options``: of ``make_plan``."""

    verdict: Verdict | None = None
    idle = staticmethod(lambda: None)

    def __init__(self, buckets: Cut, arena: Arena, world: World, engine: Engine, **options: Any) -> None:
        self.options = {"alike": True, **options}
        self.arena, self.world, self.engine = arena, world, engine
        self.compute = engine.streams.compute
        self.plans: dict[PlanKey, Plan] = {}
        self.sides: dict[Place, dict[str, Array]] = {}  # by buffer
        self.oldest = self.skipped = 0  # updates before these copies; iterations without an update, before a checkpoint
        self.settled = 0  # iteration of the last early end of a round
        self.tally = [0, 0]  # codes of a bucket that did not fit, and that did
        super().__init__(buckets, arena.route, engine.log)

    def enter(self, buckets: Cut) -> None:
        super().enter(buckets)
        self.arena.share_out(buckets)
        self.counts = {bucket: self.arena.sharing.counts(bucket) for bucket in buckets}
        self.finite = array_module(self.arena.values).ones(len(buckets), bool)
        flags = {bucket: self.finite[bucket.index : bucket.index + 1] for bucket in buckets}
        self.bound = {bucket: BoundBucket(bucket, self.arena, flag) for bucket, flag in flags.items()}
        for bucket, bound in self.bound.items():  # kept plans refer to this memory
            bound.side = self.sides.setdefault((bucket.interval, self.counts[bucket]), {})
            bound.tally = self.tally
            bound.look = self.verdict and self.verdict.add
        self.calls: dict[tuple[int, int], Callable[[float], object]] = {}  # by id of the stage, and bucket

    def cut(self, buckets: Cut) -> None:
        """Continue with other buckets after a flush. Collective.

        Values, gradients and plans of intervals that remain buckets stay.
        """
        self.arena.updates = self.updates
        self.arena.optimizer.begin_cut()
        state = list(self.arena.whole_state(self.world.transport))
        self.enter(buckets)
        self.arena.take_state(state)
        kept = {(bucket.interval, self.counts[bucket]) for bucket in buckets}
        self.free_plans(lambda key: (key.interval, key.counts) not in kept or key.portion != WHOLE)
        self.sides = {place: self.sides[place] for place in kept}
        self.options["slab"] = self.options["slab"].another()  # the old one ends with its last plan

    @property
    def updates(self) -> int:
        return max((bound.own_updates for bound in self.bound.values()), default=0)

    def restored(self, iterations: int, updates: int) -> None:
        self.arena.updates, self.iteration, self.settled = updates, iterations, iterations
        self.oldest, self.skipped = updates, iterations - updates
        for bound in self.bound.values():
            bound.own_updates = bound.updates = updates
            bound.unpack()
            bound.copy_state()
        self.arena.begin_buffers()

    def prepare(self, names: Iterable[str]) -> None:
        """Make missing plans. Collective; nothing may be under way."""
        stages = dict.fromkeys(stage for name in names for stage in self.route.collectives(name))
        for stage, bucket in product(stages, self.buckets):
            self.make(stage, bucket, WHOLE)

    def prepare_turns(self, orders: Iterable[Sequenced]) -> None:
        """Make the portions' plans for these orders, free others. Collective; nothing may be under way."""
        turns = dict.fromkeys(Turn(*each) for order in orders for each in order)
        due = {(self.buckets[turn.bucket].interval, turn.portion) for turn in turns}
        self.free_plans(lambda key: key.portion != WHOLE and (key.interval, key.portion) not in due)
        for turn in turns:
            for stage in self.route.collectives(turn.collective):
                self.make(stage, self.buckets[turn.bucket], turn.portion)

    def free_plans(self, unwanted: Callable[[PlanKey], bool]) -> None:
        self.tasks.clear()
        for key in filter(unwanted, list(self.plans)):
            self.plans.pop(key).free()

    def key(self, stage: Collective, bucket: Bucket, portion: Portion) -> PlanKey:
        return PlanKey(stage, bucket.interval, self.counts.get(bucket), portion)

    def make(self, stage: Collective, bucket: Bucket, portion: Portion) -> None:
        """Make a plan, if missing. Collective."""
        if (key := self.key(stage, bucket, portion)) not in self.plans:
            array = self.bound[bucket].travels(stage.buffer, self.options["slab"])
            options = self.options | stage.options(self.options["algorithm"]) | {"portion": portion}
            if self.bound[bucket].has_elements(stage.buffer):
                options |= {"counts": key.counts}
            if portion != WHOLE:  # as for the whole
                whole = self.plan(stage, bucket)
                options |= {"algorithm": whole.algorithm, "segment_bytes": whole.segment_bytes}
            self.plans[key] = make_plan(stage.name, array, self.world.transport, **options)
        self.plans[key].noted(f"{stage.label} of {bucket}", self.log.notes, collective=stage.label, bucket=bucket.index)

    def plan(self, stage: Collective, bucket: Bucket, portion: Portion = WHOLE) -> Plan:
        return self.plans[self.key(stage, bucket, portion)]

    def portions(self, collective: str, bucket: Bucket) -> int:
        """Count a collective's portions, equally on all ranks."""
        stage = self.route.divisible(collective)
        if stage is None:
            return 1
        plan = self.plans.get(self.key(stage, bucket, WHOLE)) or self.plan(stage, self.buckets[0])
        if runner_of(plan.algorithm) != "messages":
            return 1
        return portions_of(self.arena.nbytes_of(stage.buffer, bucket), self.world.size, plan.segment_bytes)

    def chosen(self, collectives: Sequence[str]) -> list[str]:
        """Return each bucket's algorithm in the first, reducing collective."""
        (stage, *_) = self.route.collectives(collectives[0])
        return ["hierarchical" if stage.level else self.plan(stage, bucket).algorithm for bucket in self.buckets]

    def sums(self, count: int, name: str) -> tuple[Array, Plan]:
        """Return values and the plan that sums them over all ranks. Collective."""
        slab = self.options["slab"]  # on the model's device: a GPU's host need not wait for the loss
        values = slab.zeros(count, DTYPES["fp64"])
        plan = make_plan("all_reduce", values, self.world.transport, algorithm="auto", slab=slab)
        plan.noted(name, self.log.notes)
        return values, plan

    def judge(self, statistics: Sequence[Statistic]) -> None:
        """Check all gradients before use from now on. Collective."""
        from dear_mpi.training.fabric.statistic import Verdict

        name = f"all_reduce of {' and '.join(each.called for each in statistics)}"
        self.look = self.verdict = Verdict(statistics, *self.sums(sum(each.count for each in statistics), name))
        for bound in self.bound.values():
            bound.look = self.verdict.add
        self.judged = True

    def handle(self, key: Key, label: str, tasks: Tasks | None) -> PlanHandle:
        return PlanHandle(key, label, tasks, self.engine)

    def carry(self, turn: Turn, handle: PlanHandle) -> None:
        self.engine.queue.put((turn, handle))

    def act(self, stage: Stage, bucket: Bucket, portion: Portion, *, back: bool) -> Callable[[], object]:
        if isinstance(stage, Collective):
            plan = self.plan(stage, bucket, portion)
            late = back and self.route.updates_under_way
            act = partial(self.unless_skipped, lambda factor: plan(), back=True) if late else plan
        else:
            act = partial(self.unless_skipped, self.call(stage, bucket), back=back)
        return act if stage.fits is None else partial(self.bound[bucket].where, act, fits=stage.fits)

    def unless_skipped(self, call: Callable[[float], object], *, back: bool) -> None:
        """Run on the engine's thread, unless the check, complete before a way back, skips."""
        factor = self.verdict.factor if back and self.verdict is not None else 1.0
        if factor is not None:
            with np.errstate(all="ignore"):  # a later check reports them once
                call(factor)

    def call(self, stage: Stage, bucket: Bucket) -> Callable[[float], object]:
        key = id(stage), bucket.index
        if key not in self.calls:
            self.calls[key] = stage.bind(self.bound[bucket])
        return self.calls[key]

    def run(self, stage: Stage, bucket: Bucket, factor: float) -> None:
        self.call(stage, bucket)(factor)

    def block(self, handle: PlanHandle) -> None:
        handle.wait()

    def complaints(self) -> list[str]:
        fine = to_host(self.finite).tolist()
        wrong = [bound for bound, finite in zip(self.bound.values(), fine, strict=True) if not finite]
        return [bound.complaint(summed=self.common) for bound in wrong]

    def facts(self) -> dict[str, Any]:
        """Checksum values at the end of rounds, if equal on all ranks."""
        if self.iteration % self.route.period or self.route.lags:
            return {}
        return {f"values of {bucket}": checksum(bound.values) for bucket, bound in self.bound.items()}

    def agree(self, what: str, facts: Callable[[], Mapping[str, Any]]) -> None:
        agree(self.world.transport, what, facts)

    def now(self) -> Any:
        return self.compute.mark()

    def seconds(self, begin: Any, end: Any) -> float:
        return self.compute.seconds(begin, end)

    def free(self) -> None:
        self.free_plans(lambda key: True)
        if self.verdict is not None:
            self.verdict.plan.free()


GRACE_S = 2.0  # plans end by themselves after an error on all ranks, maybe not after one on a single rank


def check_process(process: int) -> None:
    """Raise a CollectiveError in a forked child: it lacks the engine's thread."""
    if os.getpid() != process:
        raise CollectiveError(f"process {os.getpid()} is a forked child of a rank, and cannot train: {ADVICE}")


class PlanHandle(Handle):
    """Represent running tasks: their buffers belong to the engine until ``wait`` returns."""

    def __init__(self, key: Key, label: str, tasks: Tasks | None, engine: Engine) -> None:
        check_process(engine.process)
        super().__init__(key, label, tasks)
        self.streams, self.process = engine.streams, engine.process
        self.ready = self.done = self.streams.compute.mark()  # after the buffer was written; after the last task
        self.running = threading.Lock()  # held until it is over; an event would take ten times as many calls
        if tasks is not None:
            self.running.acquire()
        self.error: CollectiveError | None = None

    def wait(self) -> None:
        """Block until the tasks have run; later launches on the compute stream see the result."""
        check_process(self.process)
        with self.running:  # and let other waiters pass
            pass
        if self.error is not None:
            raise CollectiveError(str(self.error)) from self.error
        self.streams.compute.wait(self.done)

    def end(self) -> None:
        """Release waiters; maybe twice, after a failure."""
        self.tasks = None
        if self.running.locked():
            self.running.release()

    def run(self, log: Log, turn: Turn) -> None:
        """Run a turn's tasks; ``wait`` raises their error."""
        communication, what = self.streams.communication, self.label
        try:
            assert self.tasks is not None, "it is not over"
            communication.wait(self.ready)
            self.done, since = communication.mark(), self.ready
            for task in self.tasks(turn):
                what = f"update of {task.what}" if task.kind == "update" else str(task.what)
                begin = self.done
                task.act()
                self.done = communication.mark()
                log.carried(task.kind, task.number, begin, self.done, task.what, since=since)
                since = None
        except BaseException as error:
            self.error = CollectiveError(f"{what} failed: {error}")
            self.error.__cause__ = error


class Engine:
    """Run all communication of training on one thread, while the main thread computes.

    MPI makes no progress while Python is busy elsewhere, so overlap needs a thread that waits in MPI without the
    interpreter lock. Plans run one at a time, in an order equal on all ranks (``Order``).

    A plan follows compute work launched before its start, and precedes later work. The thread blocks until a GPU has
    produced the data: a rank needs two cores.
    """

    def __init__(self, streams: Streams) -> None:
        self.streams, self.log, self.process = streams, Log(), os.getpid()
        self.queue: SimpleQueue[tuple[Turn, PlanHandle] | None] = SimpleQueue()
        # A daemon, so that a failed rank, and thus the job, ends while the engine still waits.
        self.thread = threading.Thread(target=self.serve, name="engine", daemon=True)
        self.thread.start()

    def serve(self) -> None:
        """Run submitted plans; none after a failure, as the network is then unreliable."""
        failure: CollectiveError | None = None
        with ExitStack() as stack:
            try:
                stack.enter_context(self.streams.communication.use())
            except Exception as error:
                failure = CollectiveError(f"the engine's stream cannot be used: {error}")
            while (item := self.queue.get()) is not None:
                turn, handle = item
                if failure is None:
                    handle.run(self.log, turn)
                    failure = handle.error
                elif handle.error is None:
                    handle.error = CollectiveError(f"{handle.label} was not run, because before it {failure}")
                    handle.error.__cause__ = failure
                if turn.ends or failure is not None:
                    handle.end()
            if failure is None:  # plans are freed next: no kernel may read their memory
                communication = self.streams.communication
                communication.seconds(communication.mark(), communication.mark())

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *error: object) -> None:
        self.queue.put(None)
        self.thread.join(None if error[0] is None else GRACE_S)
