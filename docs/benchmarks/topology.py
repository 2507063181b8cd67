"""Which all-reduce is fastest on which network? As a script, it writes docs/benchmarks/topology.md.

python -m docs.benchmarks.topology

SimGrid replays the programs; our model prices them for the star. How far the two agree there is in the last table.
"""

from dear_mpi.collectives.algorithms.registry import ALGORITHMS, programs, runner_of, served_by
from dear_mpi.collectives.program.cost import Network, cost
from dear_mpi.collectives.program.program import COLLECTIVES
from dear_mpi.collectives.program.user_file import entry_points_of
from dear_mpi.contrib.topologies.topology import parse_topology
from dear_mpi.reporting.units import format_bytes
from docs.benchmarks.provenance import BELOW, Watch, write_page
from tests.contrib.topologies.shaped import replay

PAGE = "docs/benchmarks/topology.md"
RANKS, LEAF = 64, 8
SIZES = (25 << 20, 64 << 10)
LINK = {"alpha": 5e-6, "beta": 1e-9}
SHOWN = ("ring", "swing", "rabenseifner", "bruck", "hierarchical", "torus")
TOPOLOGIES = ("star", "fattree:8x8,2", "torus:8x8", "dragonfly:4x2x4x2")
CHECKED_RANKS = (3, 7, 8, 17, 64)
NEAR = 0.01  # who is so near to the fastest shares its place

HEAD = """Which all-reduce is fastest on which network?

- **Set-up**: an all-reduce of fp32 on 64 ranks, on four networks, replayed by SimGrid (Debian: `libsimgrid-dev`,
  `tests/simulate/simgrid.py`), where messages share links. All links carry 1 GB/s in each direction and take 2.5 us.
- **Networks**: a star, on which a message passes two links; a fat tree of 8 leaves of 8 ranks, oversubscribed 4:1; a
  torus of 8 x 8 ranks without switches; a dragonfly of 4 groups of 2 chassis of 4 routers of 2 ranks.
- **input**: the algorithm, and the most messages and bytes that a rank sends. `hierarchical` takes 8 ranks as a host.
- **model**: ms that `cost` predicts for a star, without time for sums. **replayed**: SimGrid's ms; times within 1 %
  of the fastest are in bold.
- **Limits**: nothing was measured on a network.
"""

READING = """## Reading

- On the star all six take the same time at 25 MiB; at 64 KiB the number of steps decides. The model agrees with
  SimGrid.
- On the fat tree the ring is first at 25 MiB: in each step only one rank of a leaf sends to another leaf.
  `rabenseifner` and `bruck` send their largest messages to the most distant ranks.
- `torus` takes half of any other time on the torus, because it uses four links per rank. It is slow elsewhere.
- On the dragonfly `hierarchical` is first at 25 MiB and `swing` at 64 KiB.
- A model without a topology cannot choose among these algorithms; `simulate --network` takes a topology.
"""

AGREEMENT = """## The model and SimGrid

By how many per cent `cost` is above SimGrid on a star at 25 MiB: the largest difference of all collectives of an
algorithm. SimGrid adds 16 bytes to each message.
"""


def predicted(written, nbytes):
    """ms on a star."""
    return cost(written, nbytes // 4, 4, Network(**LINK)).time_s * 1e3


def replayed(written, nbytes, text):
    """ms on a topology."""
    return replay(written, nbytes // 4, 4, parse_topology(text), **LINK) * 1e3


def load(written, nbytes):
    """The most messages and MiB that a rank sends."""
    priced = cost(written, nbytes // 4, 4, Network(**LINK))
    return max(priced.messages), max(priced.nbytes) / 2**20


def row(name, written, nbytes):
    """The figures of an algorithm: its input, the model's ms, SimGrid's by topology."""
    print(f"{name}, {format_bytes(nbytes)}", flush=True)
    return load(written, nbytes), predicted(written, nbytes), [replayed(written, nbytes, text) for text in TOPOLOGIES]


def table(rows):
    least = [min(times) for times in zip(*(times for _, _, times in rows.values()), strict=True)]
    heads = ["input", "messages", "MiB", "model: star", *(f"replayed: {text}" for text in TOPOLOGIES)]
    yield f"| {' | '.join(heads)} |"
    yield "|---" * len(heads) + "|"
    for name, ((messages, mib), model, times) in rows.items():
        shown = [f"**{t:.3g}**" if t <= (1 + NEAR) * best else f"{t:.3g}" for t, best in zip(times, least, strict=True)]
        yield f"| `{name}` | {messages} | {mib:.3g} | {model:.3g} | {' | '.join(shown)} |"


def order(rows):
    """Lines of Markdown: from the fastest to the slowest, by the model and on each topology."""
    columns = {"model: star": [model for _, model, _ in rows.values()]}
    for index, text in enumerate(TOPOLOGIES):
        columns[f"replayed: {text}"] = [times[index] for _, _, times in rows.values()]
    yield "| | fastest to slowest |"
    yield "|---|---|"
    for head, times in columns.items():
        ranked = sorted(zip(times, rows, strict=True))
        yield f"| {head} | {', '.join(f'{name} {t / ranked[0][0]:.2f}' for t, name in ranked)} |"


def differences(name, size):
    """By how much the model is above SimGrid on a star, in per cent, of all collectives of an algorithm."""
    for collective in served_by(name):
        written = programs(name, collective, size)
        nbytes = SIZES[0] - SIZES[0] % (4 * size) if COLLECTIVES[collective].addressed else SIZES[0]  # equal chunks
        yield 100 * (predicted(written, nbytes) / replayed(written, nbytes, "star") - 1)


def agreement():
    yield f"| algorithm | {' | '.join(f'{size} ranks' for size in CHECKED_RANKS)} |"
    yield "|---" * (1 + len(CHECKED_RANKS)) + "|"
    extras = entry_points_of("algorithms")
    for name in (name for name in (*ALGORITHMS, *extras) if runner_of(name) == "messages"):
        print(f"{name}, agreement", flush=True)
        worst = [max(differences(name, size), key=abs) for size in CHECKED_RANKS]
        yield f"| `{name}` | {' | '.join(f'{percent:+.3f}' for percent in worst)} |"


def main():
    watch = Watch("make topology")
    hosts = [rank // LEAF for rank in range(RANKS)]
    written = {name: programs(name, "all_reduce", RANKS, hosts=hosts) for name in SHOWN}
    few, every = [HEAD], []
    for nbytes in SIZES:
        rows = {name: row(name, written[name], nbytes) for name in SHOWN}
        part = [f"## {format_bytes(nbytes)}", "", *table(rows), ""]
        few += part if nbytes == SIZES[0] else []
        every += [*part, "Over the fastest of each:", "", *order(rows), ""]
    lines = [*few, READING, BELOW, *every, AGREEMENT, *agreement()]
    write_page(PAGE, "Topologies", [watch.record()], lines)


if __name__ == "__main__":
    main()
