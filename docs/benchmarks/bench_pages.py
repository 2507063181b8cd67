"""Makes the pages of `dear-mpi bench`, from the rows that it writes.

python -m docs.benchmarks.bench_pages collectives|hosts|gpu [--keep FOLDER]
"""

import argparse
import importlib.util
import json
import os
import shlex
import statistics
import sys
from functools import partial
from itertools import groupby
from pathlib import Path

from dear_mpi.bench.backends import BEST, LIBRARY, candidate
from dear_mpi.bench.machine_file import Row
from dear_mpi.bench.run import against_peers, shown
from dear_mpi.reporting.stats import median
from dear_mpi.reporting.terminal import interval
from dear_mpi.reporting.units import format_bytes, parse_sizes
from docs.benchmarks.attempts import Runs, kept, run
from docs.benchmarks.provenance import BELOW, Watch
from tests.launch import mpis_at_hand

LIMIT_S = 1200
DEAR_MPI = [sys.executable, "-m", "dear_mpi"]
GLOO = ["gloo"] * (importlib.util.find_spec("torch") is not None)

COLLECTIVES = """How do our collectives compare with those of MPI libraries and gloo on one machine?

- **Set-up**: all-reduce, reduce-scatter and all-gather of fp32 (sum, in place), 4 B to 64 MiB, on 2 and 4 ranks. [How
  bench measures](../bench.md#how-bench-measures) describes the method.
- **Peers**: the fastest call of each MPI library at each size, each library in its own job.
- **ring** sends messages between private arrays. **auto** is a plan in memory prepared for it; large messages use
  shared memory. **function** is `all_reduce(x, comm, algorithm="auto")` on a private array: each call looks up its
  plan.
- **Limits**: ranks share the processors, which exchange data at one of two rates for seconds: large calls of MPI may
  take three times as long, and ours twice. A size is left out of a mean if an interval, ours or the fastest MPI call's,
  is wider than its median.

A cell contains geometric means of our time over the fastest MPI call's, for sizes below 16 KiB / from 16 KiB to 2 MiB /
above 2 MiB. Below 1, ours is faster.
"""
CELLS = """A cell contains us: the median over calls, and the distance to the farther end of its 95 % interval. Brackets
contain our time over the fastest MPI call's, and the call or algorithm chosen.
"""
IN_A_ROW = """Cells contain our time over the fastest call of Open MPI for small calls in a row, on 2 ranks, and us
(`bench --cadence streaming`: the median of means over calls).
"""
SMALL = "4B,64B,1KiB,4KiB,16KiB"
OURS = ("ring", "auto", "function")

RANKS, RATE = 4, "1gbit"
HOST_SIZES = "1MiB,4MiB,16MiB,64MiB"
LINE_RATE = 125e6  # bytes/s
EFFICIENCY = 1448 / 1514  # bytes of data in a frame of TCP on a link with MTU 1500
HOSTS = f"""Do our rings use the rate of a slow link between hosts?

- **Set-up**: all-reduce of fp32 (sum, in place) between {RANKS} hosts made of network namespaces of one machine
  (`hostfiles/namespaces.sh`), with one rank on each. Links have 1 Gbit/s and MTU 1500; TCP is real.
- **Bound**: TCP carries 1448 bytes of data in each frame of 1514. So n bytes on P ranks take at least 2(P-1)/P n over
  0.956 of the line rate.
- **Cells**: ms from a barrier to the end on the slowest rank: the median of 11 calls or more, and the distance to the
  farther end of its 95 % interval. Brackets contain the bound over this time; it can exceed 1, because an idle link
  saves up 256 kB.
- **Peers**: gloo; `native-best`, the fastest of this MPI's calls; `plain TCP`, a stream of equally many bytes from each
  host to the next one.
- **Limits**: all ranks share the processors of one machine.
"""
WHY = """`60 KiB` and `256 KiB` are the ring's largest messages. Plans take 60 KiB between hosts: with its header, such
a message stays below Open MPI's limit for sending at once (64 KiB, `btl_tcp_eager_limit`). A larger one waits for the
receiver's answer.
"""
GPU = """Do kernels, rings and schedules work on a GPU, and what do they cost?

- **Set-up**: two or four ranks share one GPU. The commands are `doctor`, `bench-kernels`, `bench --segment 1MiB` on 2
  and 4 ranks, and `compare` of ResNet-50 with layers that sleep, all with `--device cuda`.
- **Peers**: one plain copy of the bucket, a copy per tensor, and explicit host copies around MPI's own call.
- **Limits**: one shared GPU does not show what several GPUs gain.
"""


