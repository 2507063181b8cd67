"""Makes the pages of `dear-mpi bench`, from the rows that it writes.

python -m tests.bench_pages collectives|hosts|gpu [--keep FOLDER]
"""

import argparse
import importlib.util
import json
import os
import shlex
import sys
from functools import partial
from itertools import groupby
from pathlib import Path

from dear_mpi.bench.backends import BEST, LIBRARY, candidate
from dear_mpi.bench.machine_file import Row
from dear_mpi.bench.peers import CLASSES, against_mpi, against_peers, mean_text, shown
from dear_mpi.reporting.stats import median
from dear_mpi.reporting.terminal import interval
from dear_mpi.reporting.units import format_bytes, parse_sizes
from tests.attempts import Runs, kept, run
from tests.launch import mpis_at_hand
from tests.provenance import Watch

LIMIT_S = 1200
DEAR_MPI = [sys.executable, "-m", "dear_mpi"]
GLOO = ["gloo"] * (importlib.util.find_spec("torch") is not None)

COLLECTIVES = """All-reduce, reduce-scatter and all-gather of fp32 (sum, in place) on 2 and on 4 ranks of one machine.
[Benchmark collectives](../bench.md#how-bench-measures) says how `dear-mpi bench` measures.

- Each MPI library has its own job of `dear-mpi bench`, and `bench-diff` compares two such files. The tables have the
  fastest call of each at each size (`native-best`; `--json` has all). All other columns are of the first job.
- `ring` sends messages, in private arrays. `auto` is a plan that was made once, in memory that is prepared for it;
  above 4 KiB the ranks share that memory. `function` is `all_reduce(x, comm, algorithm="auto")` and its like on a
  private array, as in a program that prepares nothing: each call looks for its plan.
- A cell has us: the median over calls, and the distance to the farther end of its 95 % interval. In brackets stand the
  ratio to the time of the fastest MPI call at that size, and the call or algorithm that `-best` or `auto` chose.
- A table of means has geometric means of these ratios, by classes of sizes. A size is left out of its class, for all
  rows alike, if one of our intervals or the interval of the fastest MPI call is wider than its median.
"""

RANKS, RATE = 4, "1gbit"
HOST_SIZES = "1MiB,4MiB,16MiB,64MiB"
LINE_RATE = 125e6  # bytes/s
EFFICIENCY = 1448 / 1514  # bytes of data in a frame of TCP on a link with MTU 1500
HOSTS = f"""All-reduce of fp32 (sum, in place) between {RANKS} hosts made of network namespaces of one machine
(`hostfiles/namespaces.sh`), one rank on each, links of 1 Gbit/s, MTU 1500, real TCP. All ranks share the processors.

TCP carries 1448 bytes of data in each frame of 1514, so n bytes on P ranks take at least 2(P-1)/P n over 0.956 of the
line rate: the first row. A cell has ms: the median of 11 calls or more, each from a barrier to its end on its slowest
rank, and the distance to the farther end of the 95 % interval. In brackets stands the bound over this time. It can be
above 1, because an idle link saves up 256 kB. `plain TCP` is a stream of as many bytes from each host to the next one
over sockets, measured before the others. `native-best` is the fastest of the calls that this MPI has for an all-reduce.
"""
WHY = """`60 KiB` and `256 KiB` are the largest messages of the ring. Plans take 60 KiB between hosts, because Open MPI
sends a message over TCP at once if, with its header, it has at most 64 KiB (`btl_tcp_eager_limit`); a larger one is
announced first, and most of it waits for an answer of the receiving process.
"""
GPU = """This page has the doctor's report, kernels beside plain copies, rings on device memory beside explicit host
copies, and the schedules on the device while the compute sleeps.
"""


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


def means(rows):
    """Of calls of libraries, only the fastest of all jobs counts: others have the same names."""
    yield ["over the fastest MPI call", *CLASSES]
    fastest = [row for row in rows if row.over_peer == 1 or not candidate(row.algorithm).is_library]
    for name, values in against_mpi(fastest).items():
        yield [name, *map(mean_text, values)]


def over_the_fastest(found):
    """The same rows, by library; each over the fastest MPI call of all jobs."""
    rows = iter(against_peers([row for mine in found.values() for row in mine]))
    return {library: [next(rows) for _ in mine] for library, mine in found.items()}


def collectives(runs):
    """For each number of ranks a job of each MPI library; the first one also has our algorithms."""
    mpis, others = mpis_at_hand(), [*GLOO, "ring", "auto", "function"]
    yield COLLECTIVES
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
            yield from of_ranks(over_the_fastest(found), ranks, ["native-best", *others])


def of_ranks(found, ranks, names):
    """The tables of each collective."""
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
        stream = [sys.executable, "-m", "tests.plain_tcp", *map(str, sent), "--json", str(plain)]
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
    """What the commands print. MPIRUN_GPU starts the ranks."""
    mpi = mpis_at_hand()[0]
    starter = shlex.split(os.environ.get("MPIRUN_GPU", " ".join(mpi.mpirun)))
    compare = "compare --model synthetic:resnet50 --forward-time 0.01 --schedules wfbp,sequential,dear --fusion 25MB"
    commands = [("doctor", 2), ("bench-kernels", 1), ("bench --segment 1MiB", 2), ("bench --segment 1MiB", 4)]
    commands.append((f"{compare} --iterations 30 --segment 1MiB", 2))

    def measure(file):
        lines = [GPU]
        for command, ranks in commands:
            given = [*shlex.split(command), "--device", "cuda"]
            environment = mpi.environment(ranks) | {"COLUMNS": "120"}
            said = run([*starter, "-n", str(ranks), *DEAR_MPI, *given], environment, LIMIT_S)
            lines += [f"`dear-mpi {' '.join(given)}`, {ranks} ranks:\n", "```", said.strip("\n"), "```\n"]
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
