"""An emulated link: any transport, slowed to a given bandwidth and latency, so that a laptop behaves like a cluster.

    sender     Start --> outgoing link: one message after the other, n/B s each --> latency --> really sent
    receiver   really arrived --> incoming link: the same bandwidth, shared by all senders --> over

Each rank has one full-duplex port, as a host has one network card. A message is handed to the transport below when
its last byte would arrive, so the real transfer (through shared memory) comes on top, overlapped with the next
message. The incoming side delays only what arrives faster than the port could carry: several senders at once.

Time passes by sleeping, never by spinning: the emulated network takes no processor time from what it is to be
compared with. A rank must be in ``Wait`` or ``Test`` for its messages to leave, as an engine's thread always is.
"""

import time
from collections import deque
from dataclasses import dataclass

from dear_mpi.collectives.transports.transport import Request, Transport, Wrapper
from dear_mpi.kernels.array import Array

NAP_S = 100e-6  # how long a rank sleeps between two looks at its requests
BURST_S = 4e-3  # how much an incoming port may catch up after the receiver looked too late


@dataclass(frozen=True)
class Link:
    """Bandwidth in bytes/s in each direction, and latency in s."""

    bandwidth: float
    latency_s: float = 0.0

    def __str__(self) -> str:
        return f"{self.bandwidth * 8e-9:.4g} Gbit/s, {self.latency_s * 1e6:.4g} us"


class EmulatedTransport(Wrapper[Transport]):
    """A transport whose ranks are joined by emulated links."""

    native = None  # the library's own collectives cannot be slowed
    spins = False

    def __init__(self, below: Transport, link: Link) -> None:
        super().__init__(below)
        self.link, self.port = link, Port(link)

    @property
    def name(self) -> str:
        return f"EMULATED link of {self.link} over {self.below.name}"

    def reach(self, array: Array) -> None:
        """None: the emulated network is between all ranks."""

    def send_init(self, data: Array, peer: int, tag: int) -> Request:
        return EmulatedSend(self.port, self.below.send_init(data, peer, tag), data.nbytes)

    def recv_init(self, data: Array, peer: int, tag: int) -> Request:
        return EmulatedReceive(self.port, self.below.recv_init(data, peer, tag), data.nbytes)


class Port:
    """One rank's end of the link: when it is free again, and which messages are still on their way out."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.outgoing_free_s = self.incoming_free_s = 0.0
        self.leaving: deque[tuple[float, EmulatedSend]] = deque()

    def depart(self, send: "EmulatedSend") -> None:
        """Let a message leave after the messages that are already leaving."""
        begin_s = max(time.perf_counter(), self.outgoing_free_s)
        self.outgoing_free_s = begin_s + send.nbytes / self.link.bandwidth
        self.leaving.append((self.outgoing_free_s + self.link.latency_s, send))

    def release(self) -> None:
        """Really send what would have arrived by now."""
        while self.leaving and self.leaving[0][0] <= time.perf_counter():
            self.leaving.popleft()[1].leave()

    def arrive(self, nbytes: int) -> float:
        """When the incoming side has taken in a message that was just seen."""
        duration_s = nbytes / self.link.bandwidth
        earliest_s = time.perf_counter() - duration_s - BURST_S
        self.incoming_free_s = max(self.incoming_free_s, earliest_s) + duration_s
        return self.incoming_free_s

    def nap(self) -> None:
        """Sleep until something may have changed."""
        next_s = self.leaving[0][0] - time.perf_counter() if self.leaving else NAP_S
        if next_s > 0:
            time.sleep(min(next_s, NAP_S))


class EmulatedRequest(Wrapper[Request]):
    """One end of a message; a rank that waits for it sleeps."""

    def __init__(self, port: Port, below: Request, nbytes: int) -> None:
        super().__init__(below)
        self.port, self.nbytes, self.active = port, nbytes, False

    def Wait(self) -> None:
        while not self.Test():
            self.port.nap()


class EmulatedSend(EmulatedRequest):
    """A send that leaves late; it is ``active`` until then."""

    def Start(self) -> None:
        self.active = True
        self.port.depart(self)

    def leave(self) -> None:
        self.active = False
        self.below.Start()

    def Test(self) -> bool:
        self.port.release()
        return not self.active and self.below.Test()


class EmulatedReceive(EmulatedRequest):
    """A receive that is over when the incoming port has taken the message in."""

    over_s: float | None = None

    def Start(self) -> None:
        self.active, self.over_s = True, None
        self.below.Start()

    def Test(self) -> bool:
        self.port.release()
        if not self.active:
            return True
        if self.over_s is None and self.below.Test():
            self.over_s = self.port.arrive(self.nbytes)
        self.active = self.over_s is None or time.perf_counter() < self.over_s
        return not self.active
