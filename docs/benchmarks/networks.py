"""Races a synthesised all-reduce with the ring, while two hosts have a slow link, and writes its page.

python -m docs.benchmarks.networks [--keep FOLDER]
"""

import json
import sys

from msgspec import convert

from dear_mpi.bench.machine_file import Row
from dear_mpi.collectives import programs, verify
from dear_mpi.collectives.algorithms.registry import find_algorithm
from dear_mpi.collectives.program.cost import cost
from dear_mpi.collectives.program.hosts import format_rate
from dear_mpi.contrib.networks.graph import read_graph
from dear_mpi.contrib.networks.network import GraphNetwork
from dear_mpi.reporting.stats import median
from dear_mpi.reporting.terminal import interval
from dear_mpi.reporting.units import format_bytes, parse_sizes
from docs.benchmarks.attempts import first_mpi, page_of_one_run, run
from docs.benchmarks.provenance import BELOW

PAGE = "docs/benchmarks/networks.md"
HOSTS, RATE, SLOW = 4, "1gbit", "1 2 500mbit"
SIZES = "4MiB,16MiB,64MiB"
LIMIT_S = 1200
DEAR_MPI = [sys.executable, "-m", "dear_mpi"]
TRAINED = ["--model", "synthetic:resnet50", "--forward-time", "0.1", "--backward-time", "0.2", "--fusion", "25MB"]

HEAD = f"""- **Set-up**: {HOSTS} network namespaces of one machine as hosts, one rank on each, links of 1 Gbit/s; the
  first two hosts send each other half of that (`SLOW="{SLOW}"`). `links` measures the pairs, then `bench` the
  algorithms in turns.
- **Cells**: median ms of an all-reduce of fp32, or of an iteration, with the distance to the farther end of the 95 %
  interval.
- **gain**: over the ring, measured and predicted (`cost` on the measured links).
- **Training**: `dear` on `{" ".join(TRAINED)}`, whose layers sleep; `simulate --network graph:FILE` predicts it.
- **Limit**: a ring in another order avoids the slow link as well.
"""


def files_of(file):
    """The files of one attempt, next to that of the rows."""
    names = ("links", "ring", "synth", "predicted")
    return {name: file.with_name(f"{file.stem}-{name}.json") for name in names}


def algorithms_of(file):
    return {"ring": "ring", "synth": f"synth:{files_of(file)['links']}"}


def race(file):
    """Measure the links, then race on them; the hosts are new for each of both."""
    mpi = first_mpi()
    environment = mpi.environment(HOSTS) | {"MPIRUN": " ".join(mpi.mpirun), "LIMIT": str(LIMIT_S), "SLOW": SLOW}
    on_hosts = ["hostfiles/namespaces.sh", "with", str(HOSTS), RATE, *DEAR_MPI]
    files, algorithms = files_of(file), algorithms_of(file)
    run([*on_hosts, "links", "--size", "4MiB", "--json", str(files["links"])], environment, LIMIT_S)
    flags = ["--algorithms", ",".join(["native", *algorithms.values()]), "--sizes", SIZES, "--placement", "in"]
    run([*on_hosts, "bench", *flags, "--budget", "20s", "--json", str(file)], environment, LIMIT_S)
    for name, algorithm in algorithms.items():
        chosen = ["--schedule", "dear", "--iterations", "30", "--algorithm", algorithm, "--json", str(files[name])]
        run([*on_hosts, "train", *TRAINED, *chosen], environment, LIMIT_S)
    asked = [*TRAINED, "--schedules", "dear", "--ranks", str(HOSTS), "--network", f"graph:{files['links']}"]
    asked += ["--algorithm", ",".join(algorithms.values()), "--json", str(files["predicted"])]
    run([*DEAR_MPI, "simulate", *asked], environment, LIMIT_S)


def page(file):
    yield HEAD
    files, algorithms = files_of(file), algorithms_of(file)
    graph, rows = read_graph(files["links"]), convert(json.loads(file.read_text("utf-8"))["rows"], list[Row])
    found = {(row.algorithm.partition(":")[0], row.bytes): row for row in rows}
    written = [programs(name, "all_reduce", HOSTS) for name in algorithms.values()]
    for each in written:
        verify(each)
    yield "| size | native | ring | synth | gain | predicted |"
    yield "|---|---|---|---|---|---|"
    for nbytes in parse_sizes(SIZES):
        native, ring, synth = (found[name, nbytes] for name in ("native", *algorithms))
        times = [interval(row.p50_us, row.ci_low_us, row.ci_high_us, 1e-3, 1) for row in (native, ring, synth)]
        ring_s, synth_s = (cost(each, nbytes // 4, 4, GraphNetwork.of(graph)).time_s for each in written)
        gains = [f"{ring.p50_us / synth.p50_us:.2f}", f"{ring_s / synth_s:.2f}"]
        yield f"| {' | '.join([format_bytes(nbytes), *times, *gains])} |"
    samples = sorted({row.samples for row in found.values()})
    yield ""
    yield f"`native` is {native.backend}. Each cell has {samples[0]} to {samples[-1]} calls."
    yield from ("", "| training | measured, ms | predicted, ms |", "|---|---|---|")
    predicted = {row["algorithm"]: row["iteration_s"] for row in json.loads(files["predicted"].read_text("utf-8"))}
    for name, algorithm in algorithms.items():
        report = json.loads(files[name].read_text("utf-8"))
        measured = report["iteration_s"][report["uncounted"] :]
        middle = median(measured)
        cell = interval(middle.value, middle.low, middle.high, 1e3, 0)
        yield f"| {name}, {len(measured)} iterations | {cell} | {predicted[algorithm] * 1e3:.0f} |"
    yield ""
    yield f"All-gather: {find_algorithm(algorithms['synth'], 'all_gather').__doc__}"
    yield from (BELOW, "The measured links:", "")
    for (one, other), rate in sorted(graph.links.items()):
        yield f"- from host {one + 1} to host {other + 1}: {format_rate(rate)}"


if __name__ == "__main__":
    page_of_one_run("docs.benchmarks.networks", __doc__, PAGE, "An all-reduce made for a network", race, page)
