"""How ranks wait: a rank that has cores enough spins, for nothing is faster; one that has not sleeps between looks.

    spin     MPI_Wait            the answer within a microsecond, and a core taken from whoever could use it
    sleep    MPI_Test, a nap     the answer within a nap, and the core for compute: of this rank, or of another one

Where more threads than cores want to run, a rank that spins takes the turn of its own layers. Whoever makes a transport
patient says how many threads each rank has; it is decided once, for all messages of plans. Set-up, reports and the MPI
library's own collectives wait as MPI does.
"""

from __future__ import annotations

import math
import os
import platform
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from dear_mpi.collectives.transports.transport import Request, Transport, Wrapper
from dear_mpi.kernels.array import Array

__all__ = ["Crowd", "PatientTransport", "crowd_of", "patient"]

LOOKS = 2  # before the first nap: what is on its way already comes soon
SHORTEST_S, LONGEST_S, SHARE = 50e-6, 2e-3, 0.125  # of a nap; its share of the time waited so far


def own_cores() -> tuple[set[int], float]:
    """The cores that this process may run on, and how many of them a cgroup allows it."""
    found = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text("utf-8").split()
        return found, int(quota) / int(period)
    except (OSError, ValueError):  # there is no such cgroup, or it says "max"
        return found, math.inf


def machine() -> str:
    """Whose kernel schedules this process: hosts made of containers or namespaces may be one machine."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("utf-8").strip()
    except OSError:
        return platform.node()


@dataclass(frozen=True)
class Crowd:
    """The threads of all ranks of a machine, and the cores on which they may run."""

    threads: int
    cores: int

    @property
    def crowded(self) -> bool:
        return self.threads > self.cores

    def __str__(self) -> str:
        """
        >>> str(Crowd(threads=4, cores=2)), str(Crowd(threads=4, cores=8))
        ('waiting ranks sleep (4 threads, 2 cores)', 'waiting ranks spin (4 threads, 8 cores)')
        """
        how = "sleep" if self.crowded else "spin"
        return f"waiting ranks {how} ({self.threads} threads, {self.cores} core{'s' * (self.cores > 1)})"


def crowd_of(transport: Transport, threads: int) -> Crowd:
    """Collective: the most crowded machine of the job, if each rank has so many threads; the same on all ranks."""
    here: dict[str, list[tuple[int, set[int], float]]] = defaultdict(list)
    for name, *known in transport.gather_values((machine(), threads, *own_cores())):
        here[name].append(tuple(known))
    crowds = [
        Crowd(sum(counts), max(1, int(min(len(set().union(*masks)), *quotas))))
        for counts, masks, quotas in (zip(*ranks, strict=True) for ranks in here.values())
    ]
    return max(crowds, key=lambda each: each.threads / each.cores)


def patient(transport: Transport, threads: int, algorithm: str) -> Transport:
    """Collective: the transport, or one whose ranks sleep while they wait, if each rank has so many threads, and these
    are more than the cores. Then rank 0 says so in one line. Under ``native`` the MPI library waits, as it likes."""
    if not transport.spins or transport.size == 1 or algorithm == "native":
        return transport
    crowd = crowd_of(transport, threads)
    if not crowd.crowded:
        return transport
    if transport.rank == 0:
        print(f"dear-mpi: {crowd}", file=sys.stderr, flush=True)
    return PatientTransport(transport, crowd)


class PatientTransport(Wrapper[Transport]):
    """A transport whose messages of plans are waited for asleep."""

    spins = False

    def __init__(self, below: Transport, crowd: Crowd) -> None:
        super().__init__(below)
        self.crowd = crowd

    @property
    def name(self) -> str:
        return f"{self.below.name}; {self.crowd}"

    def send_init(self, data: Array, peer: int, tag: int) -> Request:
        return PatientRequest(self.below.send_init(data, peer, tag))

    def recv_init(self, data: Array, peer: int, tag: int) -> Request:
        return PatientRequest(self.below.recv_init(data, peer, tag))


class PatientRequest(Wrapper[Request]):
    """A message. Who waits for it sleeps between looks, for a share of the time that it has waited: so it comes back
    little later than it could, and has not looked often."""

    def Wait(self) -> None:
        test = self.below.Test
        for _ in range(LOOKS):
            if test():
                return
        begin_s = time.perf_counter()
        while not test():
            time.sleep(min(max(SHORTEST_S, SHARE * (time.perf_counter() - begin_s)), LONGEST_S))
