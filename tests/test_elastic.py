"""``train --elastic``: jobs outlive ranks that are killed or raise, as threads and under mpirun.

`make faults` starts 203 jobs under mpirun, in which processes die.
"""

import json
import os
import random
import re
import subprocess
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from dear_mpi.ranks.world import run_world
from dear_mpi.training.runs.config import Config
from dear_mpi.training.runs.train import Saving, train
from tests.launch import mpis_at_hand
from tests.training_checks import EVERY

MODEL = f"{Path(__file__).with_name('mortal.py')}:build"
LIMIT_S = 240  # far beyond what a job takes on a busy machine
USUAL = {"model": MODEL, "iterations": 30, "batch": 32, "fusion": "cut:1KB"}
OPEN_MPI = [mpi for mpi in mpis_at_hand() if mpi.name == "Open MPI"]
WITHOUT = [mpi for mpi in mpis_at_hand() if mpi.name == "MPICH"]
needs_ulfm = pytest.mark.skipif(not (OPEN_MPI and EVERY), reason="make faults, with Open MPI's wheel")


def words(choices):
    pairs = [[f"--{name}"] if value is True else [f"--{name}", str(value)] for name, value in choices.items()]
    return [word for pair in pairs for word in pair]


def job(start, choices, deaths, file, environment=os.environ):
    """Run a job; return its exit code, what it said, and its report."""
    command = [*start, "-m", "dear_mpi", "train", "--elastic", "--json", str(file), *words(USUAL | choices)]
    given = {**environment, "DEATHS": ",".join(f"{rank}:{number}:{how}" for rank, (number, how) in deaths.items())}
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=given, check=False)
    said = done.stdout + done.stderr
    return done.returncode, said, json.loads(file.read_text()) if file.exists() else {}


def mpirun(ranks, *flags):
    mpi = OPEN_MPI[0]
    return [*mpi.mpirun, "--with-ft", "ulfm", *flags, "-n", str(ranks), sys.executable], mpi.environment(ranks)


@cache
def undisturbed(**choices):
    return run_world(lambda world: train(Config.of(USUAL | choices), world), threads=2)["params_sha256"]


def replayed(members, file, **choices):
    """Train with each of the logged groups of ranks in turn, by checkpoints."""
    borders = [*(each["iteration"] for each in members), USUAL["iterations"]]
    for (begin, end), each in zip(pairwise(borders), members, strict=True):
        config = Config.of(USUAL | choices | {"iterations": end})
        saving = Saving(file, resume=begin > 0)
        found = run_world(lambda world: train(config, world, saving=saving), threads=len(each["ranks"]))  # noqa: B023
    return found["params_sha256"]


def check(found, deaths, ranks, tmp_path, **choices):
    """Check a report, and that the job named each dead rank in one line."""
    code, said, report = found
    assert code == 0, said[-2000:]
    members = report["members"]
    assert sorted({*range(ranks)} - {*members[-1]["ranks"]}) == sorted(deaths), said
    assert sorted(rank for each in members for rank in each["lost"]) == sorted(deaths)
    lines = re.findall(r"note: ranks? ([\d, ]+) died in iteration \d+, at [-\d: ]+: ranks? .* from iteration", said)
    assert sorted(int(rank) for line in lines for rank in line.split(", ")) == sorted(deaths), said
    assert len(report["loss"]) == len(report["iteration_s"]) == USUAL["iterations"]
    if "invariant" in choices:
        assert report["params_sha256"] == undisturbed(**choices)
    else:
        assert report["params_sha256"] == replayed(members, tmp_path / "replay.npz", **choices)


LOST = "died at once, and both copies of a shard of the optimizer state with them"
SHARDED = {"update": "sharded", "optimizer": "adamw"}


@pytest.mark.parametrize(
    "choices", [{"invariant": 8}, {"schedule": "wfbp", "clip": 0.5}, {"invariant": 8, **SHARDED}], ids=str
)
@pytest.mark.parametrize("deaths", [{0: 20}, {1: 9, 3: 15}, {1: 5, 3: 5}], ids=str)
def test_threads_that_raise(choices, deaths, tmp_path):
    plan = {rank: (number, "raise:0") for rank, number in deaths.items()}
    found = job([sys.executable], choices | {"threads": 4}, plan, tmp_path / "run.json")
    check(found, plan, 4, tmp_path, **choices)