CLASSES = {"below 16 KiB": (0, 2**14 - 1), "16 KiB to 2 MiB": (2**14, 2**21), "above 2 MiB": (2**21 + 1, 2**63)}
OUR_BEST = "our best"
NOISE, FAULTY, NO_SIZE, NOT_COMMON = "noise", "wrong", "no size", "no common size"


def against_mpi(rows):
    """Geometric means of times over peers' times, by size class and algorithm.

    There is a mean for each of our algorithms and for the best of them. Rows that are noisy or wrong, or have such
    peers, do not count. A class counts only cases that are known for every algorithm with a mean there. Without such a
    case, a word gives the reason.
    """
    silent = {(row.case, row.algorithm) for row in rows if row.median_us.is_noisy or row.wrong}
    ours = {}
    for row in rows:
        if candidate(row.algorithm).maker == "ours" and candidate(row.peer).is_library:
            for name in (row.algorithm, OUR_BEST):
                ours.setdefault(name, []).append(row)
    names = sorted(ours, key=lambda name: name == OUR_BEST)
    if len(names) == 2:  # a single algorithm is also the best
        names.remove(OUR_BEST)
    found = {name: [] for name in names}
    for low, high in CLASSES.values():
        inside = {name: [row for row in ours[name] if low <= row.bytes <= high] for name in names}
        ratios = {name: {} for name in names}  # the least in each case
        for name in names:
            for row in inside[name]:
                if not silent & {(row.case, row.algorithm), (row.case, row.peer)}:
                    ratios[name][row.case] = min(row.over_peer, ratios[name].get(row.case, row.over_peer))
        some = [set(mine) for mine in ratios.values() if mine]
        common = set.intersection(*some) if some else set()
        for name, mine in ratios.items():
            if mine and common:
                found[name].append(statistics.geometric_mean([mine[case] for case in common]))
            elif mine or not inside[name]:
                found[name].append(NOT_COMMON if mine else NO_SIZE)
            else:
                found[name].append(FAULTY if all(row.wrong for row in inside[name]) else NOISE)
    return found


def mean_text(mean):
    return mean if isinstance(mean, str) else f"{mean:.2f}"


def rows_of(file):
    return [Row(**row) for row in json.loads(file.read_text("utf-8"))["rows"]]


def time_of(row, unit_us=1.0):
    """The median and the distance to the farther end of its interval."""
    digits = 0 if row.p50_us / unit_us >= 100 else 1
    return interval(row.p50_us, row.ci_low_us, row.ci_high_us, 1 / unit_us, digits)


def column_of(row):
    """The name of a column; that of a library is the name of its best call."""
    return LIBRARY + BEST if candidate(row.algorithm).is_library else row.algorithm


def cell(row):
    if row is None:
        return ""
    chosen_by = f", {row.chosen}" if row.chosen != row.algorithm else ""
    call = f", {row.algorithm}" if candidate(row.algorithm).is_library else ""
    return f"{time_of(row)} ({row.over_peer:.2f}{chosen_by}{call})"


def lines_of(cells):
    """A table of Markdown; the first line is its head."""
    head, *rest = cells
    yield f"| {' | '.join(head)} |"
    yield "|---" * len(head) + "|"
    for line in rest:
        yield f"| {' | '.join(line)} |"


def by_size(found, names):
    """A line for each size, from the rows of each library's job."""
    lines = {}
    for library, rows in found.items():
        for row in shown(rows, names):
            column = library if candidate(row.algorithm).is_library else row.algorithm
            lines.setdefault(row.bytes, {})[column] = row
    columns = dict.fromkeys([*found, *(column for cells in lines.values() for column in cells)])
    yield ["", *(f"{column}, best" if column in found else column for column in columns)]
    for nbytes, cells in lines.items():
        yield [format_bytes(nbytes), *(cell(cells.get(column)) for column in columns)]


def means_of(rows):
    """Of calls of libraries, only the fastest of all jobs counts: others have the same names."""
    return against_mpi([row for row in rows if row.over_peer == 1 or not candidate(row.algorithm).is_library])


