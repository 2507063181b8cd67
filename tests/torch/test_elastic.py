"""``elastic``: survivors of a death continue in the user's loop, with the bits of an undisturbed run or of a replay."""

import copy
import random
import subprocess
import sys
from itertools import pairwise

import pytest

torch = pytest.importorskip("torch", reason="DistributedOptimizer needs torch (our extra 'torch')")

from torch import nn  # noqa: E402

from dear_mpi.collectives.program.errors import RanksLost, lost_in  # noqa: E402
from dear_mpi.collectives.transports.loopback import run_loopback  # noqa: E402
from dear_mpi.training.buckets.bound import BoundBucket  # noqa: E402
from tests.collectives.test_elastic import Death, Doomed  # noqa: E402
from tests.launch import mpis_at_hand  # noqa: E402
from tests.torch.looping import alike, bits, loss_of, wrapped  # noqa: E402
from tests.training_checks import EVERY  # noqa: E402

STEPS, SEEDS = 6, 120 if EVERY else 15
OPEN_MPI = [mpi for mpi in mpis_at_hand() if mpi.name == "Open MPI"]
SCHEDULES = ("sequential", "wfbp", "dear", "dear-eager", "mg-wfbp")


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def passes(optimizer, own, iteration, *, clip=False):
    """Take a step, with the gradients of all ranks clipped by the user."""
    optimizer.zero_grad()
    for number in optimizer.micro_batches:
        loss_of(own, iteration, number).backward()
    if clip:
        optimizer.synchronize()
        nn.utils.clip_grad_norm_(own.parameters(), 0.1)
    optimizer.step()
    if iteration % 2 and optimizer.world.rank == 0:  # it completes updates on this rank only
        own.state_dict()


def state_bits(optimizer):
    """The state of the user's optimiser, after ``close``."""
    states = [state for _, state in sorted(optimizer.optimizer.state_dict()["state"].items())]
    return b"".join(value.numpy().tobytes() for state in states for value in state.values() if value is not None)


def train(transport, own, kind="adamw", *, user_clips=False, **options):
    """Train to the end in spite of deaths; return bits of parameters and state, and the losses of ranks."""
    optimizer, iteration, losses = wrapped(transport, own, kind, fusion="cut:128B", elastic=True, **options), 0, []
    while True:
        try:
            while iteration < STEPS:
                passes(optimizer, own, iteration, clip=user_clips)
                iteration += 1
            optimizer.close()
            return bits(own), state_bits(optimizer), losses
        except RanksLost as lost:
            if lost.iteration is None:
                raise
            losses = [*(each for each in losses if each[0] < lost.iteration), (lost.iteration, transport.members)]
            iteration = lost.iteration


def replayed(model, ranks, losses, kind, *, user_clips=False, **options):
    """Train with each of these groups in turn, without deaths; the state goes on as a checkpoint."""
    borders = [(0, tuple(range(ranks))), *losses, (STEPS, ())]
    state = None
    for (begin, members), (end, _) in pairwise(borders):

        def one(transport, state=state, begin=begin, end=end):
            own = copy.deepcopy(model)
            with wrapped(transport, own, kind, fusion="cut:128B", **options) as optimizer:
                if state is not None:
                    own.load_state_dict(state[0])
                    optimizer.load_state_dict(copy.deepcopy(state[1]))
                for iteration in range(begin, end):
                    passes(optimizer, own, iteration, clip=user_clips)
                optimizer.flush()
                found = copy.deepcopy((own.state_dict(), optimizer.state_dict()))
            return found, bits(own), state_bits(optimizer)

        state, *digests = run_loopback(len(members), one)[0]
    return tuple(digests)


def disturbed(model, ranks, deaths, kind="adamw", **options):
    """Let ranks die in their n-th call to others; return what the survivors agree on, or None if it was too early."""
    models = [copy.deepcopy(model) for _ in range(ranks)]

    def one(transport):
        if transport.rank in deaths:
            transport.below = Doomed(transport.below, [deaths[transport.rank]])
        return train(transport, models[transport.rank], kind, **options)

    try:
        found = run_loopback(ranks, one, elastic=True)
    except Exception as error:
        lost = lost_in(error)
        if lost is None or lost.iteration is not None:
            raise
        return None
    assert len(found) >= ranks - len(deaths)
    assert found == found[:1] * len(found)
    return found[0]


