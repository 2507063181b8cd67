"""A leg of error feedback: what earlier codes have lost comes to the gradients of now, before these are coded."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dear_mpi.training.routes.legs import BucketMemory, Leg
from dear_mpi.training.routes.memory import Memory


@dataclass(frozen=True, kw_only=True)
class Recall(Leg):
    """Move to the gradients what earlier codes have lost."""

    error: str

    @property
    def lines(self) -> Mapping[str, str]:  # type: ignore[override]
        return {self.error: "own"}

    @property
    def reads(self) -> tuple[str, ...]:
        return ("gradients", self.error)

    @property
    def writes(self) -> tuple[str, ...]:
        return self.reads

    def prove(self, memory: Memory) -> None:
        for rank, shard in memory.places:
            both = (memory.read(line, rank, shard) for line in self.reads)
            memory.write("gradients", rank, shard, memory.symbol("code", *both))
            memory.write(self.error, rank, shard, memory.symbol("zero"))

    def bind(self, bucket: BucketMemory) -> Callable[[float], object]:
        gradients, error = map(bucket.line, self.reads)

        def recall(factor: float) -> None:
            gradients[...] += error
            error[...] = 0

        return recall

    def __str__(self) -> str:
        return f"recall {self.error}"
