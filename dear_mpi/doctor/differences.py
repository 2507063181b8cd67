"""What differs between ranks, mostly because their hosts do: versions, cores, networks, clocks. Pure functions."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from dear_mpi.doctor.examine import Facts, RankFacts
from dear_mpi.doctor.finding import Finding, note, ranks_of, warning
from dear_mpi.reporting.groups import grouped
from dear_mpi.reporting.units import plural

MOST_HOSTS = 3  # that are named
KEPT_S = 1e-3  # clocks that NTP keeps in one network may differ by so much
FAR_S = 0.1
SAME = "start all ranks from one environment that the hosts share, or install the same on each"
PACKETS = "large packets may get lost on the way: ip link set NAME mtu BYTES, the same on all hosts and on their switch"


@dataclass(frozen=True)
class Subject:
    """``value`` of a rank is compared, ``said`` is shown of it."""

    severity: Callable[..., Finding]
    value: Callable[[RankFacts], Any]
    said: Callable[[RankFacts], str]
    advice: str


def software(name: str) -> Subject:
    return Subject(warning, lambda rank: rank.software.get(name), lambda rank: rank.software.get(name, "unknown"), SAME)


SUBJECTS = {
    **{name: software(name) for name in ("Python", "NumPy", "mpi4py", "the MPI library", "dear-mpi")},
    "the MTU of their interfaces": Subject(
        warning,
        lambda rank: frozenset(rank.mtus.values()),
        lambda rank: ", ".join(f"{name} {mtu}" for name, mtu in rank.mtus.items()) or "none",
        PACKETS,
    ),
    "the number of cores": Subject(
        note,
        lambda rank: (len(rank.cores), rank.host_cores),
        lambda rank: f"{len(rank.cores)} of {rank.host_cores}",
        "the slowest rank decides: give each the same, or let --weights measured share the work out",
    ),
    "the kernel": Subject(note, attrgetter("kernel"), attrgetter("kernel"), "nothing, if they are equally fast"),
    "TCP's congestion control": Subject(
        note, attrgetter("congestion"), attrgetter("congestion"), "sysctl net.ipv4.tcp_congestion_control=NAME"
    ),
}


def differences(facts: Facts) -> Iterator[Finding]:
    for what, subject in SUBJECTS.items():
        groups = grouped(facts.ranks, subject.value)
        if len(groups) > 1:
            said = "; ".join(f"{subject.said(ranks[0]) or 'unknown'} on {where(ranks)}" for ranks in groups.values())
            yield subject.severity(f"ranks differ in {what}: {said}", subject.advice)


def clocks(facts: Facts) -> Iterator[Finding]:
    """Wall clocks that differ from rank 0's for sure."""
    first = facts.ranks[0].clock
    if first is None:
        return
    off = [rank for rank in facts.ranks if rank.clock and rank.clock.is_beyond(first)]
    for ranks in grouped(off, lambda rank: rank.host).values():
        best = min((rank.clock for rank in ranks if rank.clock), key=attrgetter("uncertainty_s"))
        if abs(best.seconds) > KEPT_S:
            way = "ahead of" if best.seconds > 0 else "behind"
            text = (
                f"the clock of {where(ranks)} is {abs(best.seconds):.6g} s {way} that of rank 0, "
                f"give or take {best.uncertainty_s * 1e6:.3g} us"
            )
            severity = warning if abs(best.seconds) > FAR_S else note
            yield severity(
                text, "logs and files of these hosts cannot be put in order by their times: chronyc tracking"
            )


def where(ranks: Sequence[RankFacts]) -> str:
    """Their hosts, and the ranks there."""
    hosts = list(dict.fromkeys(rank.host for rank in ranks))
    more = f" and {plural(len(hosts) - MOST_HOSTS, 'more host')}" if len(hosts) > MOST_HOSTS else ""
    return f"{', '.join(hosts[:MOST_HOSTS])}{more} ({ranks_of(ranks)})"
