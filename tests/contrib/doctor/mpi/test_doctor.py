"""The doctor, on the ranks of a real job."""

import os

import pytest

from dear_mpi.collectives.launch.launcher import launch_of
from dear_mpi.contrib.doctor.examine import examine, look
from dear_mpi.contrib.doctor.findings import findings
from dear_mpi.contrib.doctor.show import show_doctor
from dear_mpi.ranks.world import run_world

pytestmark = pytest.mark.mpi


def examined(device_memory="auto"):
    alone = look(launch_of(os.environ), "cpu")
    return run_world(lambda world: examine(world, alone, device_memory=device_memory, nbytes=65536))


@pytest.fixture(scope="module")
def facts(comm):
    return examined()


def test_the_job_is_seen_as_it_is(comm, agree, facts):
    agree(facts.launch.size == facts.mpi.size == comm.size, facts.launch)
    agree(facts.launch.rank == facts.mpi.rank == comm.rank, facts.launch)
    agree([rank.rank for rank in facts.ranks] == list(range(comm.size)))
    agree(facts.mpi.library.split()[0] in ("Open", "MPICH", "Intel"), facts.mpi.library)
    agree(comm.allgather(facts.ranks) == [facts.ranks] * comm.size)
    agree(sorted(rank.local_rank for rank in facts.ranks if rank.host == facts.mpi.host)[0] == 0)


def test_links_of_all_neighbours(comm, agree, facts):
    pairs = [(rank, (rank + 1) % comm.size) for rank in range({1: 0, 2: 1}.get(comm.size, comm.size))]
    ends = [(row.source, row.dest) for row in facts.links]
    agree(ends == [end for pair in pairs for end in (pair, pair[::-1])], facts.links)
    agree(all(0 < row.latency_us < 1e6 and row.GBps > 0 and row.bytes == 65536 for row in facts.links), facts.links)
    agree(comm.allgather(facts.links) == [facts.links] * comm.size)


def test_a_job_of_this_machine_is_not_broken(comm, agree, facts, capsys):
    found = findings(facts)
    agree(all(finding.severity != "broken" for finding in found), found)
    show_doctor(facts, found)
    assert f"{comm.size} rank" in capsys.readouterr().out


def test_the_hosts_of_a_job_on_one_machine_are_alike(comm, agree, facts):
    found = [finding.text for finding in findings(facts)]
    agree(not any(text.startswith("ranks differ") for text in found), found)


def test_a_bad_flag_of_one_rank_is_an_error_on_all(comm):
    if comm.size > 1:
        with pytest.raises(ValueError, match="device_memory must be the same on all ranks"):
            examined("staged" if comm.rank else "auto")
