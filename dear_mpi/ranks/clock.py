"""How far the ranks' clocks are apart, found out by messages there and back.

    rank 0   begin ----.                   .----> end
                        \\                 /
    rank r               `---> reading ---'

The reading was taken between ``begin`` and ``end``; the middle is wrong by half the round trip at most. Of many rounds
the shortest counts (Cristian, Distributed Computing 3, 1989).
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from dear_mpi.collectives.transports.transport import Transport

ROUNDS = 100


@dataclass(frozen=True)
class Offset:
    """The clock of a rank shows ``seconds`` more than that of rank 0, give or take ``uncertainty_s``."""

    seconds: float
    uncertainty_s: float  # half of the shortest round trip, by the clock of rank 0
    at_s: float = field(default=0.0, compare=False)  # when, by the clock of the rank itself; not of rank 0

    def is_beyond(self, other: "Offset") -> bool:
        """Whether two clocks differ for sure: by more than both uncertainties together."""
        return abs(self.seconds - other.seconds) > self.uncertainty_s + other.uncertainty_s


def offsets(
    transport: Transport, clock: Callable[[], float] = time.perf_counter, *, rounds: int = ROUNDS
) -> list[Offset]:
    """Collective: the offset of each rank's clock, in the order of ranks, the same on all; rank 0 has 0.

    Rank 0 meets one rank after the other, for ``rounds`` round trips of 8 bytes, while the others leave their cores. An
    offset is of the moment at which it was taken: clocks drift by up to 100 us a second.

    Args:
        clock: seconds since any time: ``time.perf_counter``, or ``time.time``, whose floats are 0.2 us apart.
    """
    tag, found = transport.next_tag(), [Offset(0.0, 0.0)]
    for peer in range(1, transport.size):
        if transport.rank == 0:
            found.append(ask(transport, peer, tag, clock, rounds))
        elif transport.rank == peer:
            answer(transport, tag, clock, rounds)
        transport.barrier(asleep=True)
    agreed: list[Offset] = transport.gather_values(found)[0]
    return agreed


def ask(transport: Transport, peer: int, tag: int, clock: Callable[[], float], rounds: int) -> Offset:
    """What rank 0 does."""
    question, reading = np.zeros(1), np.zeros(1)
    sends, receives = transport.send_init(question, peer, tag), transport.recv_init(reading, peer, tag)
    best = Offset(0.0, float("inf"))
    for _ in range(rounds):
        begin_s = clock()
        receives.Start()
        sends.Start()
        sends.Wait()
        receives.Wait()
        end_s = clock()
        if 0 <= end_s - begin_s < 2 * best.uncertainty_s:  # below 0 if the clock was set meanwhile
            at_s = float(reading[0])
            best = Offset(at_s - (begin_s + end_s) / 2, (end_s - begin_s) / 2, at_s)
    sends.Free()
    receives.Free()
    return best


def answer(transport: Transport, tag: int, clock: Callable[[], float], rounds: int) -> None:
    """What the rank does that rank 0 asks."""
    question, reading = np.zeros(1), np.zeros(1)
    sends, receives = transport.send_init(reading, 0, tag), transport.recv_init(question, 0, tag)
    for _ in range(rounds):
        receives.Start()
        receives.Wait()
        reading[0] = clock()
        sends.Start()
        sends.Wait()
    sends.Free()
    receives.Free()