def means(rows):
    yield ["over the fastest MPI call", *CLASSES]
    for name, values in means_of(rows).items():
        yield [name, *map(mean_text, values)]


def summary(rows, ranks):
    """A line for each collective: the means of ours."""
    for collective in dict.fromkeys(row.collective for row in rows):
        found = means_of([row for row in rows if row.collective == collective])
        cells = [" / ".join(map(mean_text, found[name])) if name in found else "" for name in OURS]
        yield [f"{collective}, {ranks} ranks", *cells]


def over_the_fastest(found):
    """The same rows, by library; each over the fastest MPI call of all jobs."""
    rows = iter(against_peers([row for mine in found.values() for row in mine]))
    return {library: [next(rows) for _ in mine] for library, mine in found.items()}


def collectives(runs):
    """For each number of ranks a job of each MPI library; the first one also has our algorithms."""
    mpis, others = mpis_at_hand(), [*GLOO, *OURS]
    few, every = [["", *OURS]], []
    for ranks in (2, 4):
        found = {}
        for mpi in mpis:
            names = ",".join(["native-best", *(others if mpi is mpis[0] else ())])
            command = [*mpi.mpirun, "-n", str(ranks), *DEAR_MPI, "bench", "--algorithms", names, "--placement", "in"]
            command += ["--collective", "all_reduce,reduce_scatter,all_gather", "--sizes", "4B:64MiB", "--budget", "1s"]

            def measure(file, command=command, mpi=mpi, ranks=ranks):
                run([*command, "--json", str(file)], mpi.environment(ranks), LIMIT_S)

            title, name = f"{ranks} ranks, {mpi.name}", f"bench-{ranks}-{mpi.name.replace(' ', '')}"
            if taken := runs.take(title, name, partial(Watch, "make bench", mpis=2), measure):
                found[mpi.name] = rows_of(taken[0])
        if len(found) == len(mpis):
            found = over_the_fastest(found)
            few += summary([row for rows in found.values() for row in rows], ranks)
            every += of_ranks(found, ranks, ["native-best", *others])
    return [COLLECTIVES, *lines_of(few), "", *in_a_row(runs, mpis[0]), BELOW, CELLS, *every]


def in_a_row(runs, mpi):
    """The lines of small calls in a row."""
    command = [*mpi.mpirun, "-n", "2", *DEAR_MPI, "bench", "--cadence", "streaming", "--placement", "in"]
    command += ["--algorithms", "native-best,auto,function", "--sizes", SMALL, "--budget", "2s"]
    command += ["--collective", "all_reduce,reduce_scatter,all_gather"]

    def measure(file):
        run([*command, "--json", str(file)], mpi.environment(2), LIMIT_S)

    taken = runs.take("in a row", "bench-streaming", partial(Watch, "make bench", mpis=2), measure)
    cells = {}
    for row in rows_of(taken[0]) if taken else ():
        if not candidate(row.algorithm).is_library:
            cells.setdefault(f"{row.collective}, {row.algorithm}", []).append(f"{row.over_peer:.2f} ({row.p50_us:.1f})")
    head = ["in a row", *map(format_bytes, parse_sizes(SMALL))]
    return [IN_A_ROW, *lines_of([head, *([name, *each] for name, each in cells.items())])]


def of_ranks(found, ranks, names):
    for collective in dict.fromkeys(row.collective for rows in found.values() for row in rows):
        mine = {name: [row for row in rows if row.collective == collective] for name, rows in found.items()}
        yield f"## {collective}, {ranks} ranks\n"
        rows = [row for each in mine.values() for row in each]
        yield from (*lines_of(means(rows)), "", *lines_of(by_size(mine, names)), "")


