"""The table behind `auto`: files are stored and read back, bad ones refused, and the nearest rule is found."""

import json

import numpy as np
import pytest
from msgspec.structs import asdict

from dear_mpi.collectives import ALGORITHMS, all_reduce
from dear_mpi.collectives.plans.tuning import BUILT_IN, Rule, alike, pick, read_rules, rules_of, write_rules
from dear_mpi.collectives.transports.loopback import run_loopback

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
