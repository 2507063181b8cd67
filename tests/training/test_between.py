"""Codes between hosts alone: on any hosts, to the same bits on all ranks, with little error, and few bytes."""

import numpy as np
import pytest

from dear_mpi.collectives.program.errors import AgreedError
from dear_mpi.collectives.program.hosts import served
from dear_mpi.collectives.transports.loopback import run_loopback
from dear_mpi.kernels.optimizers import SGD
from dear_mpi.models.layers import SoftmaxCrossEntropy
from dear_mpi.ranks.world import run_world
from dear_mpi.reporting.units import parse_links
from dear_mpi.training import Session
from dear_mpi.training.routes.find import find_route
from dear_mpi.training.routes.proof import prove
from dear_mpi.training.runs.config import Config
from dear_mpi.training.runs.train import Saving, train
from tests.training.route_checks import OnHosts, bytes_between
from tests.training.test_wires import float32_layers
from tests.training_checks import Wide, installed, settings, steps

HOSTS = [(0, 1), (0, 0, 1), (0, 1, 0), (0, 1, 0, 1), (0, 0, 1, 1, 1), (0, 1, 2, 0, 1)]
PAIRS = parse_links("100gbit,1us/100gbit,1us,per_host=2")


def run(choices, ranks=4, link=PAIRS, **how):
    config = Config.of(settings(**{"schedule": "dear", "fusion": "cut:8KB", "iterations": 6} | choices))
    return run_world(lambda world: train(config, world, **how), threads=ranks, link=link)


def session(transport, hosts, layers=None, **options):
    how = {"optimizer": SGD(0.1), "fusion": "25MB", "wire": "int8:between"} | options
    return Session(layers or float32_layers(), SoftmaxCrossEntropy(), OnHosts(transport, hosts), **how)


@pytest.mark.parametrize("update", ["full", "sharded"])
@pytest.mark.parametrize("wire", installed("int8:between", "int4:between", "fp8:between:error=no", "topk:1%:between"))
def test_it_is_proved(wire, update):
    proof = prove(find_route(update, wire=wire))
    assert (proof.alike, proof.exact, proof.summed) == (True, False, True)
    assert proof.state == {"full": "equal", "sharded": "shard"}[update]


@pytest.mark.parametrize("hosts", HOSTS)
@pytest.mark.parametrize(("wire", "most"), installed(("int8", 0.011), ("int4", 0.2), ("fp8", 0.05)))
def test_sums_are_alike_on_all_ranks_and_near_those_of_float64(hosts, wire, most):
    """After one iteration the line has the sum that all ranks decoded; a tenth of the flat code's error is no claim."""
    draws = np.random.default_rng(5).standard_normal((len(hosts), 8192)).astype(np.float32)
    exact = draws.sum(axis=0, dtype=np.float64)

    def body(transport):
        wide = [Wide(draws[transport.rank])]
        with session(transport, hosts, wide, wire=f"{wire}:between") as of:
            of.step(np.ones((2, 3), np.float32), np.zeros(2, int))
            of.flush()
            return of.group.arena.wire[:8192].copy()

    first, *others = run_loopback(len(hosts), body)
    assert all(np.array_equal(first, other) for other in others)
    assert 0 < np.linalg.norm(first - exact) < most * np.linalg.norm(exact)


def test_ranks_with_a_host_each_have_the_flat_codes_bits():
    """All of them serve all shards then, and nothing is summed inside."""

    def body(transport, wire):
        with session(transport, range(3), wire=wire) as of:
            return steps(of, 4, dtype=np.float32)

    found = [run_loopback(3, lambda transport, wire=wire: body(transport, wire)) for wire in ("int8", "int8:between")]
    assert found[0] == found[1]


def test_what_was_lost_survives_a_break(tmp_path):
    choices, file = {"wire": "int8:between", "fusion": "cut:8KB"}, tmp_path / "c.npz"
    whole = run(choices | {"iterations": 9})
    run(choices | {"iterations": 4}, saving=Saving(file))
    assert run(choices | {"iterations": 9}, saving=Saving(file, resume=True))["params_sha256"] == whole["params_sha256"]


def residual(of):
    return of.group.arena.buffers["residual"]


def test_what_was_lost_is_sent_from_other_hosts_and_other_buckets():
    """Its sum stays the same, and after an iteration it lies again where a rank serves: none was left behind."""

    def body(transport, hosts, state=None):
        with session(transport, hosts) as of:
            if state is not None:
                of.load(state)
            before = residual(of).copy()
            of.cut("cut:256B" if state is not None else "25MB")
            steps(of, 1, 2, dtype=np.float32)
            fabric, mine = of.group.fabric, np.zeros(residual(of).size, bool)
            for bucket, bound in fabric.bound.items():
                for shard in served(transport.rank, hosts):
                    mine[bucket.start :][bound.place(shard)] = True
            return of.state(), before, residual(of).copy(), mine

    first = run_loopback(4, lambda transport: body(transport, (0, 0, 1, 1)))
    again = run_loopback(3, lambda transport: body(transport, (0, 1, 0), first[0][0]))
    lost, taken = sum(after[:200] for _, _, after, _ in first), sum(before[:200] for _, before, _, _ in again)
    assert abs(lost).max() > 0
    assert np.allclose(lost, taken, atol=1e-7)
    for _, _, after, mine in (*first, *again):
        assert after[mine].any()
        assert not after[~mine].any()


@pytest.mark.parametrize(("per_host", "times"), [(2, 1.5), (4, 2.5)])
def test_bytes_between_hosts(per_host, times):
    """Flat codes send each rank's codes of each shard to its owner; a host's sums are 1 / Q of that on the way out."""
    hosts = [0] * per_host + [1] * per_host
    sent = {wire: bytes_between(wire, hosts) for wire in ("fp32", "int8", "int8:between")}
    assert sent["int8"] / sent["int8:between"] == pytest.approx(times, rel=0.01)
    assert sent["fp32"] / sent["int8:between"] == pytest.approx(4 / (1 + 1 / 64), rel=0.01)


@pytest.mark.parametrize(("choices", "said"), [
    ({"link": None}, "'full over int8:between' has stages between hosts, and all ranks are on one"),
    ({"ranks": 2}, "has stages between hosts, and all ranks are on one"),
    ({"loss_scale": "dynamic"}, "what codes have lost would be of another scale"),
    ({"algorithm": "inside hosts", "wire": "fp32"}, "is for stages of routes, and leaves partial results"),
])  # fmt: skip
def test_what_cannot_be_is_refused(choices, said):
    how = {name: choices.pop(name) for name in ("link", "ranks") if name in choices}
    with pytest.raises((AgreedError, ValueError), match=said):
        run({"wire": "int8:between", **choices}, **how)
