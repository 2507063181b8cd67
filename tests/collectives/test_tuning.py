"""The table behind `auto`: files are stored and read back, bad ones refused, and the nearest rule is found."""

import json

import numpy as np
import pytest
from msgspec.structs import asdict

from dear_mpi.collectives import ALGORITHMS, all_reduce
from dear_mpi.collectives.plans.tuning import BUILT_IN, Rule, alike, pick, read_rules, rules_of, write_rules
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

RULES = [
    Rule("all_reduce", 4, 1000, "naive", 512),
    Rule("all_reduce", 4, None, "ring", 1024),
    Rule("all_reduce", 8, None, "pairwise", 1024),
    Rule("all_gather", 2, 10, "bruck", 64),
]


def test_a_table_is_read_as_it_was_written(tmp_path):
    file = tmp_path / "rules.json"
    write_rules(file, {"host": "here"}, RULES[::-1])
    assert sorted(map(str, read_rules(file))) == sorted(map(str, RULES))
    assert rules_of(f"auto:{file}") == read_rules(file)
    assert json.loads(file.read_text())["machine"] == {"host": "here"}
    stored = file.read_text()
    write_rules(file, {"host": "here"}, RULES)
    assert file.read_text() == stored


@pytest.mark.parametrize(("ranks", "nbytes", "algorithm"), [
    (4, 0, "naive"),
    (4, 1000, "naive"),
    (4, 1001, "ring"),
    (2, 1000, "naive"),
    (6, 5000, "ring"),  # as near to 4 as to 8
    (7, 1, "pairwise"),
    (900, 1 << 40, "pairwise"),
])  # fmt: skip
def test_pick(ranks, nbytes, algorithm):
    assert pick(RULES, "all_reduce", ranks, nbytes).algorithm == algorithm


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 16, 64, 200])
@pytest.mark.parametrize("nbytes", [0, 100, 5000, 16 << 10, 1 << 20, 1 << 40])
def test_alike_picks_one_algorithm_for_an_all_reduce_and_its_halves(ranks, nbytes):
    rules = alike(BUILT_IN)
    picked = [pick(rules, name, ranks, nbytes).algorithm for name in ("all_reduce", "reduce_scatter", "all_gather")]
    assert len(set(picked)) == 1
    assert {"all_reduce", "reduce_scatter", "all_gather"} <= ALGORITHMS[picked[0]].keys()
    asked = pick(BUILT_IN, "all_reduce", ranks, nbytes).algorithm
    halves = "reduce_scatter" in ALGORITHMS[asked]
    assert picked[0] == (asked if halves else pick(BUILT_IN, "reduce_scatter", ranks, nbytes).algorithm)


@pytest.mark.parametrize(("name", "value", "allowed"), [
    ("collective", 3, "a text, not 3"),
    ("ranks", 0, "a whole number >= 1, not 0"),
    ("ranks", True, "a whole number, not true"),
    ("up_to_bytes", "1KiB", 'a whole number or null, not "1KiB"'),
    ("segment_bytes", None, "a whole number, not null"),
])  # fmt: skip
def test_bad_entries(tmp_path, name, value, allowed):
    entry = asdict(RULES[0]) | {name: value}
    (tmp_path / "bad.json").write_text(json.dumps({"rules": [asdict(RULES[1]), entry]}))
    said = rf"bad.json' must be a file of dear-mpi bench --tune: rules\[1\].{name} must be {allowed}"
    with pytest.raises(ValueError, match=said):
        read_rules(tmp_path / "bad.json")


def test_a_table_may_name_the_librarys_own_collective(tmp_path):
    """Where that cannot run, the error says so; it is not passed over in silence."""
    file = tmp_path / "rules.json"
    write_rules(file, {}, [Rule("all_reduce", 2, None, "native", 1024)])
    with pytest.raises(ValueError, match="algorithm 'native' needs MPI, not the transport"):
        run_loopback(2, lambda transport: all_reduce(np.ones(9), transport, algorithm=f"auto:{file}"))


# Who waits asleep, and who spins.


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
