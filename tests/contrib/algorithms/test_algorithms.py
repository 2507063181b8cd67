"""The further algorithms are proved as messages and as instructions, cost what they say, and give exact results."""

import os

import numpy as np
import pytest

from dear_mpi.collectives import programs, verify
from dear_mpi.collectives.algorithms.registry import served_by
from dear_mpi.collectives.program.cost import Network, cost
from dear_mpi.collectives.program.hosts import Blocks
from dear_mpi.collectives.program.program import by_peer
from dear_mpi.collectives.transports.emulated import EmulatedTransport, Link
from dear_mpi.collectives.transports.loopback import run_loopback
from dear_mpi.see import explain as proof
from dear_mpi.simulate.prices import Prices, find_stand_ins
from dear_mpi.simulate.settings import Settings
from dear_mpi.simulate.sweep import simulate
from tests import collective_checks as checks

NAMES = ("swing", "double_tree", "torus", "themis", "pat", "bine")
PAIRS = [(name, collective) for name in NAMES for collective in served_by(name)]
EVERY_SIZE = bool(os.environ.get("EVERY_SIZE"))


@pytest.mark.parametrize(("name", "collective"), PAIRS)
def test_proved(name, collective):
    for size in range(1, 65) if EVERY_SIZE else (1, 2, 3, 4, 5, 6, 7, 12, 16, 17, 64):
        verify(programs(name, collective, size))
    if EVERY_SIZE:
        verify(programs(name, collective, 256))


@pytest.mark.parametrize(("name", "collective"), PAIRS)
def test_instructions_are_proved(name, collective):
    for size in (1, 2, 3, 6, 8):
        proof.PROOFS["messages"](programs(name, collective, size, pieces=3))


def test_pipelined_trees_are_proved_for_any_number_of_pieces():
    for pieces in (2, 3, 8, 31):
        for size in range(1, 20):
            verify(programs("double_tree", "all_reduce", size, pieces=pieces))


@pytest.mark.parametrize(("name", "collective"), [pair for pair in PAIRS if pair[0] in ("pat", "bine")])
def test_proved_on_1_to_33_ranks(name, collective):
    for size in range(1, 34):
        written = programs(name, collective, size)
        verify(written)
        assert all(len(by_peer(step.sends)) <= 1 for program in written for step in program.steps)


@pytest.mark.parametrize("size", [2, 5, 8, 33])
def test_pat_has_the_steps_and_bytes_of_bruck_and_sends_most_to_neighbours(size):
    pat, bruck = ([cost(programs(name, "all_gather", size), 1000 * size, 4, Network(alpha=1e-5, beta=1e-9))
                   for name in ("pat", "bruck")])  # fmt: skip
    assert pat.time_s == pytest.approx(bruck.time_s)
    assert (pat.nbytes, pat.messages) == (bruck.nbytes, bruck.messages)
    assert pat.link_nbytes[0, 1] == 4000 * (size // 2)


def test_bine_partners_are_a_third_of_the_tree_apart():
    def distances(name, size):
        sends = ((program.rank, send) for program in programs(name, "broadcast", size) for step in program.steps
                 for send in step.sends)  # fmt: skip
        return sorted(min((rank - send.peer) % size, (send.peer - rank) % size) for rank, send in sends)

    assert distances("bine", 16) == [1] * 8 + [1] * 4 + [3] * 2 + [5]
    for size in range(2, 34):
        assert sum(distances("bine", size)) <= sum(distances("binomial", size)), size
    root = programs("bine", "broadcast", 8)[0]
    assert [step.sends[0].peer for step in root.steps] == [3, 7, 1]


@pytest.mark.parametrize("size", [1, 2, 4, 8, 64])
def test_swing_costs_what_rabenseifner_does(size):
    network = Network(alpha=1e-5, beta=1e-9)
    found, known = (
        cost(programs(name, "all_gather", size), 1000 * size, 4, network) for name in ("swing", "rabenseifner")
    )
    assert found.time_s == pytest.approx(known.time_s)
    assert found.nbytes == known.nbytes


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("name", NAMES)
def test_exact_with_the_same_bits_on_all_ranks(size, name):
    run_loopback(size, lambda transport: checks.check_same_bits(transport, name, "fp32"))


def test_trees_send_as_many_pieces_as_the_buffer_has_segments(monkeypatch):
    prices = Prices(Network(beta=1e-9), 4, segment_bytes=1600)
    prices.seconds("double_tree", "all_reduce", [1600, 1616, 16000])
    assert [pieces for _, _, pieces in prices.replays] == [1, 10]  # with two, each tree has one, as with one
    proved = []
    monkeypatch.setattr(proof, "verify", lambda written: proved.append(len(written)))
    monkeypatch.setitem(proof.PROOFS, "messages", lambda written: None)
    proof.prove("double_tree", "all_reduce", [0, 0], lambda text: None)
    assert proved == [1, 1, 2, 2], "an algorithm that asks for pieces is proved for several numbers of them"


def test_pieces_are_of_a_segment():
    """So a tree hands on in turn what is else one message."""
    chosen = {"models": ("synthetic:resnet50",), "ranks": (4,), "network": "10gbit,50us", "fusions": ("cut:8MB",)}
    chosen |= {"schedules": ("wfbp",), "algorithms": ("double_tree",)}
    pieces, whole = (simulate(Settings(**chosen, segment_bytes=nbytes))[0] for nbytes in (1 << 16, 1 << 28))
    assert pieces.row["iteration_s"] < whole.row["iteration_s"]


def test_a_row_stands_for_a_torus():
    assert len(find_stand_ins(served_by("torus")["all_gather"], 12, None, thorough=0).programs) == 4


def test_themis_takes_both_orders_on_emulated_hosts_with_equal_rates():
    def body(transport):
        emulated = EmulatedTransport(transport, Link(1e12, between=Link(2e12), blocks=Blocks("per_host", 2)))
        with checks.make_plan("all_gather", np.arange(1000.0), emulated, algorithm="themis", segment_bytes=80) as plan:
            first = {message.peer for message in plan.run.listing.messages if message.key[0] == 0}
            checks.check_same_bits(emulated, "themis", "fp32")
        return len(first)

    assert run_loopback(4, body) == [2] * 4
