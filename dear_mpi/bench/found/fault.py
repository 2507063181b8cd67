"""What is known of a wrong result, as a row and as a sentence; ``located.py`` finds it."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dear_mpi.bench.found.about import About
from dear_mpi.reporting.units import format_numbers, plural

NAMED = 4  # places, at most, in a sentence
HOW = {  # by the point of a step, what a rank did
    "sent": "sends to rank {peer}, and had it right before",
    "arrived": "receives from rank {peer}, which had it right",
    "combined": "combines what came right from rank {peer}",
}


@dataclass(frozen=True)
class Fault(About):
    """What is known of the wrong results of one contestant; what is not known is None, or empty."""

    calls: int  # that were made, of warm-up, too
    wrong_calls: int
    chunks: dict[int, list[int]]  # that were wrong in the first of these, and on which ranks
    rank: int  # where it was wrong first: in more calls, if it was seen again
    chunk: int
    element: int  # of the full buffer
    got: float | str
    due: float | str
    more_calls: int = 0  # in which steps were checked
    seen: int = 0  # of these, the wrong ones
    step: int | None = None
    peer: int | None = None
    point: str = "result"  # of the step: sent, arrived or combined
    elsewhere: int = 0  # more calls that were wrong first in another place
    fits: list[dict[str, int]] = field(default_factory=list)  # the steps that would end like this

    def text(self, varied: Sequence[str] = ()) -> str:
        """Such as: ring, 4 KiB: wrong first on rank 2, chunk 1, step 3 (receives from rank 1, which had it right):
        element 17 is 65543, not 7; seen in 2 of 3 more calls."""
        name = self.name(varied)
        if self.seen:
            again = f"seen in {self.seen} of {plural(self.more_calls, 'more call')}"
            other = f", in {self.elsewhere} of these first in another place" if self.elsewhere else ""
            return f"{name}: wrong first on {self.place}: {self.difference}; {again}{other}"
        often = f"wrong in {self.wrong_calls} of {plural(self.calls, 'call')}"
        held = "; ".join(f"chunk {chunk} on {ranks_text(ranks)}" for chunk, ranks in first_few(self.chunks))
        again = f"; not seen again in {plural(self.more_calls, 'more call')}" if self.more_calls else ""
        return f"{name}: {often}, first on {self.place}: {self.difference}; wrong were {held}{again}{self.fitting}"

    @property
    def place(self) -> str:
        found = f"rank {self.rank}, chunk {self.chunk}"
        if self.step is None:
            return found + (", after the last step" if self.seen else "")
        return f"{found}, step {self.step} ({HOW[self.point].format(peer=self.peer)})"

    @property
    def difference(self) -> str:
        got, due = (each if isinstance(each, str) else f"{each:.12g}" for each in (self.got, self.due))
        return f"element {self.element} is {got}, not {due}"

    @property
    def fitting(self) -> str:
        """Where it may have begun, by the chunks that were wrong."""
        if not self.fits:
            return ""
        said = [f"what rank {each['rank']} received in step {each['step']}" for each in self.fits[:NAMED]]
        more = f", or {len(self.fits) - NAMED} others" if len(self.fits) > NAMED else ""
        return f"; that fits {', or '.join(said)}{more}"


def ranks_text(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {format_numbers(ranks)}"


def first_few(chunks: Mapping[int, Sequence[int]]) -> Iterator[tuple[int, Sequence[int]]]:
    yield from list(chunks.items())[:NAMED]


def finite(value: float) -> float | str:
    """A number as JSON can have it."""
    return value if math.isfinite(value) else str(value)
