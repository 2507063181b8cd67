"""Iterations that dear-mpi compare measures, and what dear-mpi simulate predicts for them.

No figure of an iteration goes into its prediction. The network is fitted to rows of `bench` on the same links, and the
compute is profiled in jobs of as many ranks that have no such links between them. A command is repeated, a few times,
when other machines of the same host took too much of the processors meanwhile; what was quiet is not measured again.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from docs.benchmarks.attempts import quietest, run
from docs.benchmarks.provenance import Watch
from tests.launch import mpis_at_hand
from tests.rooms import ROOT

COMMAND = "make validation"
FORWARD_S = {"resnet50": 0.31, "densenet201": 0.24, "bert_base": 1.32}
ITERATIONS = {"resnet50": 12, "densenet201": 12, "bert_base": 6}
BENCH = "all_reduce,reduce_scatter,all_gather"
RANKS = {"hosts": (2, 3, 4), "emulated": (3, 4)}
# Of sharded updates alone: where all collectives take nearly as long as the layers, and an order that is planned for a
# faster link costs most.
SHARDED_LINK = "emulated:1500mbit"
LINKS = ("hosts:1gbit", "hosts:2gbit", "emulated:1gbit", "emulated:2gbit", SHARDED_LINK)
LATENCY = "50us"  # of the emulated link
# About the sizes of buckets. Small ones in a row, as in training: after a pause a link lets a burst through at once, of
# which they notice more.
SIZES = {"streaming": "2MiB,4MiB", "isolated": "8MiB,16MiB,32MiB"}
ALONE = "buckets:1"  # a bucket that is updated has no messages of another one beside it
LIMIT_S = 1200

Row = dict[str, Any]


@dataclass(frozen=True)
class Contest:
    """Schedules, where their buckets are cut, and further flags of ``compare`` and ``simulate``."""

    name: str
    schedules: str
    fusion: str
    flags: tuple[str, ...] = ()


USUAL = Contest("", "wfbp,sequential,dear", "25MB")
SHARDED = Contest("sharded", "dear,dear-eager", "own", ("--update", "sharded"))
PEERS = Contest("peers", "ddp,mg-wfbp,horovod,bytescheduler,zero,fsdp,dear-eager", "own")


@dataclass(frozen=True)
class Compared:
    """A schedule: the row of ``compare``, and that of ``simulate``."""

    contest: Contest
    kind: str
    rate: str
    measured: Row
    predicted: Row

    @property
    def off(self) -> float:
        """How far the prediction is above the measurement, as a share of it."""
        return self.predicted["iteration_s"] / self.measured["median_s"] - 1


class Link:
    """Ranks that have a link between them, emulated, real between hosts out of namespaces, or none at all."""

    def __init__(self, folder: Path, text: str, ranks: int, used: set[str]) -> None:
        self.text, (self.kind, _, self.rate) = text, text.partition(":")
        self.folder, self.ranks, self.used = folder, ranks, used  # the names of what was asked for
        mpi = mpis_at_hand()[0]
        settings = {"MPIRUN": " ".join(mpi.mpirun), "LIMIT": str(LIMIT_S)}
        self.environment = mpi.environment(ranks) | settings
        local = [*mpi.mpirun, "-n", str(ranks)]
        self.launcher = ["hostfiles/namespaces.sh", "run", str(ranks)] if self.kind == "hosts" else local
        self.flags = ["--link", f"{self.rate},{LATENCY}"] if self.kind == "emulated" else []

    @contextmanager
    def up(self) -> Iterator[None]:
        script = "hostfiles/namespaces.sh"
        if self.kind == "hosts":
            subprocess.run([script, "up", str(self.ranks), self.rate], cwd=ROOT, check=True)
        try:
            yield
        finally:
            if self.kind == "hosts":
                subprocess.run([script, "down", str(self.ranks)], cwd=ROOT, check=True)

    def run(self, command: str, *arguments: str, what: str = "", flag: str = "--json") -> Path:
        """Run a command of dear-mpi, unless a quiet run of it is there; return the file of its quietest run."""
        name = "-".join(part for part in (command, self.kind, self.rate, str(self.ranks), what) if part)
        given = [*self.launcher, sys.executable, "-m", "dear_mpi", command, *arguments, *self.flags, flag]
        self.used.add(name)
        watch = partial(Watch, COMMAND, hosts=self.kind == "hosts")
        return quietest(self.folder, name, watch, lambda file: run([*given, str(file)], self.environment, 2 * LIMIT_S))


def compute_of(name: str, fusion: str) -> list[str]:
    return ["--model", f"synthetic:{name}", "--forward-time", str(FORWARD_S[name]), "--fusion", fusion]


def profile_of(link: Link, name: str) -> Path:
    """The compute of a model, on as many ranks, without a link."""
    flags = [*compute_of(name, ALONE), "--schedule", "sequential", "--iterations", str(ITERATIONS[name])]
    alone = Link(link.folder, "none", link.ranks, link.used)
    return alone.run("train", *flags, what=name, flag="--profile")


def benchmarked(link: Link) -> Path:
    flags = ["--algorithms", "ring", "--collective", BENCH]
    parts = [
        link.run("bench", *flags, "--sizes", sizes, "--cadence", cadence, what=cadence)
        for cadence, sizes in SIZES.items()
    ]
    rows = link.folder / f"rows-{link.kind}-{link.rate}-{link.ranks}.json"
    rows.write_text(json.dumps({"rows": [row for part in parts for row in read(part)["rows"]]}), encoding="utf-8")
    return rows


def measured(link: Link, models: list[str], contest: Contest) -> tuple[Path, dict[str, Path]]:
    """The rows of the benchmark, and the iterations of each model."""
    runs = {}
    with link.up():
        rows = benchmarked(link)
        for name in models:
            flags = [*compute_of(name, contest.fusion), "--schedules", contest.schedules, *contest.flags]
            what = "-".join(part for part in (name, contest.name) if part)
            runs[name] = link.run("compare", *flags, "--iterations", str(ITERATIONS[name]), what=what)
    return rows, runs


def predicted(link: Link, rows: Path, name: str, contest: Contest) -> dict[str, Row]:
    """What simulate says about a model on this link, by schedule."""
    flags = ["--network", str(rows), "--profile", str(profile_of(link, name))]
    flags += ["--ranks", str(link.ranks), "--schedules", contest.schedules, "--fusion", contest.fusion]
    flags += contest.flags
    with tempfile.TemporaryDirectory(prefix="validation-") as folder:
        file = Path(folder) / "rows.json"
        command = [sys.executable, "-m", "dear_mpi", "simulate", *flags, "--json", str(file)]
        run(command, link.environment, LIMIT_S)
        return {row["schedule"]: row for row in read(file)}


def compared(link: Link, models: list[str], contest: Contest) -> list[Compared]:
    rows, runs = measured(link, models, contest)
    found = []
    for name, file in runs.items():
        by_schedule = predicted(link, rows, name, contest)
        found += [Compared(contest, link.kind, link.rate, row, by_schedule[row["schedule"]]) for row in read(file)]
    return found


def read(path: Path) -> list[Row]:
    return json.loads(path.read_text("utf-8"))