def hosts(runs):
    """One job for the collectives, and one for plain TCP."""
    mpi, names = mpis_at_hand()[0], ["native-best", *GLOO, "ring"]
    environment = mpi.environment(RANKS) | {"MPIRUN": " ".join(mpi.mpirun), "LIMIT": str(LIMIT_S)}
    on_hosts = ["hostfiles/namespaces.sh", "with", str(RANKS), RATE]
    sizes = parse_sizes(HOST_SIZES)
    sent = [2 * (RANKS - 1) * nbytes // RANKS for nbytes in sizes]
    flags = ["--algorithms", ",".join(names), "--placement", "in", "--segment", "60KiB,256KiB", "--sizes", HOST_SIZES]

    def measure(file):
        plain = file.with_suffix(".tcp")
        stream = [sys.executable, "-m", "docs.benchmarks.plain_tcp", *map(str, sent), "--json", str(plain)]
        run([*on_hosts, *stream], environment, LIMIT_S)
        run([*on_hosts, *DEAR_MPI, "bench", *flags, "--json", str(file)], environment, LIMIT_S)

    found = runs.take("all", "bench-hosts", partial(Watch, "make bench-hosts", hosts=True), measure)
    return hosts_page(found[0], names, sizes, sent) if found else []


def hosts_page(file, names, sizes, sent):
    """The lines of the page: what is shown of the rows, beside plain TCP, whose streams were of ``sent`` bytes."""
    plain = json.loads(file.with_suffix(".tcp").read_text("utf-8"))
    bounds_ms = [1e3 * nbytes / (LINE_RATE * EFFICIENCY) for nbytes in sent]
    table = [["ms", *map(format_bytes, sizes)], ["the bound", *(f"{each:.1f}" for each in bounds_ms)]]
    streams = [median([1e3 * each for each in plain[str(nbytes)]]) for nbytes in sent]
    table.append(
        ["plain TCP", *(f"{m.value:.1f} ({b / m.value:.2f})" for m, b in zip(streams, bounds_ms, strict=True))]
    )
    rows = shown(rows_of(file), names)
    for (name, segment), group in groupby(sorted(rows, key=label), label):
        cut = f", {format_bytes(segment)}" if segment else ""
        cells = []
        for row, bound in zip(sorted(group, key=lambda row: row.bytes), bounds_ms, strict=True):
            call = f", {row.algorithm}" if candidate(row.algorithm).is_library else ""
            cells.append(f"{time_of(row, 1e3)} ({bound * 1e3 / row.p50_us:.2f}{call})")
        table.append([f"{name}{cut}", *cells])
    return [HOSTS, *lines_of(table), "", WHY]


def label(row):
    """What a row of the table has in common: the maker, and the segment of ours."""
    return column_of(row), row.segment_bytes if candidate(row.algorithm).maker == "ours" else 0


def gpu(runs):
    mpi = mpis_at_hand()[0]
    starter = shlex.split(os.environ.get("MPIRUN_GPU", " ".join(mpi.mpirun)))
    compare = "compare --model synthetic:resnet50 --forward-time 0.01 --schedules wfbp,sequential,dear --fusion 25MB"
    torch = "-m docs.benchmarks.ddp.real --models resnet50 gpt --turns 5"
    commands = [("doctor", 2), ("bench-kernels", 1), ("bench --segment 1MiB", 2), ("bench --segment 1MiB", 4)]
    commands = [("-m dear_mpi " + command, ranks) for command, ranks in commands]
    commands += [(f"-m dear_mpi {compare} --iterations 30 --segment 1MiB", 2), *((torch, ranks) for ranks in (1, 2, 4))]

    def measure(file):
        lines = [GPU, BELOW]
        for command, ranks in commands:
            given = [*shlex.split(command), "--device", "cuda"]
            environment = mpi.environment(ranks) | {"COLUMNS": "120"}
            said = run([*starter, "-n", str(ranks), sys.executable, *given], environment, LIMIT_S)
            lines += [f"`python {' '.join(given)}`, {ranks} ranks:\n", "```", said.strip("\n"), "```\n"]
        file.write_text(json.dumps(lines), encoding="utf-8")

    found = runs.take("all", "bench-gpu", partial(Watch, "make bench-gpu"), measure)
    return json.loads(found[0].read_text("utf-8")) if found else []


PAGES = {
    "collectives": ("Collectives on one machine", collectives),
    "hosts": ("All-reduce between hosts", hosts),
    "gpu": ("On a GPU", gpu),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", choices=PAGES)
    parser.add_argument("--keep", type=Path, help="a folder for what is measured")
    options = parser.parse_args()
    title, made = PAGES[options.page]
    with kept(options.keep) as folder:
        runs = Runs(folder)
        lines = list(made(runs))
    runs.write(f"docs/benchmarks/{options.page}.md", title, lines)


if __name__ == "__main__":
    main()
