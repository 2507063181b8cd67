"""A transport whose rank sleeps now and then: after a barrier, or as it starts or waits for a message."""

import time

import numpy as np

from dear_mpi.bench.found.recorded_calls import recorded_calls
from dear_mpi.collectives import make_plan
from dear_mpi.collectives.transports.transport import Wrapper

LATE_S, EVERY = 0.08, 4  # longer than a busy machine keeps a rank from its core
PLACES = ("barrier", "send", "wait")


class Sleeper(Wrapper):
    """It sleeps once after each fourth barrier, at this place."""

    def __init__(self, below, place):
        super().__init__(below)
        self.place, self.barriers, self.due = place, 0, False

    def barrier(self, **options):
        self.below.barrier(**options)
        self.barriers += 1
        self.due = self.barriers % EVERY == 0
        self.sleep("barrier")

    def sleep(self, place):
        if self.due and place == self.place:
            self.due = False
            time.sleep(LATE_S)

    def send_init(self, *arguments):
        return Slept(self.below.send_init(*arguments), self)


class Slept(Wrapper):
    def __init__(self, below, sleeper):
        super().__init__(below)
        self.sleeper = sleeper

    def Start(self):
        self.sleeper.sleep("send")
        self.below.Start()

    def Wait(self):
        self.sleeper.sleep("wait")
        self.below.Wait()


def recorded(world, algorithm, late, place):
    """Collective: the slow ones among recorded calls in which one rank sleeps."""
    transport = Sleeper(world.transport, place) if world.rank == late else world.transport
    world = type(world)(transport)
    with make_plan("all_reduce", np.zeros(1000, "f4"), transport, algorithm=algorithm) as plan:
        return recorded_calls(plan, world, 100.0)