def planned(seed):
    """Ranks, flags of mpirun, options of train, and deaths: one rank, two in turn, or two at once."""
    rng = random.Random(seed)
    ranks, tcp = rng.randint(3, 5), rng.choice(((), ("--mca", "btl", "self,tcp")))
    choices = rng.choice(({"invariant": 8}, {"invariant": 16, "schedule": "dear-eager"}, {"schedule": "wfbp"}, {}))
    dead, most = rng.sample(range(ranks), rng.choice((1, 1, 2))), USUAL["iterations"] - 3
    first = rng.randint(2, most)  # the first pass is a trial, before training
    numbers = [first, first if rng.random() < 0.5 else rng.randint(2, most)]
    kinds = [rng.choice(("kill", "kill", "raise")) for _ in dead]
    how = [f"{kind}:{rng.random() * 0.01:.4f}" for kind in kinds]
    choices = choices | SHARDED if seed % 3 == 2 else choices
    return ranks, tcp, choices, dict(zip(dead, zip(numbers, how, strict=False), strict=False))


@needs_ulfm
@pytest.mark.parametrize("seed", range(200))
def test_processes_that_die(seed, tmp_path):
    """If two neighbours die at once, sharded updates end with an error."""
    ranks, flags, choices, deaths = planned(seed)
    start, environment = mpirun(ranks, *flags)
    found = job(start, choices, deaths, tmp_path / "run.json", environment)
    one, other = min(deaths), max(deaths)
    if "update" in choices and other - one in (1, ranks - 1) and LOST in found[1]:
        assert found[0] == 2
        assert found[1].count(f"error: ranks {one}, {other} {LOST}") == 1, found[1]
    else:
        check(found, deaths, ranks, tmp_path, **choices)


@needs_ulfm
@pytest.mark.parametrize("deaths", [{0: 9}, {1: 9, 3: 9}], ids=str)
def test_stopped_processes_end_after_a_stall(deaths, tmp_path):
    plan, choices = {rank: (number, "stop:0.001") for rank, number in deaths.items()}, {"invariant": 8, **SHARDED}
    start, environment = mpirun(4)
    flags = {"stall-after": "3s", "stall-abort": True}
    found = job(start, choices | flags, plan, tmp_path / "run.json", environment)
    for rank in deaths:
        assert re.search(rf"stall: rank \d ends rank {rank} \(process \d+\), which is stopped", found[1]), found[1]
    check(found, deaths, 4, tmp_path, **choices)


@needs_ulfm
def test_a_death_and_checkpoints(tmp_path):
    """The rank that writes them dies; the last one is of the end."""
    file, deaths = tmp_path / "run.npz", {0: (20, "kill:0.001")}
    start, environment = mpirun(3)
    choices = {"invariant": 8, "save": file, "every": 2}
    found = job(start, choices, deaths, tmp_path / "run.json", environment)
    check(found, deaths, 3, tmp_path, invariant=8)
    config = Config.of(USUAL | {"invariant": 8, "iterations": USUAL["iterations"] + 2})
    resumed = run_world(lambda world: train(config, world, saving=Saving(file, resume=True)), threads=1)
    assert resumed["params_sha256"] == undisturbed(invariant=8, iterations=USUAL["iterations"] + 2)


@pytest.mark.parametrize("mpi", [*OPEN_MPI, *WITHOUT], ids=lambda mpi: mpi.name)
def test_an_mpi_that_ends_with_a_rank_is_refused(mpi, tmp_path):
    start = [*mpi.mpirun, "-n", "2", sys.executable]
    code, said, _ = job(start, {}, {}, tmp_path / "run.json", mpi.environment(2))
    assert code != 0
    assert said.count("error: elastic needs an MPI that outlives ranks (ULFM), and") == 1, said


@pytest.mark.parametrize(("choices", "what"), [
    ({"wire": "int8"}, "error: --elastic must be left out: "),
    ({"link": "1gbit,50us"}, "error: --link must be left out with elastic"),
    ({"timeline": "x.json"}, "error: --timeline does not apply with --elastic"),
], ids=str)  # fmt: skip
def test_choices_that_are_refused(choices, what, tmp_path):
    code, said, _ = job([sys.executable], choices | {"threads": 2}, {}, tmp_path / "run.json")
    assert code == 2
    assert what in said
