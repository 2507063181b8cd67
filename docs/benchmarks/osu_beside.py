"""OSU's benchmarks 7.4 beside ours, in turns: docs/benchmarks/osu.md.

    make bench-osu OSU=FOLDER

FOLDER is the `c/mpi` of OSU's benchmarks, built by `./configure CC=<this project>/.venv/bin/mpicc && make -C c`.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dear_mpi.collectives.transports.wait_policy import own_cores
from dear_mpi.reporting.stats import Median, median
from docs.benchmarks.provenance import BELOW, Watch, write_page
from tests.bench.readers import read_osu
from tests.launch import ROOT, Mpi, mpis_at_hand

PAGE = "docs/benchmarks/osu.md"
TITLE = "OSU's benchmarks and `dear-mpi bench`"
SIZES = [4**power for power in range(1, 13)]  # bytes: 4 B to 16 MiB
LARGE = 64 << 10  # from here on, what a call from Python adds is nothing
NEAR, MOST_OWN_US = 0.1, 1.0
RANKS = (2, 4)
LIMIT_S = 600
# Else the library gives its temporary memory back after some calls and not after others; and NumPy alone, not OSU, has
# huge pages.
MEMORY = {
    "GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=67108864:glibc.malloc.trim_threshold=268435456",
    "NUMPY_MADVISE_HUGEPAGE": "0",
}
# Else four ranks may be three on a core and one on another for some 100 ms, with 9 us in place of 6.
BOUND = ["--map-by", "core:OVERSUBSCRIBE", "--bind-to", "core:overload-allowed"]
HEAD = """Does `dear-mpi bench` measure the same times as OSU's benchmarks?

- **Set-up**: {rounds} turns of a job of each kind. Both call Open MPI as `make install` installs it, on {ranks} ranks
  of this machine, out of place, on fp32. Ranks are bound (`{bound}`). {memory} keep the library's memory and give both
  pages of 4 KiB.
- **OSU**: `osu_allreduce`, `osu_reduce_scatter_block`, `osu_allgather` and `osu_latency` of version 7.4, with `-T
  mpi_float -m 4:16777216`.
- **streaming**: `MPI4PY_RC_THREAD_LEVEL=serialized dear-mpi bench --algorithms {algorithm} --cadence streaming
  --placement out --iterations {iterations}`: the median of {iterations} means.
- **isolated**: the default cadence: the median of {alone} single calls on data that are filled in before each call.
- **Own cost**: below 64 KiB, streaming is compared without its loop's cost: a call of 4 B on a communicator of one
  rank, and one more call and a barrier for each other rank on the core.
- **near**: streaming is at most a tenth below OSU's time and, without its own cost, at most a tenth above. **even**:
  the interval of the ratio contains 1. **faster**: the library's call is the same, but not its memory.
- **Limits**: one machine, one MPI library. OSU starts MPI with MPI_THREAD_SINGLE, ours with MPI_THREAD_SERIALIZED.
"""
ITERATIONS, ALONE = 11, 51
ALGORITHM = "native"


@dataclass(frozen=True)
class Pairing:
    """A benchmark of OSU's and what it is called here."""

    program: str
    collective: str
    ranks: tuple[int, ...] = RANKS
    parts: bool = False  # whether OSU's sizes are of one rank's part


PAIRINGS = [
    Pairing("collective/blocking/osu_allreduce", "all_reduce"),
    Pairing("collective/blocking/osu_reduce_scatter_block", "reduce_scatter"),
    Pairing("collective/blocking/osu_allgather", "all_gather", parts=True),
    Pairing("pt2pt/standard/osu_latency", "ping_pong", ranks=(2,)),
]
WHOLE = ("all_reduce", "ping_pong")
Times = dict[int, float]


@dataclass(frozen=True)
class Beside:
    """Of a size: us in each turn, by OSU and ours, and what the loop adds."""

    osu: list[float]
    streaming: list[float]
    isolated: list[float]
    own: list[float]

    @property
    def ratio(self) -> Median:
        return median([ours / theirs for ours, theirs in zip(self.streaming, self.osu, strict=True)])

    @property
    def rest(self) -> Median:
        turns = zip(self.streaming, self.own, self.osu, strict=True)
        return median([(ours - own) / theirs for ours, own, theirs in turns])

    def near(self, nbytes: int) -> str:
        ratio, rest = self.ratio, self.rest if nbytes < LARGE else self.ratio
        if ratio.value >= 1 - NEAR and rest.value <= 1 + NEAR:
            return "yes"
        if rest.low <= 1 <= ratio.high:
            return "even"
        return "no" if rest.value > 1 else "faster"


def run(mpi: Mpi, ranks: int, *command: object, **variables: str) -> str:
    job = [*mpi.mpirun, *BOUND, "-n", str(ranks), *map(str, command)]
    environment = mpi.environment(ranks) | variables | MEMORY | {"NO_COLOR": "1"}
    return subprocess.run(job, env=environment, stdout=subprocess.PIPE, text=True, timeout=LIMIT_S, check=True).stdout


