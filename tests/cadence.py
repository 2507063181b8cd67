"""Does `dear-mpi bench --cadence streaming` agree with OSU's loop? As a script, it writes docs/benchmarks/cadence.md.

python -m tests.cadence
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import textwrap
from functools import partial
from pathlib import Path

from tests.launch import ROOT, mpis_at_hand

PAGE = ROOT / "docs" / "benchmarks" / "cadence.md"
RANKS = (2, 4)
SIZES = [4, 1024, 16 << 10, 256 << 10, 4 << 20]
ROUNDS = 5  # of both programs in turns, of which the medians are shown
HEAD = f"""# Two cadences

`make bench-cadence`: MPI_Allreduce of {{library}}, fp32, sum, out of place. `OSU's loop` is that of `osu_allreduce`
7.4, written anew in `tests/osu_like.c`: each call is timed by itself, a barrier after it is not. `streaming` is
`dear-mpi bench --algorithms native --cadence streaming --placement out`, which does the same from Python: means over
calls and ranks, in brackets of the fastest and of the slowest rank. `isolated` is the default of `dear-mpi bench`: the
median over calls, from a barrier to the end on the slowest rank, so it contains how unevenly ranks leave the barrier.
us; medians over {ROUNDS} runs of each program, in turns.

| ranks | bytes | OSU's loop | streaming | streaming / OSU | isolated |
|---|---|---|---|---|---|
"""
AIM = (0.9, 1.1)
AIMED = "Aimed at was a ratio from {} to {}: {} of {} rows have one, and all lie between {:.2f} and {:.2f}."
MISSED = """ A call from Python costs 1 to 2 us more than one from C, which counts up to 1 KiB. Four ranks share two
cores here: who runs when, and not the loop, decides what a call takes. And the machine is shared with others."""


def remark(ratios):
    """What the rows say about the aim."""
    least, most = AIM
    near = sum(least <= ratio <= most for ratio in ratios)
    text = AIMED.format(least, most, near, len(ratios), min(ratios), max(ratios))
    return "\n" + textwrap.fill(text + MISSED * (near < len(ratios)), 120) + "\n"


def launch(mpi, ranks, *command):
    environment = mpi.environment(ranks) | {"NO_COLOR": "1"}
    job = [*mpi.mpirun, "-n", str(ranks), *command]
    return subprocess.run(job, env=environment, capture_output=True, text=True, timeout=300, check=True).stdout


def build(mpi, folder):
    """The loop, by the compiler wrapper beside the launcher."""
    program = Path(folder) / "osu_like"
    wrapper = Path(mpi.mpirun[0]).parent / "mpicc"
    subprocess.run([wrapper, "-O2", "-o", program, ROOT / "tests" / "osu_like.c"], check=True)
    return program


def osu(mpi, ranks, program):
    """{bytes: (mean, least, most)}"""
    lines = launch(mpi, ranks, program, *map(str, SIZES)).splitlines()
    return {int(line.split()[0]): tuple(map(float, line.split()[1:])) for line in lines}


def ours(mpi, ranks, folder, cadence):
    file = Path(folder) / "rows.json"
    sizes = ",".join(f"{size}B" for size in SIZES)
    flags = ["--algorithms", "native", "--placement", "out", "--sizes", sizes, "--seconds", "0.5", "--json", file]
    launch(mpi, ranks, sys.executable, "-m", "dear_mpi", "bench", "--cadence", cadence, *flags)
    rows = json.loads(file.read_text())
    mean = "mean_us" if cadence == "streaming" else "p50_us"
    return {row["bytes"]: (row[mean], row["rank_min_us"], row["rank_max_us"]) for row in rows}


def medians(rounds, size):
    return [statistics.median(values) for values in zip(*(found[size] for found in rounds), strict=True)]


def main():
    mpi = mpis_at_hand()[0]
    lines, ratios = [], []
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(ROOT)
        loop = build(mpi, folder)
        for ranks in RANKS:
            cadences = [partial(ours, mpi, ranks, folder, cadence) for cadence in ("streaming", "isolated")]
            programs = [partial(osu, mpi, ranks, loop), *cadences]
            rounds = [[program() for program in programs] for _ in range(ROUNDS)]
            for size in SIZES:
                theirs, stream, alone = (medians(found, size) for found in zip(*rounds, strict=True))
                cells = [f"{mean:.1f} ({least:.1f} to {most:.1f})" for mean, least, most in (theirs, stream)]
                ratios.append(round(stream[0] / theirs[0], 2))  # what is shown is what is judged
                lines.append(f"| {ranks} | {size} | {cells[0]} | {cells[1]} | {ratios[-1]:.2f} | {alone[0]:.1f} |")
                print(lines[-1], flush=True)
        library = launch(mpi, 1, sys.executable, "-c", "from mpi4py import MPI; print(*MPI.get_vendor())").strip()
    PAGE.write_text(HEAD.format(library=library) + "\n".join(lines) + "\n" + remark(ratios), encoding="utf-8")


if __name__ == "__main__":
    main()
