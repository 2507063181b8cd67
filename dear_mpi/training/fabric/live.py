"""The live fabric: buckets bound to memory, the plans of their collectives, and the engine that runs these."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from typing import Any

from dear_mpi.collectives import make_plan
from dear_mpi.collectives.plans.plan import Plan
from dear_mpi.collectives.program.errors import CollectiveError
from dear_mpi.collectives.transports.agree import agree
from dear_mpi.kernels.array import Array, array_module, to_host
from dear_mpi.ranks.world import World
from dear_mpi.training.fabric.engine import Engine, PlanHandle
from dear_mpi.training.fabric.extras import EXTRAS
from dear_mpi.training.fabric.fabric import Handle
from dear_mpi.training.fabric.loss_scale import LossScale
from dear_mpi.training.fabric.order import VERDICT, Key, completed
from dear_mpi.training.fabric.rules import NoRules, Rules
from dear_mpi.training.fabric.verdict import Verdict
from dear_mpi.training.line.arena import Arena
from dear_mpi.training.line.bound import BoundBucket
from dear_mpi.training.line.bucket import Bucket, Cut
from dear_mpi.training.line.shards import Shards


class LiveFabric:
    """Starts and awaits the collectives of buckets, in place in their memory.

    Args:
        buckets: in the order of the line.
        options: of ``make_plan``.
    """

    binding: type[BoundBucket] = BoundBucket
    verdict: Verdict | None = None
    rules: Rules | NoRules = NoRules()

    def __init__(self, buckets: Cut, arena: Arena, world: World, engine: Engine, **options: Any) -> None:
        self.options = {"alike": True, **options}
        self.arena, self.world, self.engine = arena, world, engine
        self.compute, self.log = engine.streams.compute, engine.log
        self.plans: dict[tuple[str, int, int], Plan] = {}  # by collective and interval
        self.reduced = 0  # buckets of this iteration
        self.verdict_handle: PlanHandle | None = None
        self.bind(buckets)

    def bind(self, buckets: Cut) -> None:
        self.buckets = buckets
        self.finite = array_module(self.arena.values).ones(len(buckets), bool)
        flags = [self.finite[bucket.index : bucket.index + 1] for bucket in buckets]
        self.bound = {each: self.binding(each, self.arena, flag) for each, flag in zip(buckets, flags, strict=True)}

    def cut(self, buckets: Cut) -> None:
        """Collective: go on with other buckets. To be called while nothing is under way, after a flush.

        Values, gradients and state stay where they are, and so do the plans of intervals that are buckets again.
        """
        self.arena.updates = self.updates
        self.bind(buckets)
        intervals = {(bucket.start, bucket.stop) for bucket in buckets}
        for key in [key for key in self.plans if key[1:] not in intervals]:
            self.plans.pop(key).free()
        self.options["slab"] = self.options["slab"].another()  # the old one goes when the plans from it are gone
        if self.verdict is not None:
            self.verdict.shards = self.owned()

    @property
    def updates(self) -> int:
        """How often all buckets have been updated, asked after a flush."""
        return max((bound.updates for bound in self.bound.values()), default=0)

    def restored(self, updates: int) -> None:
        """The values and the state have been through so many updates."""
        self.arena.updates = updates
        for bound in self.bound.values():
            bound.own_updates = bound.updates = updates
            bound.unpack()

    def whole_state(self) -> Iterator[Array]:
        """Collective: the optimiser's state of the whole line, array by array."""
        yield from self.arena.state

    @contextmanager
    def state_line(self, number: int) -> Iterator[Array]:
        """A state array for the whole line, to be filled within the block; this rank keeps its part of it."""
        yield self.arena.state[number]

    def owned(self) -> list[Array]:
        """The parts of the wire that this rank owns."""
        shards = Shards(self.world.rank, self.world.size)
        return [self.arena.wire[shards.of(bucket)] for bucket in self.buckets]

    def prepare(self, collectives: Iterable[str]) -> None:
        """Collective: make the plans that are still missing. To be called while nothing is under way."""
        parts = dict.fromkeys(part for each in collectives for part in self.parts_of(each))
        for collective, bucket in product(parts, self.buckets):
            key = collective, bucket.start, bucket.stop
            if key not in self.plans:
                self.plans[key] = self.planned(collective, bucket)
            self.plans[key].name = f"{collective} of {bucket}"

    def planned(self, collective: str, bucket: Bucket) -> Plan:
        """Collective: a new plan."""
        transport = self.world.transport
        if collective not in EXTRAS:
            return make_plan(collective, self.travels(collective, bucket), transport, **self.options)
        extra = EXTRAS[collective]
        array = extra.travels(self.bound[bucket], self.options["slab"])
        return make_plan(extra.collective, array, transport, **{**self.options, **extra.options})

    def travels(self, collective: str, bucket: Bucket) -> Array:
        """What a collective sends."""
        return self.bound[bucket].buffer

    def plan(self, collective: str, bucket: Bucket) -> Plan:
        """A plan that was prepared."""
        return self.plans[collective, bucket.start, bucket.stop]

    def parts_of(self, collective: str) -> tuple[str, ...]:
        """The collectives that carry out what a schedule calls by this name."""
        return (collective,)

    def plans_of(self, collective: str, bucket: Bucket) -> list[Plan]:
        """The plans that carry it out."""
        return [self.plan(part, bucket) for part in self.parts_of(collective)]

    def chosen(self, collectives: Sequence[str]) -> list[str]:
        """The algorithm of each bucket, in the first of these collectives, which reduces it."""
        return [self.plans_of(collectives[0], bucket)[0].algorithm for bucket in self.buckets]

    def judge(self, clip: float | None, loss_scale: LossScale | None) -> None:
        """Collective: from now on look at the gradients of each iteration before they are used; see ``Verdict``."""
        slab = self.options["slab"]
        self.verdict = Verdict(self.owned(), self.world.transport, slab=slab, clip=clip, loss_scale=loss_scale)

    def start(self, collective: str, bucket: Bucket) -> Handle:
        """Begin a collective on a bucket. If it reduces, the bucket is packed first."""
        reduces = collective != "all_gather"
        if reduces:
            self.bound[bucket].pack()
        handle = self.launch(collective, bucket)
        self.rules.start(collective, bucket, handle)
        self.reduced += reduces
        if self.reduced == len(self.buckets):
            self.reduced = 0
            if self.verdict is not None:
                self.verdict_handle = self.engine.start(self.verdict, self.verdict.plan.name, VERDICT)
        return handle

    def negotiate(self, bucket: Bucket) -> None:
        """Let ranks combine a byte for each tensor of a bucket, in front of what is started next."""
        self.rules.negotiate(bucket)
        self.launch("negotiation", bucket)

    def gather_again(self, bucket: Bucket) -> Handle:
        """Begin another all-gather of the values of a bucket."""
        self.rules.gather_again(bucket)
        return self.launch("second all_gather", bucket)

    def launch(self, collective: str, bucket: Bucket) -> PlanHandle:
        """Hand a collective to the engine."""
        plan = self.plan(collective, bucket)
        return self.engine.start(plan, plan.name, (collective, bucket.index))

    def follow(self, order: Sequence[Key] | None) -> None:
        """Let collectives go onto the wire in this order, with the loss and the verdict."""
        self.engine.follow(completed(order, judged=self.verdict is not None))

    def wait(self, handle: Any) -> None:
        """Wait; the log has the time as exposed communication."""
        self.wait_exposed(handle)
        collective, index = handle.key
        self.rules.awaited(collective, self.buckets[index], handle)

    def wait_exposed(self, handle: PlanHandle) -> None:
        begin = self.now()
        handle.wait()
        self.log.waited(*handle.key, begin, self.now(), str(handle))

    @property
    def loss_scale(self) -> float:
        """What gradients are to be multiplied by before they travel."""
        self.factor()  # of the iteration before, which may have changed the scale
        loss_scale = None if self.verdict is None else self.verdict.loss_scale
        return 1.0 if loss_scale is None else loss_scale.scale

    def update(self, bucket: Bucket) -> None:
        """Update the parameters of a bucket, unless the verdict is to skip the iteration."""
        self.rules.update(bucket)
        factor = self.factor()
        if factor is not None:
            begin = self.now()
            self.bound[bucket].update_own(factor)
            self.bound[bucket].updated()
            self.log.did("update", bucket.index, begin, self.now(), bucket)

    def factor(self) -> float | None:
        """What gradients are multiplied by; waits for the verdict on them."""
        if self.verdict is None:
            return 1.0
        if self.reduced:
            what = f"only {self.reduced} of {len(self.buckets)} buckets are being reduced"
            raise CollectiveError(f"an update needs the verdict on all gradients, and {what}")
        if self.verdict_handle is not None:
            self.wait_exposed(self.verdict_handle)
            self.verdict_handle = None
        return self.verdict.factor

    def complaints(self) -> list[str]:
        """What was wrong with summed gradients, the same on all ranks."""
        fine = to_host(self.finite).tolist()
        return [bound.complaint() for bound, finite in zip(self.bound.values(), fine, strict=True) if not finite]

    def agree(self, what: str, facts: Callable[[], Mapping[str, Any]]) -> None:
        """Collective: raise on all ranks what any of them raises in ``facts``."""
        agree(self.world.transport, what, facts)

    def now(self) -> Any:
        """A mark of the compute stream."""
        return self.compute.mark()

    def seconds(self, begin: Any, end: Any) -> float:
        """From one mark to another."""
        return self.compute.seconds(begin, end)

    def free(self) -> None:
        """Give all plans back."""
        for plan in self.plans.values():
            plan.free()
        self.plans.clear()
        if self.verdict is not None:
            self.verdict.free()
