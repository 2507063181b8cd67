"""What blame has found: as sentences, worst first, and as data."""

from dataclasses import asdict
from typing import Any

from dear_mpi.collectives.transports.wait_policy import shares_cores
from dear_mpi.reporting.units import format_bytes
from dear_mpi.training.blame.blamed import FAR, MOST, OWN, Blame, Finding

MENDED = {"rank": "with it on time", "link": "as fast as they", "layer": "at its usual speed"}
UNSEEN = "A layer that is slow in all iterations, on all ranks, is not seen without the times of another run."
SHARED = "Ranks share cores here: what stands out may be the turns that they take."
SECOND_S, SHORT_S = 1.0, 0.01  # from here on seconds are written, else milliseconds; below with two digits


def sentences(blame: Blame) -> list[str]:
    """
    >>> times = {"over_s": 0.011, "now_s": 1.42, "without_s": 1.31}
    >>> print(*said_of(Finding("rank", "2", 14, ratio=1.0, share=0.08, chance=0.0, **times), 20).split("; "), sep="\\n")
    Rank 2 was late by 11.0 ms in 14 of 20 iterations
    with it on time an iteration would take 1.31 s, not 1.42 s.
    """
    if abs(blame.off) > FAR:
        return [
            f"Nobody is blamed: the replay takes {seconds(blame.replayed_s)}, and the run took "
            f"{seconds(blame.measured_s)}: {abs(blame.off):.0%} apart, where {FAR:.0%} are allowed."
        ]
    said = [said_of(each, blame.iterations) for each in blame.causes]
    most = f": {saving(blame.most)}" if blame.most is not None and blame.most.share > 0 else ""
    no_more = f"Nothing {'more ' * bool(said)}stands out"
    said.append(f"{no_more if len(said) < MOST else f'After {MOST} causes blame looks no further'}{most}.")
    if blame.reference == OWN:
        said.append(UNSEEN)
    return said


def said_of(finding: Finding, iterations: int) -> str:
    kind, seen = finding.kind, f"in {finding.seen} of {iterations} iterations"
    if kind == "rank":
        where = f", most of it in {finding.layer}" if finding.layer else ""
        what = f"Rank {finding.name} was late by {seconds(finding.over_s)} {seen}{where}"
    elif kind == "link":
        its = finding.messages
        assert its is not None, "a link is known by its messages"
        take = f"{format_bytes(its.nbytes)} take {seconds(its.seconds)}, not {seconds(its.others_s)}"
        what = f"The link {finding.name} is slower than the others: messages of {take}"
    else:
        more = f"{finding.ratio:.1f} times its usual time, {seconds(finding.over_s)} more {seen}"
        what = f"Layer {finding.name} took {more}"
    would_take = f"{seconds(finding.without_s)}, not {seconds(finding.now_s)}"
    return f"{what}; {MENDED[kind]} an iteration would take {would_take}."


def saving(finding: Finding) -> str:
    what = {
        "rank": "rank {} on time",
        "link": "the link {} as fast as the others",
        "layer": "layer {} at its usual speed",
    }[finding.kind]
    return f"with {what.format(finding.name)} an iteration would be {finding.share:.1%} shorter at most"


def seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= SECOND_S else f"{value * 1e3:.{1 + (value < SHORT_S)}f} ms"


def as_data(blame: Blame, transport: str) -> dict[str, Any]:
    """The key ``blame`` of ``--json``, of a run on a transport of this name."""
    return asdict(blame) | {"said": sentences(blame) + [SHARED] * shares_cores(transport)}
