"""One thing to say about a job, and the ranks that it is about."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from dear_mpi.doctor.examine import RankFacts
from dear_mpi.reporting.units import format_numbers

SEVERITIES = ("broken", "warning", "note")


@dataclass(frozen=True)
class Finding:
    """``severity``: broken (the job cannot do what it is for), warning (slower or wrong in part), or note."""

    severity: str
    text: str
    advice: str = ""


broken, warning, note = (partial(Finding, severity) for severity in SEVERITIES)


def ranks_of(ranks: Sequence[RankFacts]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {format_numbers(rank.rank for rank in ranks)}"
