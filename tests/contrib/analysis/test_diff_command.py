"""bench-diff: what it prints and writes, how it ends, and what it refuses."""

import json
from dataclasses import asdict

import numpy as np
import pytest

from tests.bench.runs import run_of
from tests.cli_checks import assert_one_line, invoke, succeed

SIZES = (4, 1024, 1 << 20)


@pytest.fixture(autouse=True)
def _wide(here, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")


def save(name, made=None, **head):
    made = made or run_of(np.random.default_rng(3), sizes=SIZES)
    with open(name, "w", encoding="utf-8") as file:
        json.dump({**head, "rows": [asdict(row) for row in made.rows]}, file)
    return name


def scaled(factor, seed=4):
    return run_of(np.random.default_rng(seed), sizes=SIZES, slow=factor)


def test_a_baseline_that_was_a_fifth_faster_ends_with_exit_code_1():
    before, after = save("before.json", host="a", date="1"), save("after.json", scaled(1.25), host="b", date="2")
    done = invoke("bench-diff", before, after, "--json", "diff.json")
    assert done.exit_code == 1, done.output
    assert "A: before.json\nB: after.json" in done.stdout
    assert [line.split() for line in done.stdout.splitlines() if "host" in line] == [
        ["│", "host", "│", "a", "│", "b", "│"]
    ]
    assert "slower: B takes over 5% longer than A" in done.stdout
    assert "note: a single run of each side" in done.stdout
    with open("diff.json", encoding="utf-8") as file:
        report = json.load(file)
    assert report["slower"] > 0
    assert report["differs"]["host"] == {"a": "a", "b": "b"}
    assert {"ratio", "ci_low", "ci_high", "p_slower", "verdict", "bytes", "algorithm"} <= set(report["points"][0])
    assert invoke("bench-diff", after, before).exit_code == 0, "now it is faster"
    succeed("bench-diff", before, after, "--at-least", "50%")
    same = invoke("bench-diff", before, before)
    assert same.exit_code == 3, "so few samples tell nothing"
    assert "Smallest detectable slow-down where it cannot tell: " in same.stdout


def test_several_launches_are_given_with_commas():
    sides = [
        ",".join(save(f"{side}{seed}.json", scaled(slow, seed)) for seed in seeds)
        for side, slow, seeds in (("a", 1.0, (3, 4, 5, 6)), ("b", 1.4, (7, 8, 9, 10)))
    ]
    done = invoke("bench-diff", *sides)
    assert done.exit_code == 1, done.output
    assert "geometric means of the medians of launches" in done.stdout
    assert "single run" not in done.stdout


@pytest.mark.parametrize(("arguments", "said"), [
    (("a.json", "none.json"), "run 'none.json' is no readable JSON file: No such file"),
    (("a.json", "links.json"), "run 'links.json' must be a file of dear-mpi bench --json"),
    (("a.json", "rows.json"), "run 'rows.json' must be a file of dear-mpi bench --json: it must be an object"),
    (("a.json", "twice.json"), "it has 2 rows of one point (all_reduce, 4, cpu, fp32, sum,"),
    (("a.json,a.json", "b.json"), "A must be different ones, not a.json, a.json"),
    (("a.json,", "b.json"), "A takes one or several with commas"),
    (("a.json", "b.json", "--at-least", "a lot"), "--at-least 'a lot' cannot be read: write it like 5%"),
    (("a.json", "b.json", "--at-least", "2000%"), "--at-least must be from 0% to 1000%, not 2000%"),
    (("a.json", "b.json", "--json", "b.json"), "--json 'b.json' would write over the file of B"),
])  # fmt: skip
def test_what_cannot_be_compared_is_one_line(arguments, said):
    for name in ("a.json", "b.json"):
        save(name, run_of(sizes=SIZES))
    save("twice.json", run_of(sizes=(4, 4)))
    for name, content in (("links.json", {"links": []}), ("rows.json", [1])):
        with open(name, "w", encoding="utf-8") as file:
            json.dump(content, file)
    assert_one_line(invoke("bench-diff", *arguments), said)
