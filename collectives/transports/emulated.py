"""Emulate links: slow any transport to a bandwidth and latency, so that a laptop behaves like a cluster.

    sender     Start --> outgoing link: one message after the other, n/B s each --> latency --> really sent
    receiver   really arrived --> incoming link: the same bandwidth, shared by all senders --> over

Each rank has one full-duplex port. A message goes to the transport below when its last byte would arrive, so the real
transfer comes on top, overlapped with the next message. The incoming side delays only messages that exceed the port's
rate. With a second link, ranks take turns at emulated hosts' ports. Links of an extra may differ by pair.

Sleeping takes no processor time from computation. Messages leave only while their rank is in ``Wait`` or ``Test``, as
an engine's thread always is.
"""

from __future__ import annotations

import fcntl
import heapq
import itertools
import os
import time
import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from tempfile import NamedTemporaryFile
from typing import ClassVar

import numpy as np

from dear_mpi.collectives.program.hosts import Blocks, Rates, format_rate, rates_of
from dear_mpi.collectives.transports.transport import Request, Transport, Wrapper
from dear_mpi.kernels.array import Array

NAP_S = 100e-6
BURST_S = 4e-3  # s by which an incoming port may catch up after a late poll
OUT, IN = 0, 1


@dataclass(frozen=True)
class Link:
    """Each rank's link, or inside hosts if ``between`` and ``blocks`` define hosts."""

    bandwidth: float  # bytes/s, each direction
    latency_s: float = 0.0
    between: Link | None = None  # a host's ranks share a port to all others
    blocks: Blocks | None = None
    modelled: ClassVar[bool] = True  # by prices of one network

    def __str__(self) -> str:
        said = f"{format_rate(self.bandwidth)}, {self.latency_s * 1e6:.4g} us"
        return said if self.between is None else f"{said} inside hosts and {self.between} between them ({self.blocks})"

    def hosts(self, machines: tuple[int, ...]) -> tuple[int, ...]:
        """Return each rank's emulated host, by default its machine; ValueError: the blocks do not fit."""
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

    def ports(self, transport: Transport) -> list[list[Port]]:
        """Collective: return the ports to each peer; a message passes all of them at once."""
        near, hosts = [Port(self)], self.hosts(transport.hosts)
        far = [port_of_host(self.between, transport, hosts)] if self.between else near
        return [near if host == hosts[transport.rank] else far for host in hosts]


class Port:
    """A full-duplex port; each side is free at ``free_s``; a ``lock`` guards shared ones.

    This rank's ``waiting`` messages have not entered; the last that did passes at ``over_s``. ``rates``: bytes/s out
    and in.
    """

    def __init__(self, link: Link, free_s: Array | None = None, lock: AbstractContextManager[object] | None = None):
        self.link, self.lock = link, lock or nullcontext()
        self.free_s = np.zeros(2) if free_s is None else free_s
        self.waiting, self.over_s = deque[tuple[float, EmulatedSend]](), 0.0
        self.rates = link.bandwidth, link.bandwidth

    def rate(self, side: int) -> float:
        return self.rates[side]

    def arrive(self, nbytes: int) -> float:
        return self.book(IN, time.perf_counter() - nbytes / self.rate(IN) - BURST_S, nbytes)

    def book(self, side: int, begin_s: float, nbytes: int) -> float:
        with self.lock:
            end_s = max(begin_s, float(self.free_s[side])) + nbytes / self.rate(side)
            self.free_s[side] = end_s
        return end_s


class FileLock:
    def __init__(self, name: str) -> None:
        self.file = os.open(name, os.O_RDWR)
        weakref.finalize(self, os.close, self.file)

    def __enter__(self) -> None:
        fcntl.flock(self.file, fcntl.LOCK_EX)

    def __exit__(self, *error: object) -> None:
        fcntl.flock(self.file, fcntl.LOCK_UN)


