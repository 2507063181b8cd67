"""How `dear-mpi bench` measures, and whether its streaming cadence agrees with OSU's loop. As a script, it writes
docs/benchmarks/how-bench-measures.md.

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
from tests.provenance import Watch, write_page

PAGE = "docs/benchmarks/how-bench-measures.md"
RANKS = (2, 4)
SIZES = [4, 1024, 16 << 10, 256 << 10, 4 << 20]
ROUNDS = 5  # of both programs in turns, of which the medians are shown
METHOD = """- `--cadence isolated`, the default: a sample is one call on its slowest rank, from a barrier to its end. So
  it contains how unevenly ranks leave the barrier. `--cadence streaming` measures as OSU's benchmarks do:
  each call is timed by itself, and the barrier between calls is not timed. A sample is then the mean over
  calls in a row and over ranks; `--format osu` has the means of the fastest and of the slowest rank. The table
  below has both.
- The table shows the median with its distribution-free 95 % interval; `--json` has the rest. GB/s are decimal. Sizes
  are binary, and mean the full buffer. busbw is algbw (bytes of the buffer over time) times the factor of nccl-tests.
- Backends of this job take turns call by call, in a random order, on the same arrays. Two backends have blocks of calls
  in between instead: gloo, because its threads would disturb the backend after it, and the other MPI library, because
  it needs its own job. The first call of a block does not count. A job sleeps while it waits for the other one.
- `auto`, `ring` and our other algorithms are plans, made once. `function` is a call such as
  `all_reduce(x, comm, algorithm="auto")`, which looks for its plan each time.
- The column `memory` says where a backend's buffers were. `shared` has prepared memory, which the ranks of a host
  share; `auto` has such memory at the sizes at which it works in the buffers. Training prepares its memory by the same
  function, `wants_shared` in `collectives/plans/reach.py`. A program that calls a function on its own array has private
  memory: the row `function` has its time. `--memory shared` or `private` forces one on our plans. MPI libraries and
  gloo have private memory.
- Data are whole numbers, new ones in each call, whose result is exact in every type. Each result is compared bit by
  bit; one wrong element makes the exit code 1.
- `native` is the blocking collective of the MPI that runs the job; `native-nonblocking` (MPI_Iallreduce and a wait) and
  `native-persistent` (MPI_Allreduce_init once; MPI-4) are variants of it. A name that ends in `-counts` calls
  MPI_Reduce_scatter or MPI_Allgatherv instead of MPI_Reduce_scatter_block or MPI_Allgather. With `-beside` the result
  goes into a second buffer; all others work in place. `native-best` runs all variants that a collective has: `--json`
  has each, and the table has the fastest at each size. Only the MPI call is timed: bringing the result to its place is
  not. Calls that the library lacks are named below the table.
- `mpich` and `openmpi` are the calls of the other library (also `mpich-best`, `mpich-persistent`, ...): the library of
  `make install`, or the library of the launcher in `--other-mpi 'mpirun.mpich -f hosts'` (`env NAME=value mpirun` sets
  variables, such as `MPI4PY_LIBMPI`). `gloo` is `torch.distributed` on the same ranks; `MASTER_ADDR` and
  `GLOO_SOCKET_IFNAME` say which address and network it takes.
- `/peer` is the time over the time of the peer (in `--json`: `peer`, `over_peer`): the fastest call of any MPI library
  in the run at the same size, whose row has 1.00. Below the table stand geometric means of `/peer` by classes of sizes.
  A size is left out for all of ours if one of our intervals or the peer's is wider than its median: so each column is
  about the same sizes.
- A star behind `/peer` says that the 95 % interval of the ratio (`over_peer_low`, `over_peer_high`) excludes 1. The
  scatter of 20 batches of turns tells it, each with its ratio of medians: so it is wider where the machine is slow for
  a while, and a short disturbance does no harm. The least of several medians is a little low by chance; so it is about
  all calls that may be the fastest. What differs from launch to launch it does not see.
- `auto (shared)` names what `auto` chose (in `--json`: `chosen`).
- `model` is what alpha, beta and gamma (seconds per message, per byte sent, per byte summed) predict, fitted to all
  rows of the run that sent messages; `shared` sends none.
- `--tune rules.json` writes the fastest of our algorithms by size and segment, for `--algorithm auto:rules.json`.
"""
HEAD = f"""## Two cadences

MPI_Allreduce, fp32, sum, out of place. `OSU's loop` is the loop of `osu_allreduce` 7.4, written anew in
`tests/osu_like.c`: each call is timed by itself, and the barrier after it is not timed. `streaming` is `dear-mpi bench
--algorithms native --cadence streaming --placement out`, which does the same from Python. Both have means over calls
and ranks, and in brackets the means of the fastest and of the slowest rank. `isolated` is the default of
`dear-mpi bench`. Times are us: medians over {ROUNDS} runs of each program, in turns.

| ranks | bytes | OSU's loop | streaming | streaming / OSU | isolated |
|---|---|---|---|---|---|
"""
AIM = (0.9, 1.1)
AIMED = "The aim was a ratio from {} to {}: {} of {} rows have one, and all lie between {:.2f} and {:.2f}."
MISSED = """ A call from Python costs more than one from C, which matters where calls are short. Where there are more
ranks than cores, the order in which they run decides what a call takes."""


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
    flags = ["--algorithms", "native", "--placement", "out", "--sizes", sizes, "--budget", "0.5s", "--json", file]
    launch(mpi, ranks, sys.executable, "-m", "dear_mpi", "bench", "--cadence", cadence, *flags)
    rows = json.loads(file.read_text())["rows"]
    mean = "mean_us" if cadence == "streaming" else "p50_us"
    return {row["bytes"]: (row[mean], row["rank_min_us"], row["rank_max_us"]) for row in rows}


def medians(rounds, size):
    return [statistics.median(values) for values in zip(*(found[size] for found in rounds), strict=True)]


def main():
    mpi, watch = mpis_at_hand()[0], Watch("make bench-cadence")
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
    table = HEAD + "\n".join(lines) + "\n" + remark(ratios)
    write_page(PAGE, "How `dear-mpi bench` measures", [watch.record()], [METHOD, table])


if __name__ == "__main__":
    main()
