"""What blame has found: as sentences, worst first, and as data."""

from dataclasses import asdict
from typing import Any

from dear_mpi.reporting.units import format_bytes
from dear_mpi.training.blame.blamed import FAR, Blame, Finding
from dear_mpi.training.blame.causes import Compared

MENDED = {"rank": "with it on time", "link": "as fast as they", "layer": "at its usual speed"}
SECOND_S, MILLISECOND_S = 1.0, 1e-3  # from here on seconds are written, else milliseconds; below with two digits


def sentences(blame: Blame) -> list[str]:
    """
    >>> found = Finding("rank", "2", seen=14, over_s=0.011, ratio=1.0, now_s=1.42, without_s=1.31, chance=0.0)
    >>> for each in said_of(found, 20).split("; "):
    ...     print(each)
    Rank 2 was late by 11.0 ms in 14 of 20 iterations
    with it on time an iteration would take 1.31 s, not 1.42 s.
    """
    if blame.is_far:
        return [
            f"Nobody is blamed: the replay takes {seconds(blame.replayed_s)}, and the run took "
            f"{seconds(blame.measured_s)}: {abs(blame.off):.0%} apart, where {FAR:.0%} are allowed."
        ]
    said = [said_of(each, blame.iterations) for each in blame.causes]
    more = "more " * bool(said)
    most = f": {saving(blame.most)}" if blame.most is not None and blame.most.share > 0 else ""
    said.append(f"Nothing {more}stands out{most}.")
    if blame.reference_is_own:
        said.append(
            "A layer that is slow in all iterations, on all ranks, is not seen without the times of another run."
        )
    return said


def said_of(finding: Finding, iterations: int) -> str:
    kind, seen = finding.kind, f"in {finding.seen} of {iterations} iterations"
    if kind == "rank":
        where = f", most of it in {finding.layer}" if finding.layer else ""
        what = f"Rank {finding.name} was late by {seconds(finding.over_s)} {seen}{where}"
    elif kind == "link":
        what = f"The link {finding.name} is slower than the others{told(finding.messages)}"
    else:
        what = (
            f"Layer {finding.name} took {finding.ratio:.1f} times its usual time, {seconds(finding.over_s)} more {seen}"
        )
    return f"{what}; {would_take(finding)}."


def told(its: Compared | None) -> str:
    if its is None:
        return ""
    return f": messages of {format_bytes(its.nbytes)} take {seconds(its.seconds)}, not {seconds(its.others_s)}"


def would_take(finding: Finding) -> str:
    return f"{MENDED[finding.kind]} an iteration would take {seconds(finding.without_s)}, not {seconds(finding.now_s)}"


def saving(finding: Finding) -> str:
    what = {"rank": "rank {} on time", "link": "the link {} as fast as the others", "layer": "{} at its usual speed"}
    return f"with {what[finding.kind].format(finding.name)} an iteration would be {finding.share:.1%} shorter at most"


def seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= SECOND_S else f"{value * 1e3:.{1 + (value < MILLISECOND_S)}f} ms"


def as_data(blame: Blame) -> dict[str, Any]:
    """The key ``blame`` of ``--json``."""

    def row(finding: Finding | None) -> dict[str, Any] | None:
        return None if finding is None else asdict(finding) | {"share": finding.share}

    parts = {
        part: dict(zip(("measured_s", "replayed_s", "without_s"), each, strict=True))
        for part, each in blame.parts_s.items()
    }
    found = asdict(blame) | {"off": blame.off, "parts_s": parts, "said": sentences(blame)}
    return found | {"causes": [row(each) for each in blame.causes], "most": row(blame.most)}
