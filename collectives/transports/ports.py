"""The ports of emulated links: when each of their sides is free again. The ranks of an emulated host share one.

            host 0                       host 1
    0 --- inside --- 1           2 --- inside --- 3         a port of each rank, to the ranks of its host
          \\________ port of host 0 ____ port of host 1       a port of each host, to all other ranks

What ranks share stands in a file that no folder names any longer, and that all of them have mapped: so it works for
threads and for processes of one machine, whose clocks are one.
"""

from __future__ import annotations

import fcntl
import os
import time
import weakref
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from tempfile import NamedTemporaryFile

import numpy as np

from dear_mpi.collectives.program.hosts import Blocks
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.kernels.array import Array

BURST_S = 4e-3  # how much an incoming port may catch up after the receiver looked too late
OUT, IN = 0, 1  # the sides of a port


@dataclass(frozen=True)
class Link:
    """Bandwidth in bytes/s in each direction, and latency in s.

    With ``between`` and ``blocks`` it is the link inside a host: the ranks of a host share a port of the link
    ``between`` to those of other hosts.
    """

    bandwidth: float
    latency_s: float = 0.0
    between: Link | None = None
    blocks: Blocks | None = None

    def __str__(self) -> str:
        said = f"{self.bandwidth * 8e-9:.4g} Gbit/s, {self.latency_s * 1e6:.4g} us"
        return said if self.between is None else f"{said} inside hosts and {self.between} between them ({self.blocks})"

    def hosts(self, machines: tuple[int, ...]) -> tuple[int, ...]:
        """The emulated host of each rank; without any, its machine.

        Raises:
            ValueError: there are no such hosts of so many ranks, or the ranks of one are on several machines.
        """
        if self.blocks is None:
            return machines
        try:
            hosts = self.blocks.hosts(len(machines))
        except ValueError as error:
            raise ValueError(f"link: {error}") from None
        for rank, host in enumerate(hosts):
            first = hosts.index(host)
            if machines[rank] != machines[first]:
                where = f"ranks {first} and {rank} on one host, but they run on two machines"
                raise ValueError(f"link: {self.blocks} puts {where}, whose ranks cannot share an emulated port")
        return hosts


class Port:
    """A full-duplex port.

    Args:
        free_s: when its sides are free again, shape (2,), which others may share.
        lock: held while it is read and written.
    """

    def __init__(self, link: Link, free_s: Array | None = None, lock: AbstractContextManager[object] | None = None):
        self.link, self.lock = link, lock or nullcontext()
        self.free_s = np.zeros(2) if free_s is None else free_s

    def arrive(self, nbytes: int) -> float:
        """When the incoming side has taken in a message that was just seen."""
        return self.book(IN, time.perf_counter() - nbytes / self.link.bandwidth - BURST_S, nbytes)

    def book(self, side: int, begin_s: float, nbytes: int) -> float:
        """The end of so many bytes on one side, which begin at this time if it is free then, else later."""
        with self.lock:
            end_s = max(begin_s, float(self.free_s[side])) + nbytes / self.link.bandwidth
            self.free_s[side] = end_s
        return end_s


class FileLock:
    """A lock of all that have opened a file, threads as well as processes."""

    def __init__(self, name: str) -> None:
        self.file = os.open(name, os.O_RDWR)
        weakref.finalize(self, os.close, self.file)

    def __enter__(self) -> None:
        fcntl.flock(self.file, fcntl.LOCK_EX)

    def __exit__(self, *error: object) -> None:
        fcntl.flock(self.file, fcntl.LOCK_UN)


def port_of_host(link: Link, transport: Transport, hosts: tuple[int, ...]) -> Port:
    """Collective: the port that this rank's host has to others, the same for all ranks of the host."""
    first = hosts.index(hosts[transport.rank])
    with NamedTemporaryFile() as made:
        made.write(np.zeros(2).tobytes())
        made.flush()
        name = transport.gather_values(made.name)[first]
        port = Port(link, np.memmap(name, np.float64, "r+", shape=2), FileLock(name))
        transport.barrier()  # now all ranks of the host have it, and its name may go
    return port
