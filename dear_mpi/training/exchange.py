"""What schedules drive: the buckets of a model, the collectives prepared for them, and the engine that runs those."""

from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any

from dear_mpi.collectives import make_plan
from dear_mpi.collectives.plans.plan import Plan
from dear_mpi.ranks.world import World
from dear_mpi.training.bucket import Bucket
from dear_mpi.training.engine import Engine, Handle

__all__ = ["Exchange"]


class Exchange:
    """Starts and awaits the collectives of the buckets, in place in their buffers.

    Args:
        buckets: in forward order.
        options: of ``make_plan``.
    """

    def __init__(self, buckets: Sequence[Bucket], world: World, engine: Engine, **options: Any) -> None:
        self.options = {"alike": True, **options}
        self.buckets, self.world, self.engine = tuple(buckets), world, engine
        self.compute = engine.streams.compute
        self.plans: dict[tuple[str, int], Plan] = {}
        self.by_layer = {layer: bucket for bucket in buckets for layer in bucket.layers}
        self.waits: list[tuple[Any, Any]] = []

    def prepare(self, collectives: Iterable[str]) -> None:
        """Collective: make the plans that are still missing. To be called while nothing is under way."""
        transport = self.world.transport
        for collective, bucket in product(collectives, self.buckets):
            if (collective, bucket.index) not in self.plans:
                plan = make_plan(collective, bucket.buffer, transport, **self.options)
                plan.name = f"{collective} of {bucket}"
                self.plans[collective, bucket.index] = plan

    @property
    def chosen(self) -> list[str]:
        """The algorithm of each bucket, which the collectives of a bucket share."""
        algorithms = {index: plan.algorithm for (_, index), plan in self.plans.items()}
        return [algorithms[bucket.index] for bucket in self.buckets]

    def bucket_of(self, layer: int) -> Bucket | None:
        """The bucket with the layer's parameters; None where it has none."""
        return self.by_layer.get(layer)

    def completed_by(self, layer: int) -> Bucket | None:
        """The bucket whose first layer this is: it runs last in backward, so now all gradients are there."""
        bucket = self.by_layer.get(layer)
        return bucket if bucket is not None and bucket.layers[0] == layer else None

    def start(self, collective: str, bucket: Bucket) -> Handle:
        """Begin a collective on a bucket. If it reduces, the bucket is packed first."""
        if collective != "all_gather":
            bucket.pack()
        return self.engine.start(self.plans[collective, bucket.index], f"{collective} of {bucket}")

    def wait(self, handle: Handle) -> None:
        """Wait, and count the time as exposed communication."""
        begin = self.compute.mark()
        handle.wait()
        self.waits.append((begin, self.compute.mark()))

    def exposed_s(self) -> float:
        """Seconds for which the compute stream has waited for communication since this was asked last."""
        waits, self.waits = self.waits, []
        return sum(self.compute.seconds(begin, end) for begin, end in waits)

    def free(self) -> None:
        """Give all plans back."""
        for plan in self.plans.values():
            plan.free()
        self.plans.clear()
