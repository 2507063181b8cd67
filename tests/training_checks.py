"""Small training runs that the tests over threads and under mpirun share."""

import os
from functools import cache
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from dear_mpi.collectives import all_to_all
from dear_mpi.collectives.program.errors import AgreedError
from dear_mpi.collectives.transports.loopback import run_loopback
from dear_mpi.kernels.dtypes import DTYPES
from dear_mpi.kernels.optimizers import SGD
from dear_mpi.kernels.slab import Slab
from dear_mpi.models.layer import Parameter
from dear_mpi.models.layers import Dense
from dear_mpi.models.networks import ALL_MODELS
from dear_mpi.ranks.world import World
from dear_mpi.training.buckets.arena import Arena
from dear_mpi.training.buckets.layout import Bucket, Cut, flat_dtype, layout_of
from dear_mpi.training.fabric.live import LiveFabric
from dear_mpi.training.routes.find import FULL, WIRES
from dear_mpi.training.runs.config import Config
from dear_mpi.training.runs.train import train
from dear_mpi.training.schedules import SCHEDULES
from tests.pages import Page
from tests.rooms import DELETED

README = str(Path(__file__).parent.parent / "README.md")

# Of schedules one of each kind: everything behind the backward pass, as soon as it can be, with further plans of a
# bucket, and in an order that is decided from times. For tests of something else than the schedule.
KINDS = ("sequential", "wfbp", "fsdp", "dear-eager")


def fabric_on(engine):
    """A fabric without buckets: what it launches runs on this engine."""
    return LiveFabric(Cut(()), SimpleNamespace(values=np.zeros(0), route=FULL, share_out=len), None, engine)


def installed(*cases):
    """Those of these cases whose wire and model are there: extras may be deleted.

    A case, or its first item, is a wire, or choices with one.
    """

    def lacks(case):
        first = case if isinstance(case, str | dict) else case[0]
        choices = first if isinstance(first, dict) else {"wire": first}
        wire = (choices.get("wire") or "fp32").partition(":")[0]
        return ("wires" in DELETED and wire not in WIRES) or choices.get("model") in {"cnn", "gpt"} - set(ALL_MODELS)

    return [case for case in cases if not lacks(case)]


SCHEDULE_CASES = installed(
    {"model": "mlp", "fusion": "none"},
    {"model": "mlp", "fusion": "25MB", "optimizer": "sgd:nesterov=1", "lr": 0.1, "momentum": 0.9},
    {"model": "cnn", "fusion": "layers:2", "weight_decay": 1e-3},
    {"model": "cnn", "fusion": "buckets:3", "wire": "bf16", "algorithm": "naive"},
    {"model": "gpt", "data": README, "fusion": "none", "context": 8, "batch": 6, "iterations": 4},
    {"model": "mlp", "fusion": "none", "segment_bytes": 4096, "batch": 7},
    {"model": "mlp", "fusion": "cut:20kB", "update": "sharded", "clip": 1.0, "loss_scale": "dynamic", "wire": "fp16"},
    {"model": "mlp", "fusion": "none", "optimizer": "lamb", "clip": 1.0, "wire": "int8"},
)


# Sums along a tree: the product of what may be chosen, and its bits.
RANKS = (1, 2, 3, 4, 5)
MODELS = installed(
    {"model": "mlp"}, {"model": "cnn", "batch": 16}, {"model": "gpt", "data": README, "context": 8, "batch": 16}
)
OPTIMIZERS = ("sgd", "adamw", "muon")
FURTHER = ({}, {"clip": 0.1}, {"accumulate": 2}, {"clip": 0.1, "accumulate": 2, "loss_scale": "dynamic"})
ACCEPTED = ("sequential", "wfbp", "dear", "dear-eager")  # schedules with all cells
UPDATES, ALGORITHMS, FUSIONS = ("full", "sharded"), ("ring", "ordered", "auto"), ("none", "25MB", "cut:20kB")


def run_invariant(ranks, saving=None, **choices):
    config = Config.of(settings(**{"iterations": 3, "invariant": 8, "lr": 0.01} | choices))
    reports = on_all(lambda transport: train(config, World(transport), saving=saving), ranks)
    facts = [(each["params_sha256"], each["loss"]) if isinstance(each, dict) else each for each in reports]
    assert facts == facts[:1] * ranks
    return facts[0]


