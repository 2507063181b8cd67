"""What readers of schedules report: each error names the flow, or the rank, step and chunk."""

import copy

import pytest

from dear_mpi.contrib.networks.formats.msccl import read_msccl
from dear_mpi.contrib.networks.formats.teccl import read_teccl
from tests.contrib.networks.test_formats import GATHER, TO_ALL
from tests.contrib.networks.test_msccl import algo, flagged, step

DEMAND = "Demand at 1 for chunk 1 from 0 met by epoch 2"


@pytest.mark.parametrize(("way", "message"), [
    ([[1, 2, 3]], DEMAND),
    ([[0, "0->1 with volume 1.2.3 in epoch 0"]], DEMAND),
    ([[0, 5]], DEMAND),
    (7, DEMAND),
])  # fmt: skip
def test_errors_of_paths_name_the_demand(way, message):
    content = copy.deepcopy(TO_ALL)
    content["7-chunk paths"][DEMAND][0] = way
    with pytest.raises(ValueError, match=f"'{message}' must be like 'Demand at .*, with lists of"):
        read_teccl(content)


@pytest.mark.parametrize(("flows", "message"), [
    ([], "it has no flows"),
    (TO_ALL["6-Flows"], "no chunk paths"),
    ([7], "a flow must be like 'Chunk 0 .*, not 7"),
    (GATHER["7-Flows"][:-1], "rank 0 ends with nothing in chunk 2"),
])  # fmt: skip
def test_errors_of_flows_name_the_flow_or_the_chunk(flows, message):
    with pytest.raises(ValueError, match=message):
        read_teccl({"7-Flows": flows})


def test_too_many_copies_are_refused_with_rank_step_and_chunk(tmp_path):
    """GPU 0 sends its chunk 70 times; GPU 1 keeps them all, and sends them back."""
    number = range(70)
    there = [(1, -1, *(step(n, "s") for n in number)), (-1, 1, *(step(n, "r", target=f"s{n}") for n in number))]
    back = [(-1, 0, *(step(n, "r", target=f"s{n}") for n in number), step(70, "cpy", "s0")),
            (0, -1, *(step(n, "s", f"s{n}", needs=(0, 69)) for n in number))]  # fmt: skip
    (tmp_path / "x.xml").write_text(flagged(algo("broadcast", 1, [there, back], scratch=70)))
    with pytest.raises(ValueError, match=r"x.xml: rank 1, step \d+: needs more than 64 scratch copies of chunk 0"):
        read_msccl(tmp_path / "x.xml")
