"""What is measured beside torch."""

from dataclasses import dataclass

FULL, SHARDED = "full", "sharded"  # what each rank updates: all parameters, or a shard of them
TORCH, RING, OURS = "torch", "our ring", "ours"  # torch as it is, over our ring, and our schedules


@dataclass(frozen=True)
class Case:
    """A model, the seconds of its forward pass (backward takes twice as long), and how many iterations count."""

    model: str
    forward_s: float
    iterations: int

    @classmethod
    def of(cls, text):
        model, forward_s, iterations = text.split(":")
        return cls(model, float(forward_s), int(iterations))
