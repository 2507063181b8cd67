"""Sessions on a clock of their own, which tests over threads and under mpirun tune."""

import numpy as np

from dear_mpi.models.layer import Parameter
from dear_mpi.training import Session

LAYERS, ELEMENTS = 16, 16384  # of fp32: 64 KB for each layer
RANGE = "64KB..2MB"


class Clock:
    def __init__(self):
        self.now = 0.0

    def spend(self, seconds):
        self.now += seconds


class Spends:
    """A layer that takes its time, forward and twice that backward."""

    def __init__(self, clock, number, seconds):
        self.clock, self.seconds = clock, seconds
        self.parameters = [Parameter.of(f"{number}.weight", np.full(ELEMENTS, 1.0 + number, np.float32))]

    def forward(self, x):
        self.clock.spend(self.seconds)
        return x

    def backward(self, dy):
        self.clock.spend(2 * self.seconds)
        (parameter,) = self.parameters
        parameter.grad[...] = parameter.value * np.float32(1e-3)
        return dy


class Loss:
    """Takes what an iteration is to take longer with the buckets that a session has now."""

    def __init__(self, clock, seconds_of):
        self.clock, self.seconds_of, self.session = clock, seconds_of, None

    def forward(self, outputs, targets):
        self.clock.spend(self.seconds_of(len(self.session.group.buckets)))
        return 0.0

    def backward(self, scale):
        return np.zeros((2, 1))


def seconds_of(rank, size):
    """What an iteration takes on a rank by the number of buckets. The last rank is slowest, and likes 4 of them best.

    Each other rank would like as many buckets as there are layers; and no two clocks are alike.
    """
    if rank == size - 1:
        return lambda buckets: 10.0 + abs(np.log2(buckets / 4))
    return lambda buckets: 1.0 + rank + 1 / buckets


def tuned(comm, rank, size, *, iterations, fusion=f"bo:{RANGE}", layer_s=1e-3, seconds=None, **options):
    """(trials, fusion, buckets, SHA-256 of the parameters, whether it is over) of a session after some iterations."""
    clock = Clock()
    loss = Loss(clock, seconds or seconds_of(rank, size))
    layers = [Spends(clock, number, layer_s * (1 + rank)) for number in range(LAYERS)]
    with Session(layers, loss, comm, fusion=fusion, **options) as session:
        loss.session = session
        session.group.streams.compute.mark = lambda: clock.now
        for _ in range(iterations):
            session.step(np.zeros((2, 1)), np.zeros((2, 1)))
        session.flush()
        tuning = session.decisions.tuning
        trials = [(tried.fusion, tried.seconds) for tried in tuning.trials]
        return trials, session.decisions.fusion, len(session.group.buckets), session.parameters_sha256(), tuning.over


def check_trials(answers, size):
    """All ranks have the same trials: of the slowest rank; the best was applied, though no other rank likes it."""
    assert answers == answers[:1] * size
    trials, fusion, buckets, _, over = answers[0]
    assert over
    assert len({tried for tried, _ in trials}) == len(trials) == 10
    assert all(seconds >= 10.0 for _, seconds in trials)
    assert min(trials, key=lambda trial: trial[1])[0] == fusion
    assert buckets == 4
