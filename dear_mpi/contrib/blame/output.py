from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich.console import Console

from dear_mpi.contrib.blame.blamed import FAR, MOST, OWN, Blame, Finding
from dear_mpi.reporting.units import format_bytes, plural

MENDED = {"rank": "with it on time", "link": "as fast as they", "layer": "at its usual speed"}
UNSEEN = "A layer that is slow in all iterations, on all ranks, is seen only if the model declares its times."
SLEEP = "waiting ranks sleep"  # in the name of a transport
SHARED = "Ranks share cores here: what stands out may be the turns that they take."
SECOND_S, SHORT_S = 1.0, 0.01  # from there in seconds, else ms; below that two digits
MEANS = "Times are means without the fifth of iterations at either end; each cause counts without those above it."


def sentences(blame: Blame) -> list[str]:
    """Describe the findings, worst first.

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
        what = f"Rank {finding.name} was late by {seconds(finding.over_s)} {seen}"
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
    """Return the key ``blame`` of ``--json``."""
    return asdict(blame) | {"said": sentences(blame) + [SHARED] * (SLEEP in transport)}


def show_blame(screen: Console, found: Mapping[str, Any]) -> None:
    if "refused" in found:
        screen.print(f"blame: {found['refused']}", soft_wrap=True)
        return
    screen.print("\n".join(found["said"]))
    many, ranks = plural(found["iterations"], "iteration"), plural(found["ranks"], "rank")
    screen.print(f"blame: {many} on {ranks}, replayed {round(found['off'], 3) + 0.0:+.1%}")
    suspects = ", ".join(plural(count, kind) for kind, count in found["suspects"].items() if count)
    screen.print(f"{MEANS}\nSuspects: {suspects}. Usual for a layer: {found['reference']}.")
