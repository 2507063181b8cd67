"""The live fabric: buckets bound to memory, the plans of their collectives, and the engine that runs these."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from typing import Any

from dear_mpi.collectives import make_plan
from dear_mpi.collectives.plans.plan import Plan
from dear_mpi.collectives.transports.agree import agree
from dear_mpi.ranks.world import World
from dear_mpi.training.fabric.engine import Engine
from dear_mpi.training.fabric.fabric import Handle
from dear_mpi.training.fabric.order import Key
from dear_mpi.training.line.arena import Arena
from dear_mpi.training.line.bound import BoundBucket
from dear_mpi.training.line.bucket import Bucket, Cut

__all__ = ["LOSS", "LiveFabric"]

LOSS: Key = ("loss", 0)  # its sum over the ranks is started behind the forward pass


class LiveFabric:
    """Starts and awaits the collectives of buckets, in place in their memory.

    Args:
        buckets: in the order of the line.
        options: of ``make_plan``.
    """

    def __init__(self, buckets: Cut, arena: Arena, world: World, engine: Engine, **options: Any) -> None:
        self.options = {"alike": True, **options}
        self.arena, self.world, self.engine = arena, world, engine
        self.compute = engine.streams.compute
        self.plans: dict[tuple[str, Bucket], Plan] = {}
        self.waits: list[tuple[Any, Any]] = []
        self.buckets = buckets
        self.bound = {bucket: BoundBucket(bucket, arena) for bucket in buckets}

    def prepare(self, collectives: Iterable[str]) -> None:
        """Collective: make the plans that are still missing. To be called while nothing is under way."""
        for collective, bucket in product(collectives, self.buckets):
            if (collective, bucket) not in self.plans:
                plan = make_plan(collective, self.bound[bucket].buffer, self.world.transport, **self.options)
                plan.name = f"{collective} of {bucket}"
                self.plans[collective, bucket] = plan

    @property
    def chosen(self) -> list[str]:
        """The algorithm of each bucket, which the collectives of a bucket share."""
        algorithms = {bucket: plan.algorithm for (_, bucket), plan in self.plans.items()}
        return [algorithms[bucket] for bucket in self.buckets]

    def start(self, collective: str, bucket: Bucket) -> Handle:
        """Begin a collective on a bucket. If it reduces, the bucket is packed first."""
        if collective != "all_gather":
            self.bound[bucket].pack()
        plan = self.plans[collective, bucket]
        return self.engine.start(plan, plan.name, (collective, bucket.index))

    def follow(self, order: Sequence[Key] | None) -> None:
        """Let collectives go onto the wire in this order; that of the loss comes first."""
        self.engine.follow(None if order is None else [LOSS, *order])

    def wait(self, handle: Handle) -> None:
        """Wait, and count the time as exposed communication."""
        begin = self.now()
        handle.wait()
        self.waits.append((begin, self.now()))

    def update(self, bucket: Bucket) -> None:
        """Update the parameters of a bucket."""
        self.bound[bucket].update()

    def complaints(self) -> list[str]:
        """What was wrong with summed gradients, the same on all ranks."""
        return [text for bound in self.bound.values() if (text := bound.complaint())]

    def agree(self, what: str, facts: Callable[[], Mapping[str, Any]]) -> None:
        """Collective: raise on all ranks what any of them raises in ``facts``."""
        agree(self.world.transport, what, facts)

    def now(self) -> Any:
        """A mark of the compute stream."""
        return self.compute.mark()

    def seconds(self, begin: Any, end: Any) -> float:
        """From one mark to another."""
        return self.compute.seconds(begin, end)

    def exposed_s(self) -> float:
        """Seconds for which the compute stream has waited for communication since this was asked last."""
        waits, self.waits = self.waits, []
        return sum(self.seconds(begin, end) for begin, end in waits)

    def free(self) -> None:
        """Give all plans back."""
        for plan in self.plans.values():
            plan.free()
        self.plans.clear()
