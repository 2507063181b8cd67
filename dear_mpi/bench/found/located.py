"""Where a wrong result comes from: rank, chunk and step. What was counted in timed calls says in which chunks it ends.
Then more calls are made, in which each message of a plan is held against what is due (``due.py``):

    step s     sent ----> arrived ----> combined, or copied        of these, over all ranks, the earliest that is wrong

Data goes through steps, and through the points of a step, in this order on all ranks alike: no clock is needed.
"""

from collections import Counter
from dataclasses import replace
from time import perf_counter
from typing import Any, NamedTuple

from dear_mpi.bench.case import Case, Prepared, Samples
from dear_mpi.bench.data import Data
from dear_mpi.bench.found.about import about
from dear_mpi.bench.found.due import Due
from dear_mpi.bench.found.fault import Fault, finite
from dear_mpi.bench.found.origins import origins
from dear_mpi.bench.found.tally import Spot, first_wrong, spots_of
from dear_mpi.collectives.plans.checked import CheckedRun
from dear_mpi.collectives.plans.make_plan import scales
from dear_mpi.collectives.plans.plan import Plan
from dear_mpi.collectives.plans.runners.messages import MessagesRun
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.kernels.array import Array, to_host

CALLS, ENOUGH = (3, 50), 3  # the fewest and the most more calls; so many wrong ones end them
POINTS = ("sent", "arrived", "combined", "result")
RESULT = POINTS.index("result")
AT_END = 1 << 30  # in place of a step: the result is wrong, and all steps are right


class Wrong(NamedTuple):
    """Something wrong on a rank in a call; the earlier one is the lesser one."""

    step: int
    point: int
    rank: int
    peer: int
    spot: Spot

    @property
    def place(self) -> tuple[int, ...]:
        return (*self[:4], self.spot.chunk)


def fault_of(case: Case, key: tuple[str, int], samples: Samples, ranks: int) -> Fault:
    """What the wrong results say that were seen in timed calls."""
    tallies = samples.tallies
    turn = min(tally.turns[0] for tally in tallies if tally.turns)
    spots = {rank: tally.spots for rank, tally in enumerate(tallies) if turn in tally.turns[:1]}
    held = dict[int, list[int]]()
    for rank, found in spots.items():
        for spot in found:
            held.setdefault(spot.chunk, []).append(rank)
    first, spot = next((rank, found[0]) for rank, found in spots.items())
    return Fault(
        **about(case, key, samples, ranks),
        calls=tallies[0].calls,
        wrong_calls=len({each for tally in tallies for each in tally.turns}),
        chunks=dict(sorted(held.items())),
        rank=first,
        **told(spot),
    )


def told(spot: Spot) -> dict[str, Any]:
    return {"chunk": spot.chunk, "element": spot.element, "got": finite(spot.got), "due": finite(spot.due)}


def located(fault: Fault, prepared: Prepared, data: Data, transport: Transport, seconds: float) -> Fault:
    """Collective: the fault with what more calls say of it, which go on for at most so many seconds once the fewest are
    made. It is as before if what was run sends no messages."""
    run = prepared.run
    if not (isinstance(run, Plan) and isinstance(run.run, MessagesRun)):
        return fault
    checks = Checks(run, data, transport)
    found, calls = checks.calls(seconds)
    checks.free()
    if not found:
        wrong = frozenset((rank, chunk) for chunk, ranks in fault.chunks.items() for rank in ranks)
        fits = [origin._asdict() for origin in origins(checks.programs, wrong)]
        return replace(fault, more_calls=calls, fits=fits)
    often = Counter(each.place for each in found)
    first = next(each for each in found if each.place == max(often, key=often.__getitem__))
    at_end = first.step == AT_END
    return replace(
        fault,
        more_calls=calls,
        seen=len(found),
        rank=first.rank,
        step=None if at_end else first.step,
        peer=None if at_end else first.peer,
        point=POINTS[first.point],
        elsewhere=len(found) - often[first.place],
        **told(first.spot),
    )


class Checks:
    """Collective: calls of a plan whose messages are looked at on their way."""

    def __init__(self, plan: Plan, data: Data, transport: Transport) -> None:
        assert isinstance(plan.run, MessagesRun), "the caller has seen it"
        self.plan, self.data, self.transport, run = plan, data, transport, plan.run
        self.programs = transport.gather_values(run.program)
        factor, _ = scales(plan.call, transport.size)
        self.due = Due(data.case, self.programs, transport.rank, chunks=run.chunks, factor=factor)
        self.plain, self.checked, self.messages = run, CheckedRun(run, self.look), run.listing.messages
        self.turn, self.first = 0, list[Wrong]()

    def look(self, point: int, number: int, array: Array) -> None:
        """Keep the earliest that is wrong on this rank."""
        message = self.messages[number]
        step = message.key[0]
        if self.first and self.first[0][:2] <= (step, point):
            return
        got, due = to_host(array), self.due.at(point, message, self.turn)
        bits = f"u{got.itemsize}"
        if (at := first_wrong(got.view(bits), due.view(bits))) is not None:
            spot = Spot(self.due.chunk_at(message.start + at), message.start + at, got[at].item(), due[at].item())
            self.first = [Wrong(step, point, self.transport.rank, message.peer, spot)]

    def calls(self, seconds: float) -> tuple[list[Wrong], int]:
        """The first that was wrong in each call in which anything was; and how many calls were made."""
        found, begin_s, over = list[Wrong](), perf_counter(), False
        while self.turn < CALLS[1] and len(found) < ENOUGH and (self.turn < CALLS[0] or not over):
            self.turn += 1
            self.call()
            answers = self.transport.gather_values((self.first, perf_counter() - begin_s > seconds))
            over = answers[0][1]
            found += sorted(each for first, _ in answers for each in first)[:1]
        return found, self.turn

    def call(self) -> None:
        self.first = []
        self.data.fill(self.turn)
        self.plan.run = self.checked
        try:
            self.plan()
        finally:
            self.plan.run = self.plain
        if not self.first and self.data.errors(self.turn):
            spot = next(spots_of(self.data, self.turn, self.plan))
            self.first = [Wrong(AT_END, RESULT, self.transport.rank, -1, spot)]

    def free(self) -> None:
        self.checked.free()
