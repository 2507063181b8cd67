"""Choose how ranks wait: spin if there are enough cores, else sleep between polls.

    spin     MPI_Wait            answers within a microsecond, but occupies a core
    sleep    MPI_Test, a nap     answers within a nap, and leaves the core to compute of any rank

Set-up and the library's own collectives wait as MPI does.
"""

import math
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from dear_mpi.collectives.transports.transport import Request, Transport, Wrapper
from dear_mpi.kernels.array import Array

Limit = tuple[str, float]
THREADS = 2  # threads of a rank: main and engine

POLLS = 20  # before the first nap: most messages arrive within microseconds
SHORTEST_S, LONGEST_S, SHARE = 50e-6, 2e-3, 0.125  # limits of a nap; its share of the time waited


def own_cores() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def cgroup_limit(process: Path = Path("/proc/self"), mounted: Path = Path("/sys/fs/cgroup")) -> Limit | None:
    """Return this process's tightest cgroup and its cores; None: unlimited."""
    try:
        lines, space = (process / "cgroup").read_text("utf-8").splitlines(), os.readlink(process / "ns/cgroup")
    except OSError:
        return None
    own = PurePosixPath(next((line[3:] for line in lines if line.startswith("0::")), "/"))
    cores, group = min((quota(mounted / str(group)[1:]), f"{space}{group}") for group in (own, *own.parents))
    return None if cores == math.inf else (group, cores)


def quota(folder: Path) -> float:
    try:
        runs, period = (folder / "cpu.max").read_text("utf-8").split()
        return int(runs) / int(period)
    except (OSError, ValueError):
        return math.inf


def machine() -> str:
    """Identify the kernel: containers may share it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("utf-8").strip()
    except OSError:
        return platform.node()


@dataclass(frozen=True)
class Crowd:
    threads: int
    cores: int

    @classmethod
    def of(cls, threads: int, masks: Iterable[Iterable[int]], limits: Iterable[Limit | None]) -> "Crowd":
        """Count cores: each rank may use its mask, within its cgroup's limit.

        >>> Crowd.of(4, [{0, 1}, {1, 2}], [("a", 1.5), ("a", 1.5)]), Crowd.of(4, [{0, 1}], [None])
        (Crowd(threads=4, cores=1), Crowd(threads=4, cores=2))
        """
        known = list(limits)
        allowed = math.inf if None in known else sum(dict(filter(None, known)).values())  # each cgroup once
        return cls(threads, max(1, int(min(len(set[int]().union(*masks)), allowed))))

    @property
    def crowded(self) -> bool:
        return self.threads > self.cores

    def __str__(self) -> str:
        how = f"waiting ranks {'sleep' if self.crowded else 'spin'}"
        return f"{how} ({self.threads} threads, {self.cores} core{'s' * (self.cores > 1)})"


def crowd_of(transport: Transport, threads: int) -> "Crowd":
    """Collective: return the job's most crowded machine."""
    known = transport.gather_values((machine(), threads, own_cores(), cgroup_limit()))
    crowds = []
    for here in dict.fromkeys(name for name, *_ in known):
        counts, masks, limits = zip(*(facts for name, *facts in known if name == here), strict=True)
        crowds.append(Crowd.of(sum(counts), masks, limits))
    return max(crowds, key=lambda each: each.threads / each.cores)


def with_wait_policy(transport: Transport, threads: int, runner: str) -> Transport:
    """Collective: make ranks sleep if ``threads`` per rank exceed the cores."""
    if not transport.spins or transport.size == 1 or runner == "native":
        return transport
    crowd = crowd_of(transport, threads)
    if not crowd.crowded:
        return transport
    if transport.rank == 0:
        print(f"dear-mpi: {crowd}", file=sys.stderr, flush=True)
    return SleepingTransport(transport, crowd)


class SleepingTransport(Wrapper[Transport]):
    spins = False

    def __init__(self, below: Transport, crowd: Crowd) -> None:
        super().__init__(below)
        self.crowd = crowd

    @property
    def name(self) -> str:
        return f"{self.below.name}; {self.crowd}"

    def counters(self) -> None:
        """Return None: no rank may spin."""

    def send_init(self, data: Array, peer: int, tag: int) -> Request:
        return SleepingRequest(self.below.send_init(data, peer, tag))

    def recv_init(self, data: Array, peer: int, tag: int) -> Request:
        return SleepingRequest(self.below.recv_init(data, peer, tag))


class SleepingRequest(Wrapper[Request]):
    def Wait(self) -> None:
        test = self.below.Test
        for _ in range(POLLS):
            if test():
                return
        nap_until(test)


def nap_until(test: Callable[[], bool]) -> None:
    """Naps grow with the wait: few polls, little delay."""
    begin_s = time.perf_counter()
    while not test():
        time.sleep(min(max(SHORTEST_S, SHARE * (time.perf_counter() - begin_s)), LONGEST_S))