@pytest.mark.parametrize("invariant", [8, None])
@pytest.mark.parametrize("group", range(3))
def test_planned_deaths(group, invariant):
    (model,) = alike("branches", 1)
    lost = 0
    for seed in range(group, SEEDS, 3):
        rng = random.Random(seed)
        ranks, kind = rng.randint(3, 5), rng.choice(["adamw", "sgd", "adafactor"])
        options = {"schedule": rng.choice(SCHEDULES), "invariant": invariant}
        options |= rng.choice([{}, {"user_clips": True}, {"clip": 0.1}])
        first = rng.randint(100, 700)
        chosen = rng.sample(range(ranks), rng.choice([1, 2]))
        deaths = {rank: rng.choice([first, rng.randint(1, 700)]) for rank in chosen}
        found = disturbed(model, ranks, deaths, kind, **options)
        if found is not None:
            *digests, losses = found
            wanted = replayed(model, ranks, [] if invariant else losses, kind, **options)
            assert tuple(digests) == wanted, (seed, losses)
            lost += bool(losses)
    assert lost >= SEEDS // 3 // 2


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("bucket", [0, 2])
def test_a_death_in_an_update(schedule, bucket, monkeypatch):
    """Other ranks may have made this update: they go back."""
    (model,) = alike("branches", 1)
    plain = BoundBucket.update_own

    def fails(self, factor):
        if self.rank == 1 and self.ranks == 3 and self.bucket.index == bucket and self.own_updates == 3:
            raise Death("as planned")
        plain(self, factor)

    wanted = replayed(model, 1, [], "adamw", schedule=schedule, invariant=8)
    monkeypatch.setattr(BoundBucket, "update_own", fails)
    *digests, losses = disturbed(model, 3, {1: 10**9}, schedule=schedule, invariant=8)
    assert tuple(digests) == wanted
    ((iteration, members),) = losses
    assert members == (0, 2)
    assert iteration in (3, 4)


JOB = """
import os, signal, sys
import torch
import dear_mpi.torch as dear
from dear_mpi.collectives.program.errors import RanksLost
from dear_mpi.ranks.world import run_world
from tests.torch.looping import OPTIMIZERS, alike, loss_of

def main(world):
    (own,), me, iteration = alike("branches", 1), world.rank, 0
    optimizer = dear.DistributedOptimizer(
        OPTIMIZERS["adamw"](own.parameters()), own, comm=world, elastic=True, invariant=8, fusion="cut:128B"
    )
    while True:
        try:
            while iteration < 6:
                optimizer.zero_grad()
                for number in optimizer.micro_batches:
                    loss_of(own, iteration, number).backward()
                if me == 1 and iteration == 3:
                    os.kill(os.getpid(), signal.SIGKILL)
                optimizer.step()
                iteration += 1
            optimizer.close()
            break
        except RanksLost as lost:
            iteration = lost.iteration
            print("lost", lost.ranks, iteration, flush=True)
    print("done", bytes().join(each.detach().numpy().tobytes() for each in own.parameters()).hex(), flush=True)

run_world(main, elastic=True)
os._exit(0)
"""


@pytest.mark.skipif(not (OPEN_MPI and EVERY), reason="make faults, with Open MPI's wheel")
def test_a_killed_process(tmp_path):
    (model,) = alike("branches", 1)
    wanted, _ = replayed(model, 1, [], "adamw", invariant=8)
    (script := tmp_path / "train.py").write_text(JOB)
    mpi = OPEN_MPI[0]
    command = [*mpi.mpirun, "--with-ft", "ulfm", "-n", "3", sys.executable, str(script)]
    job = subprocess.run(command, env=mpi.environment(3), capture_output=True, text=True, timeout=240, check=False)
    done = [line.split()[1] for line in job.stdout.splitlines() if line.startswith("done")]
    assert done == [wanted.hex()] * 2, job.stderr
    assert "lost (1,) 3" in job.stdout


REFUSED = {
    "a dead rank's shard of the state of PyTorch's optimizer is lost": {"update": "sharded"},
    "(ranks differ in what they keep|a dead rank's shard)": {"wire": "int8"},
    "fusion 'bo:1KB..2KB' is decided from measured times": {"fusion": "bo:1KB..2KB"},
    "weights are of ranks that may die": {"weights": (2, 1)},
}


@pytest.mark.parametrize("message", REFUSED)
def test_refused_options(message):
    models = alike("branches", 2, torch.float32)

    def one(transport):
        own = models[transport.rank]
        with pytest.raises(Exception, match=message):
            passes(wrapped(transport, own, elastic=True, **REFUSED[message]), own, 0)

    run_loopback(2, one, elastic=True)
