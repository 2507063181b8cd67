"""What two orders of dimensions gain over one. As a script, it writes docs/benchmarks/dimensions.md.

python -m docs.benchmarks.dimensions

``cost`` prices the programs, after ``verify`` has proved them; on emulated hosts both algorithms are also measured.
"""

from functools import cache

from dear_mpi.bench.run import bench
from dear_mpi.bench.suite import Suite
from dear_mpi.collectives import programs, verify
from dear_mpi.collectives.program.cost import Network, cost
from dear_mpi.collectives.program.hosts import Rates, by_host
from dear_mpi.contrib.algorithms.themis import split
from dear_mpi.ranks.world import run_world
from dear_mpi.reporting.units import format_bytes, parse_links
from dear_mpi.training.fabric.plan_cost import network_of
from docs.benchmarks.provenance import BELOW, Watch, write_page

PAGE = "docs/benchmarks/dimensions.md"
BOTH = ("hierarchical", "themis")
SEGMENT = 60 * 1024
LARGE = 64 << 20
RATIOS = tuple(2 ** (power / 2) for power in range(-10, 10))  # of the rates of a rank inside and between hosts
FEW_RATIOS = (1 / 8, 1 / 4, 1 / 2, 1, 2, 4, 8)
SHAPES = ((2, 2), (4, 4), (8, 8), (2, 8), (8, 2), (4, 16), (16, 4), (3, 5))  # ranks of a host, hosts
SIZES = tuple(1 << power for power in range(16, 27, 2))
LINKS = tuple(f"40mbit,20us/{rate}mbit,50us,hosts=2" for rate in (320, 160, 80, 40, 20))
MEASURED, SECONDS = 1 << 20, 15.0

HEAD = f"""What does `themis` gain over `hierarchical`?

- **Set-up**: an all-reduce of fp32 in segments of {format_bytes(SEGMENT)}, on R hosts of Q ranks. Programs are proved
  (`verify`) and priced (`cost`), with 1 GB/s and 2 us inside a host, 20 us between hosts, and sums that take no time.
  The programs for 2 hosts of 2 ranks were also measured on emulated links.
- **ratio**: the rate of a rank inside its host over its rate between hosts while all ranks of its host send.
- **gain**: the time of `hierarchical` over the time of `themis`.
- **Limits**: prices ignore the overlap of segments of two phases; no real hosts.
"""

READING = """## Reading

- With equal rates and Q = R, half of the parts take each order, and the time is half. If links between hosts are
  faster, the gain nears R: bytes inside are divided by R.
- From a ratio of (Q-1) R/(R-1) on, `themis` equals `hierarchical`. This is usual if ranks share one port.
- If Q is far from R, or buffers are small, gains are smaller.
"""


def hosts_of(ranks, across):
    return tuple(rank // ranks for rank in range(ranks * across))


def written(name, ranks, across, rates, *, nbytes=LARGE, collective="all_reduce"):
    """The programs of all ranks, one host after the other."""
    pieces = -(-nbytes // SEGMENT)
    return programs(name, collective, ranks * across, hosts=hosts_of(ranks, across), rates=rates, pieces=pieces)


def network(ranks, across, ratio):
    """1 GB/s inside a host, and as much less between hosts for each rank as the ratio says."""
    between = Network(alpha=2e-5, beta=1e-9 * ratio / ranks)
    return Network(alpha=2e-6, beta=1e-9, hosts=hosts_of(ranks, across), between=between)


def priced(ranks, across, ratio, nbytes=LARGE, prove=lambda programs: None):
    on, found = network(ranks, across, ratio), []
    for name in BOTH:
        ran = written(name, ranks, across, on.rates, nbytes=nbytes)
        prove(ran)
        found.append(cost(ran, nbytes // 4, 4, on).time_s)
    return found


@cache
def gain(*case, **how):
    one, two = priced(*case, **how)
    return one / two


def ratio_text(ratio):
    return f"{ratio:.3g}" if ratio >= 1 else f"1/{1 / ratio:.3g}"


def by_ratio(ranks, across):
    yield f"## {across} hosts of {ranks} ranks, {format_bytes(LARGE)}, by the ratio of rates"
    yield ""
    yield "| ratio | parts in the order of `hierarchical` | in the other | `hierarchical`, ms | `themis`, ms | gain |"
    yield "|---|---|---|---|---|---|"
    for ratio in RATIOS:
        one, two = (seconds * 1e3 for seconds in priced(ranks, across, ratio, prove=verify))
        usual, other = split(by_host(hosts_of(ranks, across)), Rates(1.0, 1 / ratio), LARGE // SEGMENT)
        yield f"| {ratio_text(ratio)} | {usual} | {other} | {one:.1f} | {two:.1f} | {one / two:.2f} |"
    yield ""


def gains(title, head, cases):
    """A table of gains: a row for each named case, which is a function of the ratio."""
    yield f"## {title}"
    yield ""
    yield f"| {head} | {' | '.join(f'ratio {ratio_text(ratio)}' for ratio in FEW_RATIOS)} |"
    yield "|---" * (1 + len(FEW_RATIOS)) + "|"
    for name, of in cases.items():
        print(f"{title}: {name}", flush=True)
        yield f"| {name} | {' | '.join(f'{of(ratio):.2f}' for ratio in FEW_RATIOS)} |"
    yield ""


def measured(text):
    """The rows of both algorithms, in turns, on four threads."""
    print(text, flush=True)
    suite = Suite(sizes=(MEASURED,), algorithms=BOTH, budget_s=SECONDS)
    rows = run_world(lambda world: bench(suite, world), link=parse_links(text), threads=4).rows
    assert not any(row.wrong for row in rows)
    return rows


def emulated():
    yield f"## EMULATED: 2 hosts of 2 ranks, {format_bytes(MEASURED)}, measured"
    yield ""
    yield "Four threads on emulated hosts, whose algorithms took turns; medians, with their 95 % intervals, of ms."
    yield ""
    yield "| `--link` | ratio | `hierarchical` | `themis` | gain | predicted |"
    yield "|---|---|---|---|---|---|"
    for text in LINKS:
        on = network_of(parse_links(text), hosts_of(2, 2))
        one, two = measured(text)
        times = [
            f"{row.p50_us / 1e3:.1f} ({row.ci_low_us / 1e3:.1f} to {row.ci_high_us / 1e3:.1f})" for row in (one, two)
        ]
        due = [cost(written(name, 2, 2, on.rates, nbytes=MEASURED), MEASURED // 4, 4, on).time_s for name in BOTH]
        ratio = ratio_text(on.rates.inside / on.rates.between)
        yield f"| `{text}` | {ratio} | {' | '.join(times)} | {one.p50_us / two.p50_us:.2f} | {due[0] / due[1]:.2f} |"
    yield ""


def main():
    watch = Watch("make dimensions")
    shapes = {
        f"{across} hosts of {ranks} ranks": lambda ratio, shape=(ranks, across): gain(*shape, ratio, prove=verify)
        for ranks, across in SHAPES
    }
    sizes = {
        format_bytes(size): lambda ratio, size=size: gain(4, 4, ratio, nbytes=size, prove=verify) for size in SIZES
    }
    by_shape = list(gains(f"Gains by hosts and ranks, {format_bytes(LARGE)}", "hosts", shapes))
    every = [*by_ratio(4, 4), *by_shape, *gains("Gains by size, 4 hosts of 4 ranks", "bytes", sizes), *emulated()]
    lines = [HEAD, *by_shape, READING, BELOW, *every]
    write_page(PAGE, "Two orders of dimensions", [watch.record()], lines)


if __name__ == "__main__":
    main()
