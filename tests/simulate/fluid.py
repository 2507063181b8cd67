"""SimGrid's rules on a star in few lines: what differs between it and ``cost`` is in here, and nothing else is.

- A message begins when both its ends are in their step, and moves after alpha seconds.
- The messages under way share the ports that they go through, max-min fairly.
- A rank leaves its step when all its messages, sent and received, are there.
- Each message is 16 bytes longer than its chunks: SimGrid's envelope.

It is naive: each event looks at all messages under way.
"""

import math
from collections import Counter, defaultdict
from dataclasses import dataclass

from dear_mpi.collectives.program.lanes import Lane
from dear_mpi.collectives.program.partition import Partition

ENVELOPE = 16
LEFT = 1e-3  # bytes: what rounding leaves of a message that is over


@dataclass
class Flow:
    """A message whose both ends are posted; until ``starts_s`` it only takes latency."""

    source: int
    target: int
    left: float
    starts_s: float
    rate: float = 0.0

    @property
    def ports(self):
        return ("out", self.source), ("in", self.target)

    @property
    def done_s(self):
        """How long it takes from now on."""
        return self.left / self.rate if self.rate else math.inf


def share(flows, bandwidth):
    """Max-min fairness: the port with the least for each of its messages decides their rate, and so on."""
    free, waiting = defaultdict(lambda: bandwidth), list(flows)
    while waiting:
        users = Counter(port for flow in waiting for port in flow.ports)
        tightest = min(users, key=lambda port: free[port] / users[port])
        rate = free[tightest] / users[tightest]
        for flow in [flow for flow in waiting if tightest in flow.ports]:
            flow.rate = rate
            waiting.remove(flow)
            for port in flow.ports:
                free[port] -= rate


class Fluid:
    """All ranks, and the messages under way."""

    def __init__(self, programs, offsets, alpha, beta):
        self.programs, self.offsets, self.alpha, self.beta = programs, offsets, alpha, beta
        self.now_s = 0.0
        self.steps = [iter(program.steps) for program in programs]
        self.open = Counter()  # by rank: messages of its step that are not there
        self.lanes = defaultdict(Lane)
        self.flows = []

    def to_the_end(self):
        for rank in range(len(self.programs)):
            self.enter(rank)
        while self.flows:
            self.advance()
        return self.now_s

    def enter(self, rank):
        step = next((step for step in self.steps[rank] if step.sends or step.receives), None)
        if step is None:
            return
        self.open[rank] = len(step.sends) + len(step.receives)
        for receive in step.receives:
            self.lanes[receive.peer, rank].receives.append(None)
        for send in step.sends:
            nbytes = self.offsets[send.chunks.stop] - self.offsets[send.chunks.start]
            self.lanes[rank, send.peer].sends.append(nbytes + ENVELOPE)
        pairs = [(receive.peer, rank) for receive in step.receives] + [(rank, send.peer) for send in step.sends]
        for pair in pairs:
            met = self.lanes[pair].meetings()
            self.flows += [Flow(*pair, nbytes, self.now_s + self.alpha) for nbytes, _ in met]

    def advance(self):
        """To the next time at which a message starts to move or is there."""
        moving = [flow for flow in self.flows if flow.starts_s <= self.now_s]
        share(moving, 1 / self.beta)
        coming = [flow.starts_s for flow in self.flows if flow.starts_s > self.now_s]
        then_s = min([*coming, *(self.now_s + flow.done_s for flow in moving)])
        for flow in moving:
            flow.left -= flow.rate * (then_s - self.now_s)
        self.now_s = then_s
        over = [flow for flow in moving if flow.left <= LEFT]
        self.flows = [flow for flow in self.flows if flow.left > LEFT]
        for rank in (rank for flow in over for rank in (flow.source, flow.target)):
            self.open[rank] -= 1
            if self.open[rank] == 0:
                self.enter(rank)


def fluid_time(programs, count, itemsize, *, alpha, beta):
    """The seconds until the last rank is done."""
    chunks = Partition.of(count, len(programs)).chunks(programs[0].parts)
    return Fluid(programs, [border * itemsize for border in chunks], alpha, beta).to_the_end()
