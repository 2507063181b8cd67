"""A link that changes while MPI's ranks train."""

import tempfile
from pathlib import Path

import pytest

from tests.contrib.networks.test_watch import RATE, trained, write_links

pytestmark = pytest.mark.mpi(min_size=2)


def test_all_ranks_switch_at_one_iteration(comm):
    folder = Path(comm.bcast(tempfile.mkdtemp() if comm.rank == 0 else None))
    if comm.rank == 0:
        write_links(folder / "links.json", [{"after_s": 1.0, "link": [1, 0], "rate": RATE / 2}], comm.size)
    comm.barrier()
    (mine,) = trained(str(folder / "links.json"), 100, ranks=comm.size, threads=False).values()
    found = comm.allgather(mine)
    assert all(each == found[0] for each in found)
    (change,) = mine[1]
    assert [tuple(link["link"]) for link in change["links"]] == [(1, 0)]
    assert mine[2] == {change["algorithm"]}
