"""Why an algorithm is slower, or faster, than another one, in a sentence: the part in which they differ most."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dear_mpi.bench.fit import Fit
from dear_mpi.bench.judged.compared import merit
from dear_mpi.bench.judged.why import Apart, Site, crossover
from dear_mpi.reporting.units import plural

UNKNOWN = 0.25  # of a time: if more of it is the rest, nothing is said of reasons
MOST_OPEN = 0.5  # of a difference between two times, in the same way
UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B"))


def rounded_bytes(nbytes: float) -> str:
    """Two digits of a size.

    >>> rounded_bytes(400_000), rounded_bytes(15_999_999), rounded_bytes(12)
    ('390 KiB', '15 MiB', '12 B')
    """
    factor, unit = next((factor, unit) for factor, unit in UNITS if nbytes >= factor or factor == 1)
    value = nbytes / factor
    digits = 2 - math.ceil(math.log10(max(value, 1.1)))
    return f"{round(value, digits):g} {unit}"


def us(value: float) -> str:
    return f"{value:.0f} us" if abs(value) >= 10 else f"{value:.1f} us"


def of_model(name: str) -> Callable[[Apart], float]:
    return lambda each: getattr(each.model, name) if each.model else 0.0


@dataclass(frozen=True)
class Part:
    """One summand of a time, in us, and what there is that much of."""

    us: Callable[[Apart], float]
    text: str  # with how many of what there are
    count: Callable[[Apart], str]

    def told(self, each: Apart) -> str:
        return f"{self.text.format(self.count(each))} ({us(self.us(each))})"

    def briefly(self, each: Apart) -> str:
        """For who has read the whole."""
        return f"{self.count(each)} ({us(self.us(each))})" if self.us(each) else "none of that"


PARTS = {
    "latency": Part(of_model("latency_us"), "{} after one another", lambda each: plural(count(each)[0], "message")),
    "bytes": Part(of_model("bytes_us"), "{} on its longest path", lambda each: rounded_bytes(count(each)[1])),
    "combining": Part(
        of_model("combining_us"), "{} to combine on its longest path", lambda each: rounded_bytes(count(each)[2])
    ),
    "processor": Part(of_model("processor_us"), "{} for a processor", lambda each: plural(count(each)[3], "message")),
    "late": Part(lambda each: each.late_us or 0.0, "a late rank, mostly {}", lambda each: f"rank {each.row.slow_rank}"),
}


def count(each: Apart) -> tuple[int, int, int, int]:
    """How many messages, bytes, bytes combined and messages handled follow one another."""
    model = each.model
    return (0, 0, 0, 0) if model is None else (model.messages, model.nbytes, model.combined_nbytes, model.handled)


def sentence(mine: Apart, others: Sequence[Apart], size: str, fit: Fit | None, site: Site) -> str:
    """Why one takes what it takes beside the fastest of the others, or, if it is the fastest, the next one."""
    if not others:
        return f"At {size} {mine.name} takes {us(mine.measured_us)}: {alone(mine)}."
    other = min(others, key=lambda each: merit(each.row))
    times = f"({us(mine.measured_us)})", f"({us(other.measured_us)})"
    if overlap(mine, other):
        told_apart = f"{mine.name} {times[0]} and {other.name} {times[1]} cannot be told apart"
        return f"At {size} {told_apart}: their intervals overlap. As for {mine.name}, {alone(mine)}."
    slower = mine.measured_us > other.measured_us
    beside = f"At {size} {mine.name} {times[0]} is {'slower' if slower else 'faster'} than {other.name} {times[1]}"
    if unknown := why_not_known(mine, other):
        return f"{beside}; why is not known: {unknown}."
    return f"{beside}{reason(mine, other, slower=slower)}{crossover_text(mine, other, fit, site)}."


def overlap(mine: Apart, other: Apart) -> bool:
    return mine.row.ci_low_us <= other.row.ci_high_us and other.row.ci_low_us <= mine.row.ci_high_us


def why_not_known(mine: Apart, other: Apart) -> str:
    """What the model does not explain, if that is too much to give a reason; else nothing."""
    if mine.rest_us is None:
        return f"{mine.name} has no program of messages that could be priced"
    if other.rest_us is None:
        if abs(mine.rest_us) <= UNKNOWN * mine.measured_us:
            return ""
        explained = us(mine.measured_us - mine.rest_us)
        return f"model and late ranks come to {explained} for {mine.name}, not {us(mine.measured_us)}"
    difference_us, rest_us = mine.measured_us - other.measured_us, mine.rest_us - other.rest_us
    if abs(rest_us) <= MOST_OPEN * abs(difference_us):
        return ""
    sign = math.copysign(1, difference_us)
    return f"model and late ranks put {us(sign * (difference_us - rest_us))} between them, not {us(abs(difference_us))}"


def reason(mine: Apart, other: Apart, *, slower: bool) -> str:
    if other.model is None:
        what = f": {most_of(mine)}" if largest(mine).us(mine) else ""
        if other.row.bound_us is not None and other.measured_us < (1 - UNKNOWN) * other.row.bound_us:
            return (
                f"{what}, and {other.name} takes less than messages on this network can: it moves data in another way"
            )
        return f"{what}; what {other.name} does inside is not known"
    sign = 1 if slower else -1
    most = max(PARTS.values(), key=lambda part: sign * (part.us(mine) - part.us(other)))
    if sign * (most.us(mine) - most.us(other)) <= 0:
        return ", which is in no part of the model"
    if not most.us(mine):
        return f" because {other.name} has {most.told(other)}, and {mine.name} none of that"
    return f" because it has {most.told(mine)}, where {other.name} has {most.briefly(other)}"


def largest(mine: Apart) -> Part:
    return max(PARTS.values(), key=lambda part: part.us(mine))


def most_of(mine: Apart) -> str:
    part = largest(mine)
    known_us = sum(each.us(mine) for each in PARTS.values())  # more than was measured, where the rest is below zero
    return f"{part.us(mine) / max(mine.measured_us, known_us):.0%} of its time is {part.told(mine)}"


def alone(mine: Apart) -> str:
    part = largest(mine)
    if not part.us(mine):
        return "it cannot be taken apart"
    if mine.rest_us is not None and abs(mine.rest_us) > UNKNOWN * mine.measured_us:
        return "the model does not explain it"
    return most_of(mine)


def crossover_text(mine: Apart, other: Apart, fit: Fit | None, site: Site) -> str:
    """From which size on that changes, by the model."""
    if fit is None or mine.model is None:
        return ""
    if other.model is None:
        latency, moved = mine.model.latency_us, mine.model.bytes_us + mine.model.combining_us
        if latency > moved > 0:
            size = rounded_bytes(mine.row.bytes * latency / moved)
            return f"; from about {size} on its bytes take longer than its latency"
        return ""
    nbytes = crossover(mine, other, fit.network, site)
    if nbytes is None:
        return ""
    faster = mine if mine.measured_us > other.measured_us else other
    return f"; from about {rounded_bytes(nbytes)} on {faster.name} is the faster one, by the model"
