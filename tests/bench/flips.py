"""A transport on which a bit of one message arrives flipped, in each run or in some; and what is then to be found."""

from collections import Counter
from dataclasses import replace

import numpy as np

from dear_mpi.bench.case import Case
from dear_mpi.bench.found.findings import Findings
from dear_mpi.bench.stand import Stand
from dear_mpi.bench.timing.interleaved import Interleaved
from dear_mpi.collectives.algorithms.registry import programs
from dear_mpi.collectives.lowering.messages import messages
from dear_mpi.collectives.program.partition import Partition
from dear_mpi.collectives.transports.transport import Wrapper

ALWAYS, ONCE = range(1 << 30), range(1, 2)
TIMED = 3


class Flips(Wrapper):
    """Of the ``messages`` that come from ``peer`` in a run of the only kind of plan, the one with ``number``: its first
    bit is flipped at those of its arrivals that are in ``times``."""

    def __init__(self, below, peer, number, messages, times):
        super().__init__(below)
        self.peer, self.number, self.messages, self.times = peer, number, messages, times
        self.made, self.arrived = Counter(), 0

    def recv_init(self, data, peer, tag):
        request = self.below.recv_init(data, peer, tag)
        self.made[peer, tag] += 1
        hit = (self.made[peer, tag] - 1) % self.messages == self.number
        return Flipped(request, data, self) if hit and peer == self.peer else request


class Flipped(Wrapper):
    def __init__(self, below, data, flips):
        super().__init__(below)
        self.data, self.flips = data, flips

    def Wait(self):
        self.below.Wait()
        if self.flips.arrived in self.flips.times:
            self.data.view(np.uint8)[0] ^= 1
        self.flips.arrived += 1


def received(case, algorithm, ranks, segment_bytes):
    """All messages that are received, as (rank, message)."""
    found, count, segment = [], case.count, segment_bytes // 4
    for rank, program in enumerate(programs(algorithm, case.collective, ranks, pieces=-(-count // segment))):
        chunks = Partition.of(count, ranks).chunks(program.parts)
        cut = messages(program, chunks, segment)
        found += [(rank, each, chunks) for each in cut if each.incoming]
    return found


def planted(world, case, algorithm, segment_bytes, hit, times):
    """Collective: the one fault that is found after a bit of a message of ``received`` was flipped."""
    rank, message, _ = hit
    of_peer = [each for to, each, _ in received(case, algorithm, world.size, segment_bytes) if to == rank]
    of_peer = [each for each in of_peer if each.peer == message.peer]
    if world.rank == rank:
        flips = Flips(world.transport, message.peer, of_peer.index(message), len(of_peer), times)
        world = replace(world, transport=flips)
    stand, findings = Stand.of(world, case), Findings()
    interleaved = Interleaved(case, [(algorithm, segment_bytes)], stand)
    samples = interleaved.run(TIMED, skipped=1)
    findings.look(case, samples, interleaved, stand, 0.0)
    interleaved.free()
    (fault,) = findings.faults
    return fault


def case_of(collective, **settings):
    return Case(collective, 4 * 61 * 60, dtype="int32", start="barrier", **settings)


def chunk_of(hit):
    _, message, chunks = hit
    return max(chunk for chunk, start in enumerate(chunks[:-1]) if start <= message.start)


def is_located(fault, hit):
    """Whether a fault that was seen again is the one that was planted."""
    rank, message, _ = hit
    place = rank, chunk_of(hit), message.key[0], message.peer, message.start
    found = fault.rank, fault.chunk, fault.step, fault.peer, fault.element
    again = fault.seen == fault.more_calls == 3, fault.point, abs(fault.got - fault.due), fault.elsewhere
    return (*found, *again) == (*place, True, "arrived", 1, 0)


def is_fitted(fault, hit):
    """Whether a fault that was not seen again says what is known of the one that was planted."""
    rank, message, _ = hit
    place = {"rank": rank, "chunk": chunk_of(hit), "step": message.key[0], "peer": message.peer}
    counted = fault.wrong_calls, fault.calls, fault.seen, fault.step
    return counted == (1, TIMED + 1, 0, None) and fault.more_calls == 3 and place in fault.fits