@cache
def on_one_rank(model, optimizer, further, wire=None):
    choices = {"schedule": "sequential", "optimizer": optimizer, "wire": wire} | MODELS[model] | FURTHER[further]
    found = run_invariant(1, **choices)
    assert isinstance(found, tuple), found
    return found


def cells(schedules):
    """The product; of schedules that are not ``ACCEPTED``, a quarter."""
    every = product(range(len(MODELS)), OPTIMIZERS, schedules, ALGORITHMS, RANKS, range(len(FURTHER)))
    return [each for number, each in enumerate(every) if each[2] in ACCEPTED or number // 4 % 4 == each[-1]]


def check_bits_of_one_rank(schedules, cases, wire=None):
    """Of those cells that a slice selects."""
    every = cells(schedules)
    for number in range(len(every))[cases]:
        model, optimizer, schedule, algorithm, ranks, further = every[number]
        update, fusion = UPDATES[number // 4 % 2], FUSIONS[number % 3]
        choices = {"schedule": schedule, "update": update, "algorithm": algorithm, "optimizer": optimizer}
        choices |= {"fusion": fusion, "wire": wire} | MODELS[model] | FURTHER[further]
        assert run_invariant(ranks, **choices) == on_one_rank(model, optimizer, further, wire), choices


def batch(iteration, rank, rows=4, dtype=np.float64):
    """A rank's part of a batch, for layers that make 4 outputs of 6 inputs."""
    draw = np.random.default_rng([iteration, rank])
    return draw.standard_normal((rows, 6)).astype(dtype), draw.integers(0, 4, rows)


def steps(session, *iterations, **how):
    """Train with the batches of ``range(*iterations)``: the digest of the parameters."""
    for iteration in range(*iterations):
        session.step(*batch(iteration, session.group.world.rank, **how))
    session.flush()
    return session.parameters_sha256()


def cut_of(*calls):
    return Cut(tuple(Bucket(i, 32 * i, 32 * i + 32, group, 128) for i, group in enumerate(calls)))


EVERY = bool(os.environ.get("EVERY"))  # all of what the tests otherwise share out


def schedules_for(choices, number):
    """For small models a third of the schedules, which this number chooses; for others one of each kind."""
    return (tuple(SCHEDULES) if EVERY else third(number)) if choices["model"] == "mlp" else KINDS


def third(number):
    """``sequential`` and each third of the others, from this one on: three cases of a test have all schedules."""
    return ("sequential", *[name for name in SCHEDULES if name != "sequential"][number % 3 :: 3])


def settings(**choices):
    return {"model": "mlp", "data": "digits", "fusion": "none", "batch": 32, "iterations": 8, "seed": 3} | choices


def session_script():
    """The script of docs/how-to/model.md for a model of one's own, and how many lines of code it has."""
    (script,) = (block for block in Page.of("how-to/model.md").blocks if "Session(" in block)
    return script, sum(bool(buffer.partition("#")[0].strip()) for buffer in script.splitlines())


def arena_of(layers, *, wire="fp64", ranks=1, optimizer=None):
    """The memory of a model's buffer, on the host."""
    wire = DTYPES[wire]
    layout = layout_of(layers, wire, ranks)
    slab = Slab.beside(np.zeros(1), Arena.nbytes(layout, flat_dtype(layers), wire))
    return Arena(layers, layout, wire=wire, optimizer=optimizer or SGD(), slab=slab)


def on_all(function, ranks=3):
    """What each rank returns, or what it says of an error."""

    def body(transport):
        try:
            return function(transport)
        except AgreedError as error:
            return str(error)

    return run_loopback(ranks, body)


def agreed(function, ranks=3):
    """What all ranks return alike, or say of an error."""
    found = on_all(function, ranks)
    assert found == found[:1] * ranks
    return found[0]


class Mixes(Dense):
    """A layer that gives every rank a part of its rows before each pass, and goes on with what it gets."""

    def __init__(self, name, weight, transport):
        super().__init__(name, weight)
        self.transport, self.exchanged = transport, 0

    def exchange_forward(self, x):
        self.exchanged += 1
        return all_to_all(x.copy(), self.transport)

    exchange_backward = exchange_forward  # its own transpose


class Wide:
    """A layer that has the gradients which it is given."""

    def __init__(self, given: np.ndarray) -> None:
        self.given, self.parameters = given, [Parameter.of("wide", np.zeros_like(given))]

    def forward(self, x: np.ndarray) -> np.ndarray:
        return x

    def backward(self, dy: np.ndarray) -> np.ndarray:
        self.parameters[0].grad[...] = self.given
        return dy