def osu(mpi: Mpi, ranks: int, pairing: Pairing, folder: Path) -> Times:
    most = SIZES[-1] // (ranks if pairing.parts else 1)
    (block,) = read_osu(run(mpi, ranks, folder / pairing.program, "-T", "mpi_float", "-m", f"4:{most}"))
    scale = ranks if pairing.parts else 1
    return {int(row["Size"]) * scale: float(row["Avg Latency(us)"]) for row in block.rows}


def ours(mpi: Mpi, ranks: int, pairing: Pairing, cadence: str, iterations: int) -> tuple[Times, float]:
    """Times, and the loop's own cost with the library's call in it, also of the other ranks on the core."""
    with tempfile.TemporaryDirectory() as folder:
        file, sizes = Path(folder) / "rows.json", ",".join(f"{size}B" for size in SIZES)
        flags = ["--collective", pairing.collective, "--algorithms", ALGORITHM, "--placement", "out", "--sizes", sizes]
        flags += ["--cadence", cadence, "--iterations", iterations, "--json", file]
        run(mpi, ranks, sys.executable, "-m", "dear_mpi", "bench", *flags, MPI4PY_RC_THREAD_LEVEL="serialized")
        report = json.loads(file.read_text("utf-8"))
    (call_us,), barrier_us = report["loop"]["self_us"].values(), report["loop"]["barrier_us"]
    others = math.ceil(ranks / len(own_cores())) - 1
    return {row["bytes"]: row["p50_us"] for row in report["rows"]}, call_us + others * (call_us + barrier_us)


def beside(mpi: Mpi, ranks: int, pairing: Pairing, folder: Path, rounds: int) -> dict[int, Beside]:
    theirs, stream, alone, own = list[Times](), list[Times](), list[Times](), list[float]()
    for _ in range(rounds):
        theirs.append(osu(mpi, ranks, pairing, folder))
        times, own_us = ours(mpi, ranks, pairing, "streaming", ITERATIONS)
        stream.append(times)
        own.append(own_us)
        alone.append(ours(mpi, ranks, pairing, "isolated", ALONE)[0])
    least = 4 if pairing.collective in WHOLE else 4 * ranks  # an element for each rank
    sizes = [size for size in SIZES if size >= least]
    found = {size: [[each[size] for each in kind] for kind in (theirs, stream, alone)] for size in sizes}
    return {size: Beside(*times, own) for size, times in found.items()}


def table(pairing: Pairing, ranks: int, found: dict[int, Beside]) -> Iterator[str]:
    yield f"## `{pairing.collective}` and `{Path(pairing.program).name}`, {ranks} ranks\n"
    yield f"The loop's own cost: {statistics.median(next(iter(found.values())).own):.2f} us.\n"
    yield "| bytes | OSU | streaming | ratio | less own cost | near | isolated |"
    yield "|---:|---:|---:|---:|---:|---|---:|"
    for size, each in found.items():
        times = [f"{statistics.median(us):.2f}" for us in (each.osu, each.streaming, each.isolated)]
        ratio, rest = (f"{one.value:.2f} ({one.low:.2f} to {one.high:.2f})" for one in (each.ratio, each.rest))
        rest = rest if size < LARGE else ""
        yield f"| {size} | {times[0]} | {times[1]} | {ratio} | {rest} | {each.near(size)} | {times[2]} |"
    yield ""


def summary(near: dict[bool, Counter[str]], own_us: float) -> str:
    """What the rows say, from 64 KiB on and below, and the loop's cost on 2 ranks."""
    said = {
        large: f"of {found.total()} rows {found['yes']} are near, {found['even']} even, {found['faster']} faster"
        for large, found in near.items()
    }
    text = f"From 64 KiB on, {said[True]}; below, {said[False]}.\nThe loop's own cost on 2 ranks"
    return f"{text}, at most {own_us:.2f} us, is {'within' if own_us <= MOST_OWN_US else 'above'} 1 us.\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("osu", type=Path, help="c/mpi of OSU's benchmarks, built")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    missing = [pairing.program for pairing in PAIRINGS if not (options.osu / pairing.program).exists()]
    if missing:
        raise SystemExit(f"{options.osu} has no {', '.join(missing)}: give c/mpi of OSU's benchmarks 7.4, built")
    os.chdir(ROOT)
    mpi, watch = mpis_at_hand()[0], Watch("make bench-osu OSU=FOLDER")
    lines, near, own = list[str](), dict[bool, Counter[str]]({True: Counter(), False: Counter()}), list[float]()
    for pairing in PAIRINGS:
        for ranks in pairing.ranks:
            found = beside(mpi, ranks, pairing, options.osu.resolve(), options.rounds)
            part = list(table(pairing, ranks, found))
            print(*part, sep="\n", flush=True)
            lines += part
            for size, each in found.items():
                near[size >= LARGE][each.near(size)] += 1
            if ranks == RANKS[0]:
                own.append(statistics.median(next(iter(found.values())).own))
    head = HEAD.format(
        ranks=" and on ".join(map(str, RANKS)), rounds=options.rounds, algorithm=ALGORITHM,
        memory=" and\n".join(f"`{name}={value}`" for name, value in MEMORY.items()), bound=" ".join(BOUND),
        iterations=ITERATIONS, alone=ALONE,
    )  # fmt: skip
    write_page(PAGE, TITLE, [watch.record()], [head, summary(near, max(own)), BELOW, *lines])


if __name__ == "__main__":
    main()
