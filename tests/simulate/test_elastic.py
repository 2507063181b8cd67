"""``--elastic --update sharded``: copies of shards are a stage of the route, sent and predicted alike."""

import json
from dataclasses import replace

import numpy as np
import pytest

from dear_mpi.collectives.algorithms.registry import programs
from dear_mpi.collectives.program.cost import Network, cost
from dear_mpi.collectives.program.hosts import NEXT
from dear_mpi.collectives.transports.loopback import run_loopback
from dear_mpi.collectives.transports.transport import Wrapper
from dear_mpi.models.layers import SoftmaxCrossEntropy
from dear_mpi.ranks.world import World
from dear_mpi.simulate.settings import Settings
from dear_mpi.simulate.sweep import scenarios_of, simulate
from dear_mpi.training import Session
from dear_mpi.training.routes.find import FULL, SHARDED
from dear_mpi.training.routes.invariant import with_tree
from dear_mpi.training.routes.proof import prove
from dear_mpi.training.routes.route import with_copies
from dear_mpi.training.routes.stages import CopyState, Update
from dear_mpi.training.runs.config import Config
from dear_mpi.training.runs.job import Job
from tests.training.route_checks import layers

ITERATIONS, SIZES = 4, (960, 60, 480, 1920)
ALPHA_S, BETA_S = 1e-3, 1e-6


class Counted(Wrapper):
    """Count messages that leave this rank, and their bytes."""

    def __init__(self, below):
        super().__init__(below)
        self.sent = np.zeros(2, int)

    def send_init(self, array, peer, tag):
        request, start = self.below.send_init(array, peer, tag), np.array([1, array.nbytes])

        class Noted(Wrapper):
            def Start(_):
                self.sent += start
                request.Start()

        return Noted(request)


@pytest.fixture
def table(tmp_path):
    modules = [{"name": f"layer{at}", "params": [size], "fwd_flops": 1} for at, size in enumerate(SIZES)]
    (tmp_path / "model.json").write_text(json.dumps({"batch": 64, "modules": modules}))
    return f"synthetic:{tmp_path / 'model.json'}"


def sent(table, ranks, *, elastic, **choices):
    """Messages and bytes of each rank in the iterations, as (ranks, 2)."""
    config = Config.of({"model": table, "forward_time": 0.0, "backward_time": 0.0, "schedule": "dear"} | choices)

    def body(transport):
        counted = transport.below = Counted(transport.below)
        with Job(config, World(transport), [config.schedule], elastic=elastic) as job:
            before = counted.sent.copy()
            for each in range(ITERATIONS):
                job.iterate(config.schedule, *job.batch(each))
            job.flush()
            return counted.sent - before

    return np.array(run_loopback(ranks, body, elastic=True))


def foretold(table, ranks, optimizer, fusion, **choices):
    """What the stage sends for each bucket in an iteration: messages and bytes of the rank that sends most."""
    settings = Settings(
        models=(table,), ranks=(ranks,), schedules=("dear",), fusions=(fusion,), optimizer=optimizer,
        update="sharded", elastic=True, **choices,
    )  # fmt: skip
    scenario = scenarios_of(settings, None, {})[None, table, ranks, "ring"]
    kind = settings.kinds["dear"]
    rules = scenario.rules("dear", kind, fusion)
    (stage,) = (each for each in rules.route.sent("all_gather") if isinstance(each, CopyState))
    longest, written = scenario.model.sharing(rules.buckets).longest, programs(NEXT, "all_gather", ranks)
    nbytes = [scenario.nbytes(rules.route, stage, each, longest(each)) for each in rules.buckets]
    costs = [cost(written, each, 1, Network(ALPHA_S, BETA_S)) for each in nbytes]
    return np.array([(max(each.messages), max(each.nbytes)) for each in costs]), [each.time_s for each in costs]