def port_of_host(link: Link, transport: Transport, hosts: tuple[int, ...]) -> Port:
    """Collective: return this rank's host's port, in an unlinked file that its ranks map."""
    first = hosts.index(hosts[transport.rank])
    with NamedTemporaryFile() as made:
        made.write(np.zeros(2).tobytes())
        made.flush()
        name = transport.gather_values(made.name)[first]
        port = Port(link, np.memmap(name, np.float64, "r+", shape=2), FileLock(name))
        transport.barrier()  # all have opened it: its name may go
    return port


class EmulatedTransport(Wrapper[Transport]):
    """Collective to construct if hosts are emulated."""

    rates: Rates | None
    native = None  # the library's own collectives cannot be slowed
    spins = False

    def __init__(self, below: Transport, link: Link) -> None:
        super().__init__(below)
        self.link, self.ports = link, link.ports(below)
        self.outbox = Outbox({first for first, *_ in self.ports})
        if link.between:
            self.hosts = link.hosts(below.hosts)
            self.rates = rates_of(link.bandwidth, link.between.bandwidth, self.hosts)

    @property
    def name(self) -> str:
        return f"EMULATED link of {self.link} over {self.below.name}"

    def reach(self, array: Array) -> None:
        """Return None: all ranks are apart."""

    def counters(self) -> None:
        """Return None, like ``reach``."""

    def send_init(self, data: Array, peer: int, tag: int) -> Request:
        return EmulatedSend(self.outbox, self.ports[peer], self.below.send_init(data, peer, tag), data.nbytes)

    def recv_init(self, data: Array, peer: int, tag: int) -> Request:
        return EmulatedReceive(self.outbox, self.ports[peer], self.below.recv_init(data, peer, tag), data.nbytes)


class Outbox:
    """One message at a time enters its first port.

    After a late poll, the next message starts when it would have on time.
    """

    def __init__(self, ports: Iterable[Port]) -> None:
        self.ports = [*ports]
        self.leaving: list[tuple[float, int, EmulatedSend]] = []
        self.numbers = itertools.count()

    def release(self) -> None:
        now_s = time.perf_counter()
        for port in self.ports:
            while port.waiting and port.over_s <= now_s:
                start_s, send = port.waiting.popleft()
                port.over_s = max([each.book(OUT, max(start_s, port.over_s), send.nbytes) for each in send.ports])
                heapq.heappush(self.leaving, (port.over_s + port.link.latency_s, next(self.numbers), send))
        while self.leaving and self.leaving[0][0] <= now_s:
            heapq.heappop(self.leaving)[-1].leave()

    def nap(self) -> None:
        next_s = self.leaving[0][0] - time.perf_counter() if self.leaving else NAP_S
        if next_s > 0:
            time.sleep(min(next_s, NAP_S))


class EmulatedRequest(Wrapper[Request]):
    """Naps while it waits."""

    def __init__(self, outbox: Outbox, ports: Sequence[Port], below: Request, nbytes: int) -> None:
        super().__init__(below)
        self.outbox, self.ports, self.nbytes, self.active = outbox, ports, nbytes, False

    def Wait(self) -> None:
        while not self.Test():
            self.outbox.nap()


class EmulatedSend(EmulatedRequest):
    """``active`` until it leaves."""

    def Start(self) -> None:
        self.active = True
        self.ports[0].waiting.append((time.perf_counter(), self))
        self.outbox.release()

    def leave(self) -> None:
        self.active = False
        self.below.Start()

    def Test(self) -> bool:
        self.outbox.release()
        return not self.active and self.below.Test()


class EmulatedReceive(EmulatedRequest):
    """Complete once through the incoming port."""

    over_s: float | None = None

    def Start(self) -> None:
        self.active, self.over_s = True, None
        self.below.Start()

    def Test(self) -> bool:
        self.outbox.release()
        if not self.active:
            return True
        if self.over_s is None and self.below.Test():
            self.over_s = max([port.arrive(self.nbytes) for port in self.ports])
        self.active = self.over_s is None or time.perf_counter() < self.over_s
        return not self.active
