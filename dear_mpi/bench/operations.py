"""What the benchmark times: the collectives that have programs (``COLLECTIVES``), and what an MPI library alone does.

    gather, scatter    parts to the root, and from it
    sendrecv           a ring: each rank sends to its successor while it receives from its predecessor
    barrier            moves nothing
    ping_pong          a message from the first to the last rank, and one back
    bandwidth          ``WINDOW`` messages in a row from the first to the last rank (fewer of large ones), then a short
                       answer
    both_ways          as many in each direction at once

The last three are those of osu_latency, osu_bw and osu_bibw: the ranks in between do nothing, and the first one has the
time. Source: nccl-tests (busbw), OSU Micro-Benchmarks 7.4 (c/mpi/pt2pt/standard).
"""

from collections.abc import Callable
from dataclasses import dataclass

from dear_mpi.collectives.program.program import COLLECTIVES, Contract, root, the_owner

WINDOW = 64  # messages in a row, as OSU has them
WINDOW_BYTES, FEWEST_IN_A_ROW = 64 << 20, 4  # of large ones as many as are so many bytes, but some
Factor = Callable[[int], float]
Source = Callable[[int, int], int | None]
"""Of a rank and the number of ranks: whose message the rank ends with; None if with nobody's."""


def nobody(rank: int, ranks: int) -> None:
    """Nothing is sent."""


def the_predecessor(rank: int, ranks: int) -> int:
    return (rank - 1) % ranks


def the_first(rank: int, ranks: int) -> int | None:
    """The last rank ends with the message of the first one."""
    return 0 if rank == ranks - 1 else None


def the_other(rank: int, ranks: int) -> int | None:
    """The first and the last rank end with each other's message."""
    return {0: ranks - 1, ranks - 1: 0}.get(rank)


@dataclass(frozen=True)
class Operation:
    """``factor``: busbw / algbw on so many ranks: what crosses a rank's link per byte of the buffer."""

    factor: Factor
    contract: Contract | None = None  # who brings, and ends with, what of one buffer; None: whole messages travel
    source: Source = nobody  # without a contract
    sized: bool = True
    # Of the first and the last rank, whose time is the first one's. Messages arrive in a buffer of their own, as OSU
    # has it: nothing can both leave and arrive in one. So these are out of place, whatever a user asks for.
    pair: bool = False
    window: int = 1  # messages to a rank in one run at most, each to a place of its own
    parts: int = 1  # how many times what is timed a run does, for each message of its window

    @property
    def reduces(self) -> bool:
        return self.contract is not None and self.contract.reduces

    @property
    def addressed(self) -> bool:
        """Whether all chunks must be as long."""
        return self.contract is not None and self.contract.addressed

    @property
    def least_ranks(self) -> int:
        return 1 if self.source is nobody else 2

    @property
    def clocks(self) -> int | None:
        """How many ranks, from the first on, have a time that counts; None for all."""
        return 1 if self.pair else None

    def sends(self, rank: int, ranks: int) -> bool:
        """Whether another rank, or this one, ends with its message."""
        return any(self.source(other, ranks) == rank for other in range(ranks))


def whole(ranks: int) -> float:
    return 1.0


def all_but_one(ranks: int) -> float:
    return (ranks - 1) / ranks


def twice(factor: Factor) -> Factor:
    return lambda ranks: 2 * factor(ranks)


OPERATIONS = {
    "all_reduce": Operation(twice(all_but_one), COLLECTIVES["all_reduce"]),
    "reduce_scatter": Operation(all_but_one, COLLECTIVES["reduce_scatter"]),
    "all_gather": Operation(all_but_one, COLLECTIVES["all_gather"]),
    "broadcast": Operation(whole, COLLECTIVES["broadcast"]),
    "reduce": Operation(whole, COLLECTIVES["reduce"]),
    "all_to_all": Operation(all_but_one, COLLECTIVES["all_to_all"]),
    "gather": Operation(all_but_one, Contract(the_owner, root)),
    "scatter": Operation(all_but_one, Contract(root, the_owner)),
    "sendrecv": Operation(whole, source=the_predecessor),
    "barrier": Operation(lambda ranks: 0.0, sized=False),
    "ping_pong": Operation(whole, source=the_other, pair=True, parts=2),
    "bandwidth": Operation(whole, source=the_first, pair=True, window=WINDOW),
    "both_ways": Operation(twice(whole), source=the_other, pair=True, window=WINDOW),
}
UNSIZED = [name for name, operation in OPERATIONS.items() if not operation.sized]
