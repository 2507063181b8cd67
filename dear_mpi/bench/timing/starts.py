"""How the ranks begin a call together.

    barrier    | barrier ----.| call          ranks leave a barrier one after the other, the last one when others are
                                              half done: so a call may seem longer, or shorter, than it is
    moment     | MAX of clocks | spin  .| call    all begin within the uncertainty of the clocks

The moment is a little later than the last rank's clock when it came. A rank is late if the moment is over before it can
wait for it, or if it loses its core while it waits; then the sample does not count. Ranks that are often late share
their cores with something else: they start at barriers, in the whole run, so that all its samples are alike.

Source: Hunold and Carpen-Amarie, Reproducible MPI Benchmarking Is Still Not as Easy as You Think (IEEE TPDS 27, 2016),
which calls it the Round-Time scheme.
"""

from statistics import median
from typing import Any, Protocol

from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.ranks.clock import CommonClock

LEAD, TRIALS = 3.0, 21  # the moment is so many times the duration of an agreement away; from so many of them
MOST_LEAD_S = 1e-3  # on a busy machine an agreement may take as long as a turn on a core
MOST_LATE, LONGEST = 0.1, 64.0  # of a block's calls; then the next is twice as far away, up to so many times
LOST_S = 20e-6  # after the moment: to look at the clock once more takes less than 1 us
BLOCKS, BLOCK_S, FEWEST = 3, 0.05, 20  # that are tried: their number, and the starts in each


class Start(Protocol):
    name: str

    def holds(self) -> bool:
        """Collective: try some blocks of starts; return whether at most a tenth of one were late."""

    def prepare(self) -> None:
        """Collective: before a block of calls."""

    def __call__(self) -> bool:
        """Collective: return when this rank is to begin; whether it was in time."""

    def report(self) -> dict[str, Any] | None:
        """Collective: what there is to say of the clocks."""


class AtBarrier:
    """Begin when a barrier is over."""

    name = "barrier"

    def __init__(self, transport: Transport) -> None:
        self.barrier = transport.barrier

    def holds(self) -> bool:
        return True

    def prepare(self) -> None:
        """Nothing."""

    def __call__(self) -> bool:
        self.barrier()
        return True

    def report(self) -> None:
        return None


class AtMoment:
    """Begin at a moment of the common clock; if many are late for it, at a later one."""

    name = "clock"

    def __init__(self, transport: Transport, clock: CommonClock) -> None:
        self.transport, self.clock = transport, clock
        self.lead_s, self.longer = 0.0, 1.0
        self.calls = self.late = 0

    def holds(self) -> bool:
        """A block after one with many late starts has moments that are twice as far ahead."""
        for _ in range(BLOCKS):
            self.prepare()
            for _ in range(max(FEWEST, int(BLOCK_S / self.lead_s))):
                self()
            if max(self.transport.gather_values(self.late)) <= MOST_LATE * self.calls:
                return True
        return False

    def prepare(self) -> None:
        """Look at the clocks again, and at how long ranks take to agree on a moment."""
        self.clock.look()
        took_s = []
        for _ in range(TRIALS):
            begin_s = self.clock.now()
            self.transport.latest(begin_s)
            took_s.append(self.clock.now() - begin_s)
        took, late = zip(*self.transport.gather_values((median(took_s), self.late)), strict=True)
        if max(late) > MOST_LATE * self.calls:
            self.longer = min(2 * self.longer, LONGEST)
        self.lead_s, self.calls, self.late = min(LEAD * max(took) * self.longer, MOST_LEAD_S), 0, 0

    def __call__(self) -> bool:
        clock, offset_s = self.clock.now, self.clock.offset_s()
        begin_s = self.transport.latest(clock() - offset_s) + offset_s + self.lead_s
        in_time = clock() < begin_s
        while (now_s := clock()) < begin_s:
            pass
        in_time = in_time and now_s - begin_s < LOST_S
        self.calls, self.late = self.calls + 1, self.late + (not in_time)
        return in_time

    def report(self) -> dict[str, Any]:
        return self.clock.report() | {"lead_s": self.lead_s}
