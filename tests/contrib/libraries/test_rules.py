"""Files of rules that MPI libraries read, from rows; test_rules_loaded.py loads them."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dear_mpi.bench.case import Case, Samples, row_of
from dear_mpi.bench.run import Report
from dear_mpi.bench.saved import rules_before
from dear_mpi.bench.suite import Suite
from dear_mpi.collectives.program.errors import ArgumentError
from dear_mpi.contrib.libraries.rules import MPICH_JSON, OMPI, OMPI_RULES, lines, mpich_text, ompi_text, rules_of
from dear_mpi.ranks.world import run_world
from tests.cli_checks import invoke

TURNS = 200


def row(algorithm, nbytes, time_us, seed, collective="all_reduce", **facts):
    """Of four ranks, of which the last one is the slowest."""
    times_s = 1e-6 * time_us * np.exp(0.03 * np.random.default_rng(seed).standard_normal(TURNS))
    by_rank = [(share * times_s).tolist() for share in (0.5, 0.6, 0.7, 1.0)]
    case = Case.of(collective, nbytes, 4, {"placement": "in"} | {"dtype": "fp32", "op": "sum"})
    return replace(row_of(case, algorithm, Samples(by_rank), backend="", hosts=[4], segment_bytes=nbytes), **facts)


def report(library="ompi", collective="all_reduce", names=("ring", "recursive_doubling"), **facts):
    """The first is faster at two of four sizes; the second slower, or by less than noise."""
    rows, seed = [], 0
    for nbytes, first, second in ((1024, 100, 120), (4096, 70, 99.9), (16384, 60, 100), (65536, 101, 100)):
        for name, time_us in zip(("default", *names), (100, first, second), strict=True):
            seed += 1
            rows.append(row(f"{library}:{name}", nbytes, time_us, seed, collective, **facts))
    return Report(rows, None, tuple({each.algorithm: None for each in rows}))


def test_a_rule_differs_from_the_default_only_if_it_is_clearly_faster():
    (rules,) = rules_of(report()).values()
    assert [(rule.begin, rule.name) for rule in rules] == [
        (0, "default"),
        (512, "default"),
        (2048, "ring"),
        (8192, "ring"),
        (32768, "default"),
        (131073, "default"),
    ]
    value, low, high = rules[2].faster
    assert 1.3 < low < value < high < 1.6
    assert all(rule.name == "default" for rule in rules_of(report(wrong=0, times_us=None))["all_reduce"])


def test_an_algorithm_with_wrong_results_is_no_rule():
    made = report()
    rows = [replace(each, wrong=1) if each.algorithm == "ompi:ring" else each for each in made.rows]
    assert {rule.name for rule in rules_of(replace(made, rows=rows))["all_reduce"]} == {"default"}


@pytest.mark.parametrize("names", ["ompi:default", "ompi:ring", "ompi:default ompi:ring ompi:recursive_doubling"])
def test_a_noisy_row_is_no_rule(names):
    made = report()
    rows = [replace(each, ci_high_us=9 * each.p50_us) if each.algorithm in names else each for each in made.rows]
    assert {rule.name for rule in rules_of(replace(made, rows=rows))["all_reduce"]} == {"default"}


def test_the_file_of_open_mpi_has_the_default_for_other_sizes():
    text = ompi_text(report(), lambda collective, name: {"default": 0, "ring": 4}[name])
    numbers = [line.partition("#")[0].split() for line in text.splitlines()]
    assert numbers == [
        ["rule-file-version-2"],
        ["1"],
        ["2"],
        ["3"],
        *(["1"], ["1"], ["0", "0", "4", "0"]),
        *(["4"], ["3"], ["0", "0", "4", "0"], ["2048", "4", "4", "0"], ["32768", "0", "4", "0"]),
        *(["5"], ["1"], ["0", "0", "4", "0"]),
    ]


def test_calls_in_place_keep_the_default_of_open_mpi():
    """It looks up an all_gather in place with 0 bytes."""
    made = report(collective="all_gather")
    rows = [each for each in made.rows if each.bytes in (4096, 65536)]
    text = ompi_text(replace(made, rows=rows), lambda collective, name: ["default", "ring"].index(name))
    assert [line.split(" #")[0] for line in text.splitlines()[7:12]] == [
        "4",
        "3",
        "0 0 4 0",
        "2048 1 4 0",
        "16384 0 4 0",
    ]


def test_a_rule_of_open_mpi_has_its_segment():
    made = report(collective="broadcast", names=("pipeline,64KiB", "binomial"))
    text = ompi_text(made, lambda collective, name: ["default", "pipeline", "binomial"].index(name))
    assert "2048 1 4 65536 # bytes or more: pipeline,64KiB" in text.splitlines()


def choice(tree, **facts):
    """What MPICH would choose from a tree with these facts."""
    for key, below in tree.items():
        name, sign, value = key.partition("<=") if "<=" in key else key.partition("=")
        if name == "algorithm":
            return value
        if value == "any" or facts.get(name) == value:
            return choice(below, **facts)
        if sign == "<=" and facts[name] <= int(value):
            return choice(below, **facts)
    raise AssertionError(f"no branch of {list(tree)} for {facts}")


DEFAULT = {"algorithm=MPIR_Own": {}}


@pytest.mark.parametrize(
    ("collective", "name", "size", "facts"),
    [
        ("all_reduce", "allreduce", "avg_msg_size", {"is_commutative": "yes", "is_op_built_in": "yes"}),
        ("reduce_scatter", "reduce_scatter_block", "total_msg_size", {"is_commutative": "yes"}),
        ("all_gather", "allgather", "total_msg_size", {}),
        ("broadcast", "bcast", "avg_msg_size", {}),
    ],
)
def test_the_tree_of_mpich_keeps_its_own_choices_elsewhere(collective, name, size, facts):
    default = {
        f"collective={name}": {"comm_type=intra": DEFAULT, "comm_type=inter": DEFAULT},
        "collective=scan": DEFAULT,
    }
    tree = json.loads(mpich_text(report("mpich", collective, ("ring", "nb")), lambda: json.loads(json.dumps(default))))
    assert tree["collective=scan"] == tree[f"collective={name}"]["comm_type=inter"] == DEFAULT
    own = f"MPIR_{name.capitalize()}_intra_ring"
    found = tree[f"collective={name}"]["comm_type=intra"]
    for nbytes, algorithm in ((0, "MPIR_Own"), (2047, "MPIR_Own"), (2048, own), (32767, own), (32768, "MPIR_Own")):
        assert choice(found, comm_size=4, **{size: nbytes}, **facts) == algorithm
        for ranks in (3, 5):
            assert choice(found, comm_size=ranks, **{size: nbytes}, **facts) == "MPIR_Own"
        for other in facts:
            assert choice(found, comm_size=4, **{size: nbytes}, **{**facts, other: "no"}) == "MPIR_Own"


def test_an_algorithm_that_starts_and_waits_has_another_name():
    text = mpich_text(
        report("mpich", names=("nb", "ring")), lambda: {"collective=allreduce": {"comm_type=intra": DEFAULT}}
    )
    assert "algorithm=MPIR_Allreduce_allcomm_nb" in text


def test_rows_and_rules_are_printed():
    said = [str(line) for line in lines(report())]
    assert any(line.startswith("# rule: all_reduce from 2 KiB on: ring, 1.4") for line in said)
    assert said[-1] == "# all_reduce: 2 of 4 sizes have a clearly faster algorithm than the default"


@pytest.mark.parametrize("form", [OMPI_RULES, MPICH_JSON])
def test_what_is_measured(form):
    suite = form.suited(Suite((1024,)), {"tune": "rules"})
    assert suite.collectives == ("all_reduce", "reduce_scatter", "all_gather", "broadcast")
    suite = form.suited(Suite((1024,), ("broadcast",)), {"tune": "rules", "collective": "broadcast"})
    assert suite.algorithms[0].endswith(":default")
    if form is OMPI_RULES:
        assert suite.algorithms[1:] == tuple(f"ompi:{name}" for name in OMPI["broadcast"].split())
    with pytest.raises(ValueError, match="needs --tune FILE"):
        form.suited(Suite((1024,)), {})
    with pytest.raises(ValueError, match="needs --tune FILE, which the library reads, and no --algorithms"):
        form.suited(Suite((1024,)), {"tune": "rules", "algorithms": "ring"})
    with pytest.raises(ValueError, match=r"not for reduce$"):
        form.suited(Suite((1024,), ("reduce",)), {"tune": "rules", "collective": "reduce"})


@pytest.mark.parametrize(
    ("file", "settings", "said"),
    [
        ("rules", {"dtypes": ("fp32", "fp16")}, "dtypes must be one: .* not fp32, fp16"),
        ("rules", {"ops": ("sum", "max")}, "ops must be one: .* not sum, max"),
        ("rules", {"placements": ("in", "out")}, "placements must be one: .* not in, out"),
        ("nowhere/rules", {}, "there is no folder"),
    ],
)
def test_settings_that_rules_do_not_know_are_refused_before_the_run(file, settings, said, tmp_path):
    flags = {"tune": tmp_path / file} | ({"placement": "in,out"} if "placements" in settings else {})
    suite = OMPI_RULES.suited(Suite((1024,), **settings), flags)
    with pytest.raises(ArgumentError, match=said):
        run_world(lambda world: rules_before(flags["tune"], suite, world, of_auto=False), threads=2)


def test_a_file_of_another_library_may_be_replaced(tmp_path):
    (tmp_path / "rules").write_text("rule-file-version-2")
    suite = OMPI_RULES.suited(Suite((1024,)), {"tune": tmp_path / "rules"})
    assert run_world(lambda world: rules_before(tmp_path / "rules", suite, world, of_auto=False), threads=2) == ()


def test_threads_have_no_library_to_measure(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("rows.json").write_text("old")
    done = invoke("bench", "--threads", 2, "--format", "ompi-rules", "--tune", "rules", "--json", "rows.json")
    assert done.exit_code == 2
    assert "ompi:scatter_allgather_ring: needs MPI on one host" in done.stderr
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("rows.json", "old")]
