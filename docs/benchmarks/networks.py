"""Races a synthesised all-reduce with the ring, while two hosts have a slow link, and writes its page.

python -m docs.benchmarks.networks [--keep FOLDER]
"""

import argparse
import json
import statistics
import sys
from functools import partial
from pathlib import Path

from msgspec import convert

from dear_mpi.bench.machine_file import Row
from dear_mpi.collectives import programs, verify
from dear_mpi.collectives.algorithms.registry import find_algorithm
from dear_mpi.collectives.program.cost import cost
from dear_mpi.collectives.program.hosts import format_rate
from dear_mpi.contrib.networks.graph import read_graph
from dear_mpi.contrib.networks.network import GraphNetwork
from dear_mpi.reporting.terminal import interval
from dear_mpi.reporting.units import format_bytes, parse_sizes
from docs.benchmarks.attempts import Runs, kept, run
from docs.benchmarks.provenance import BELOW, Watch
from tests.launch import mpis_at_hand

PAGE = "docs/benchmarks/networks.md"
HOSTS, RATE, SLOW = 4, "1gbit", "1 2 500mbit"
SIZES = "4MiB,16MiB,64MiB"
LIMIT_S = 1200
DEAR_MPI = [sys.executable, "-m", "dear_mpi"]
TRAINED = ["--model", "synthetic:resnet50", "--forward-time", "0.1", "--backward-time", "0.2", "--fusion", "25MB"]
ALGORITHMS = ("ring", "synth")

HEAD = f"""- **Set-up**: {HOSTS} network namespaces of one machine as hosts, one rank on each, links of 1 Gbit/s; the
  first two hosts send each other half of that (`SLOW="{SLOW}"`). `links` measures the pairs, and `bench` runs
  `synth:FILE` in turns with the ring and the library's.
- **Cells**: ms of an all-reduce of fp32, with the distance to the farther end of the 95 % interval.
- **gain**: over the ring, measured and predicted (`cost` on the measured links).
- **Training**: `dear` on `{" ".join(TRAINED)}`, whose layers sleep; `simulate --network graph:FILE` predicts it.
- **Limit**: a ring in another order avoids the slow link as well.
"""


def race(mpi, file):
    """Measure the links, then race on them; the hosts are new for each of both."""
    environment = mpi.environment(HOSTS) | {"MPIRUN": " ".join(mpi.mpirun), "LIMIT": str(LIMIT_S), "SLOW": SLOW}
    on_hosts = ["hostfiles/namespaces.sh", "with", str(HOSTS), RATE, *DEAR_MPI]
    links = links_of(file)
    run([*on_hosts, "links", "--size", "4MiB", "--json", str(links)], environment, LIMIT_S)
    names = f"native,ring,synth:{links}"
    flags = ["--algorithms", names, "--sizes", SIZES, "--placement", "in", "--budget", "20s"]
    run([*on_hosts, "bench", *flags, "--json", str(file)], environment, LIMIT_S)
    for name in ALGORITHMS:
        chosen = ["--algorithm", algorithm_of(name, links), "--json", str(trained(file, name))]
        run([*on_hosts, "train", *TRAINED, "--schedule", "dear", "--iterations", "30", *chosen], environment, LIMIT_S)
    asked = [*TRAINED, "--schedules", "dear", "--ranks", str(HOSTS), "--network", f"graph:{links}"]
    asked += ["--algorithm", ",".join(algorithm_of(name, links) for name in ALGORITHMS)]
    run([*DEAR_MPI, "simulate", *asked, "--json", str(trained(file, "predicted"))], environment, LIMIT_S)


def algorithm_of(name, links):
    return f"synth:{links}" if name == "synth" else name


def trained(file, name):
    return file.with_name(f"{file.stem}-{name}.json")


def links_of(file):
    return file.with_name(f"{file.stem}-links.json")


def page(file):
    links = links_of(file)
    algorithm, graph = f"synth:{links}", read_graph(links)
    found = {(row.algorithm.partition(":")[0], row.bytes): row for row in read_rows(file)}
    written = [programs(name, "all_reduce", HOSTS) for name in ("ring", algorithm)]
    for each in written:
        verify(each)
    yield "| size | native | ring | synth | gain | predicted |"
    yield "|---|---|---|---|---|---|"
    for nbytes in parse_sizes(SIZES):
        ring_s, synth_s = (cost(each, nbytes // 4, 4, GraphNetwork.of(graph)).time_s for each in written)
        rows = [found[name, nbytes] for name in ("native", "ring", "synth")]
        cells = [format_bytes(nbytes), *map(time_of, rows), f"{rows[1].p50_us / rows[2].p50_us:.2f}"]
        yield f"| {' | '.join([*cells, f'{ring_s / synth_s:.2f}'])} |"
    yield from ("", "| training | measured, ms | predicted, ms |", "|---|---|---|")
    predicted = {row["algorithm"]: row["iteration_s"] for row in json.loads(trained(file, "predicted").read_text())}
    for name in ALGORITHMS:
        report = json.loads(trained(file, name).read_text("utf-8"))
        measured_s = statistics.median(report["iteration_s"][report["uncounted"] :])
        yield f"| {name} | {measured_s * 1e3:.0f} | {predicted[algorithm_of(name, links)] * 1e3:.0f} |"
    yield ""
    yield f"All-gather: {find_algorithm(algorithm, 'all_gather').__doc__}"
    yield from (BELOW, "The measured links:", "")
    for (one, other), rate in sorted(graph.links.items()):
        yield f"- from host {one + 1} to host {other + 1}: {format_rate(rate)}"


def read_rows(file):
    return convert(json.loads(file.read_text("utf-8"))["rows"], list[Row])


def time_of(row):
    return interval(row.p50_us, row.ci_low_us, row.ci_high_us, 1e-3, 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, help="a folder for what is measured")
    with kept(parser.parse_args().keep) as folder:
        runs = Runs(folder)
        watch = partial(Watch, "python -m docs.benchmarks.networks", hosts=True)
        taken = runs.take("all", "networks", watch, partial(race, mpis_at_hand()[0]))
        lines = [HEAD, *page(taken[0])] if taken else []
    runs.write(PAGE, "An all-reduce made for a network", lines)


if __name__ == "__main__":
    main()