@pytest.mark.parametrize(("optimizer", "fusion"), [("adamw", "layers:1"), ("adam", "cut:2kB"), ("muon", "layers:2")])
@pytest.mark.parametrize(("ranks", "invariant"), [(2, None), (3, None), (3, 8), (5, None)])
def test_training_sends_what_is_predicted(table, ranks, invariant, optimizer, fusion):
    choices = {"optimizer": optimizer, "fusion": fusion, "algorithm": "ring", "update": "sharded"}
    both = [sent(table, ranks, elastic=each, invariant=invariant, **choices) for each in (True, False)]
    copies = both[0] - both[1]
    messages, nbytes = ITERATIONS * foretold(table, ranks, optimizer, fusion, invariant=invariant)[0].sum(axis=0)
    if optimizer == "muon":  # tensors have one owner: the longest shard of each bucket counts
        assert 0 < copies[:, 0].max() <= messages
        assert 0 < copies[:, 1].max() <= nbytes
    else:
        assert (copies == (messages, nbytes)).all()


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_predictions_have_the_time_of_the_copies(table, ranks):
    """Under ``sequential`` nothing hides them."""

    def seconds(**choices):
        given = {"models": (table,), "ranks": (ranks,), "schedules": ("sequential",), "fusions": ("layers:1",)}
        given |= {"network": f"{8e-9 / BETA_S}gbit,{1e6 * ALPHA_S}us", "forward_s": 0.0, "optimizer": "adamw"}
        (found,) = simulate(Settings(**given | choices))
        return found.row["iteration_s"], found.row["bound_s"], found.row["route"]

    plain, elastic = seconds(update="sharded"), seconds(update="sharded", elastic=True)
    due = sum(foretold(table, ranks, "adamw", "layers:1")[1])
    assert elastic[0] - plain[0] == pytest.approx(due, abs=1e-9)
    assert elastic[1] - plain[1] == pytest.approx(due, abs=1e-9)
    assert (plain[2], elastic[2]) == ("sharded", "sharded, elastic")
    assert due >= 4 * ALPHA_S or ranks == 1
    assert seconds(elastic=True) == seconds()
    assert seconds(update="sharded", elastic=True, optimizer="sgd") == seconds(update="sharded", optimizer="sgd")


def test_the_stage_follows_the_update_in_the_proof():
    route = with_copies(SHARDED, 8)
    stages = [type(each) for each in route.back]
    assert stages[stages.index(Update) + 1] is CopyState
    assert prove(route) == prove(SHARDED)
    assert prove(with_tree(route, 8)) == prove(with_tree(SHARDED, 8))
    assert str(route).count("copy state to the next rank") == 1
    assert with_copies(FULL, 8) != FULL
    assert route.divisible("all_gather") == SHARDED.divisible("all_gather")
    assert replace(route, state_bytes=0).nbytes("state", 96, wire=4, values=4, ranks=3) == 0


def test_live_routes_have_the_stage_if_there_is_a_state():
    def names(transport, **choices):
        with Session(layers(), SoftmaxCrossEntropy(), transport, elastic=True, **choices) as session:
            return session.group.route.name

    def both(transport):
        return [names(transport, update=each) for each in ("full", "sharded")]

    assert run_loopback(2, both, elastic=True) == [["full", "sharded"]] * 2  # SGD without momentum


@pytest.mark.parametrize(("choices", "what"), [
    ({"update": "sharded"}, "optimizer must be given with elastic"),
    ({"schedules": ("local:10",), "optimizer": "adam"}, "ranks differ in what they keep on the route 'local:10'"),
    ({"wires": ("int8",), "optimizer": "adam"}, "elastic must be left out"),
    ({"loss_scale": "dynamic", "optimizer": "adam"}, "elastic must be left out: loss_scale"),
], ids=str)  # fmt: skip
def test_what_training_refuses_is_refused(choices, what):
    with pytest.raises(ValueError, match=what):
        list(simulate(Settings(models=("synthetic:resnet50",), ranks=(4,), elastic=True, **choices)))
