"""What a plan of the live fabric is of. Where one of these changes, it is another plan."""

from typing import NamedTuple, TypeAlias

from dear_mpi.collectives.lowering.messages import Portion
from dear_mpi.training.routes.collective import Collective

Counts: TypeAlias = tuple[int, ...] | None  # elements that each rank owns; None where all own as many
Place: TypeAlias = tuple[tuple[int, int], Counts]  # from one element of the line to another, and owners


class PlanKey(NamedTuple):
    """A plan is of a collective, of a bucket between its owners, and perhaps of a portion."""

    leg: Collective
    interval: tuple[int, int]
    counts: Counts
    portion: Portion
