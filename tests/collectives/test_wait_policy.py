"""Who waits asleep, and who spins."""

import pytest

from dear_mpi.collectives.transports import wait_policy
from dear_mpi.collectives.transports.loopback import run_loopback
from dear_mpi.collectives.transports.transport import Wrapper
from dear_mpi.collectives.transports.wait_policy import (
    Crowd,
    SleepingTransport,
    cgroup_limit,
    crowd_of,
    with_wait_policy,
)


class Spinning(Wrapper):
    """The transport of threads, as if whoever waits there would spin."""

    spins = True


@pytest.fixture(params=[8, 6, 4])
def cores(request, monkeypatch):
    monkeypatch.setattr(wait_policy, "own_cores", lambda: set(range(request.param)))
    monkeypatch.setattr(wait_policy, "cgroup_limit", lambda: None)
    return request.param


def test_ranks_sleep_where_there_are_more_threads_than_cores(cores, capsys):
    found = run_loopback(3, lambda transport: with_wait_policy(Spinning(transport), 2, "messages"))
    sleep = cores < 3 * 2
    assert [isinstance(each, SleepingTransport) for each in found] == [sleep] * 3
    said = f"waiting ranks sleep (6 threads, {cores} cores)"
    assert capsys.readouterr().err == (f"dear-mpi: {said}\n" if sleep else "")  # one line, of rank 0
    assert found[1].name == ("loopback (threads); " + said if sleep else "loopback (threads)")


class Told(Wrapper):
    """A transport on which all ranks know what they are told."""

    def __init__(self, *known):
        super().__init__(None)
        self.known = known

    def gather_values(self, value):
        return list(self.known)


def test_the_most_crowded_machine_counts():
    """Ranks that are bound have the cores of all of them together, and no more than a cgroup allows."""
    bound = [("a", 2, {core}, None) for core in range(3)]
    assert crowd_of(Told(*bound, ("b", 2, {0, 1, 2, 3}, None)), 2) == Crowd(threads=6, cores=3)
    assert crowd_of(Told(*bound, ("b", 5, {0, 1, 2, 3}, ("/", 2.5))), 2) == Crowd(threads=5, cores=2)


def test_containers_of_a_machine_have_what_all_of_them_are_allowed():
    """One container's share was taken for that of all."""
    ranks = [("a", 2, set(range(8)), (f"{container}/", 2.0)) for container in "xxyz"]
    assert crowd_of(Told(*ranks), 2) == Crowd(threads=8, cores=6)
    assert crowd_of(Told(*ranks, ("a", 2, set(range(8)), None)), 2) == Crowd(threads=10, cores=8)


@pytest.mark.parametrize(("limits", "found"), [
    ({}, None),
    ({"": "max 100000", "job/rank": "max 100000"}, None),
    ({"": "400000 100000"}, ("here/", 4.0)),  # as a container sees its own
    ({"": "max 100000", "job": "150000 100000", "job/rank": "max 100000"}, ("here/job", 1.5)),
    ({"job": "400000 100000", "job/rank": "50000 100000"}, ("here/job/rank", 0.5)),
    ({"job": "200000 100000", "job/rank": "200000 100000"}, ("here/job", 2.0)),  # which other ranks share
])  # fmt: skip
def test_the_cgroup_that_allows_least_counts(limits, found, tmp_path):
    """That of the process was not looked at, but only the root."""
    (tmp_path / "ns").mkdir()
    (tmp_path / "ns/cgroup").symlink_to("here")
    (tmp_path / "cgroup").write_text("4:memory:/elsewhere\n0::/job/rank\n")
    for group, text in limits.items():
        (tmp_path / "mounted" / group).mkdir(parents=True, exist_ok=True)
        (tmp_path / "mounted" / group / "cpu.max").write_text(f"{text}\n")
    assert cgroup_limit(tmp_path, tmp_path / "mounted") == found
    assert cgroup_limit(tmp_path / "none", tmp_path / "mounted") is None
