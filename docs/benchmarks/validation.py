"""Compares predictions of dear-mpi simulate with measured iterations. Writes docs/benchmarks/predictions.md.

python -m docs.benchmarks.validation [--ranks 2 3 4] [--models resnet50 ...] [--links hosts:1gbit ...] [--keep FOLDER]

What it measures is chosen before: by default PART, in some 25 minutes; with --whole all that there is, in 80.
"""

import argparse
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from statistics import median
from textwrap import fill
from typing import Any

from dear_mpi.reporting.terminal import interval
from docs.benchmarks.attempts import attempts, chosen, kept
from docs.benchmarks.provenance import BELOW, write_page
from docs.benchmarks.stolen import ATTEMPTS, QUIET
from docs.benchmarks.validation_runs import (
    FORWARD_S,
    ITERATIONS,
    LINKS,
    PEERS,
    RANKS,
    SHARDED,
    SHARDED_LINK,
    USUAL,
    Compared,
    Link,
    Row,
    compared,
)

WIDTH = 120  # of a line
PAGE = "docs/benchmarks/predictions.md"
PEERS_LINKS, PEERS_RANKS, PEERS_MODEL = ("hosts:1gbit", "emulated:1gbit"), 4, "resnet50"
SAID = {
    PEERS: "Peers, each with the buckets of its source: ",
    SHARDED: "Sharded updates, each with the buckets of its source: ",
}
BOUNDS = {"hosts": 0.05, "emulated": 0.03}
TITLES = {
    "hosts": "Hosts of network namespaces, links of {} (TCP in frames of 1514 bytes)",
    "emulated": "EMULATED link of {}, 50 us, between ranks of one host",
}

PART: dict[str, Any] = {
    "ranks": [2, 3, 4],
    "models": ["resnet50", "densenet201"],
    "links": ["hosts:1gbit", SHARDED_LINK],
}
WHOLE: dict[str, Any] = {"ranks": [2, 3, 4], "models": list(FORWARD_S), "links": list(LINKS)}

HEAD = """How far are predictions of `dear-mpi simulate` from iterations that `dear-mpi compare` measures?

- **Set-up**: `make validation` (Linux, root) measures a part: hosts with links of 1 Gbit/s and two models, and
  sharded updates on an emulated link of 1.5 Gbit/s. `python -m docs.benchmarks.validation --whole` measures all.
- **measured**: ms of an iteration on its slowest rank: the median of {iterations[resnet50]} iterations (bert_base:
  {iterations[bert_base]}) with its 95 % interval. Layers sleep; gradients, updates and messages are real. All rows
  use the ring with buckets of 25 MB; peers use the buckets of their sources.
- **predicted**: ms by `simulate` from a profile without links (`train --profile`), and from alpha, beta and gamma.
  `bench` finds these in collectives of 2 to 32 MiB on the same links. Alpha is not the link's latency, which hardly
  shows in large messages.
- **off**: how far the prediction is above the measurement; bold above {hosts:.0%} ({emulated:.0%} on the emulated
  link).
- **Limits**: all ranks share the processors; the predictor ignores that updates and messages need the same ones. The
  benchmark ran at another time. [Decision 0015](../decisions/0015-predictions-from-means-and-lengths.md) describes the
  fit.
"""


def table(found: Sequence[Compared]) -> Iterator[str]:
    yield "| ranks | model | schedule | measured | predicted | off |"
    yield "|---|---|---|---|---|---|"
    for each in found:
        row = each.measured
        cells = [str(row["ranks"]), row["model"].removeprefix("synthetic:"), row["schedule"]]
        cells.append(interval(row["median_s"], row["median_low_s"], row["median_high_s"], 1e3, 0))
        off = f"{each.off:+.1%}"
        bold = abs(each.off) > BOUNDS[each.kind]
        cells += [f"{each.predicted['iteration_s'] * 1e3:.0f}", f"**{off}**" if bold else off]
        yield f"| {' | '.join(cells)} |"


def missed(rows: Sequence[Compared]) -> Iterator[str]:
    """For each row that misses: where the difference is, and how wide the interval of the measurement."""
    for row in rows:
        if abs(row.off) > BOUNDS[row.kind]:
            found, said = row.measured, row.predicted
            name = f"{found['model'].removeprefix('synthetic:')}, {found['schedule']}, {found['ranks']} ranks"
            parts = [found[each] - said[each] for each in ("compute_s", "exposed_comm_s")]
            whole = found["median_s"] - said["iteration_s"]
            layers, waiting, rest = (f"{1e3 * each:+.0f}" for each in (*parts, whole - sum(parts)))
            within = f"{1e3 * found['median_low_s']:.0f} to {1e3 * found['median_high_s']:.0f} ms"
            yield f"- {name}: measured {1e3 * whole:+.0f} ms over the prediction: layers {layers}, waiting {waiting},"
            yield f"  updates and the rest {rest}. The interval of the measurement is {within}."


def fitted(row: Row) -> str:
    gamma = f", 1/gamma {1e-9 / row['gamma_s_per_B']:.1f} GB/s" if row["gamma_s_per_B"] else ""
    network = f"alpha {row['alpha_s'] * 1e6:.0f} us, 1/beta {1e-9 / row['beta_s_per_B']:.4f} GB/s{gamma}"
    return f"- {row['ranks']} ranks: {network}; updates of {row['update_s_per_element'] * 1e9:.1f} ns for each element."


def losses(folder: Path, used: Iterable[str]) -> str:
    """How much of the processors was lost while commands ran, and what was repeated for that."""
    made = {name: attempts(folder, name) for name in sorted(used)}
    again = [name for name, each in made.items() if len(each) > 1]
    worst = {name: each for name, records in made.items() if (each := chosen(records).stolen) > QUIET}
    said = (
        f"A command ran again, at most {ATTEMPTS} times, if other machines took over {QUIET:.0%} of the processors; "
        f"the quietest run counts. Of {len(made)} commands, {len(again)} ran again. "
    )
    left = ", ".join(f"{name} ({share:.1%})" for name, share in worst.items())
    said += f"Still above that: {left}." if worst else "None stayed above that."
    return fill(said, WIDTH, break_on_hyphens=False) + "\n"


def page(found: Sequence[Compared], lost: str) -> Iterator[str]:
    """The whole page, from the rows and what is known of their commands; below, all rows."""
    ranks, models = ({row.measured[key]: None for row in found} for key in ("ranks", "model"))
    links = {f"{row.kind}:{row.rate}": None for row in found}
    names = ", ".join(model.removeprefix("synthetic:") for model in models)
    had = f"This run had {' and '.join(map(str, ranks))} ranks, {names}, and the links {', '.join(links)}."
    near = sum(abs(row.off) <= BOUNDS[row.kind] for row in found)
    within = " and ".join(f"{BOUNDS[kind]:.0%} ({kind})" for kind in dict.fromkeys(row.kind for row in found))
    few, every = ["| | within | median | worst |", "|---|---|---|---|"], list[str]()
    for (contest, kind, rate), same in groupby(found, lambda each: (each.contest, each.kind, each.rate)):
        rows = list(same)
        title, offs = SAID.get(contest, "") + TITLES[kind].format(rate), [abs(row.off) for row in rows]
        inside = f"{sum(off <= BOUNDS[kind] for off in offs)} of {len(offs)} within {BOUNDS[kind]:.0%}"
        few.append(f"| {SAID.get(contest, '')}{kind}, {rate} | {inside} | {median(offs):.1%} | {max(offs):.1%} |")
        every.append(f"## {title}\n")
        for _, each in groupby(rows, lambda row: row.measured["ranks"]):
            every.append(fitted(next(each).predicted))
        every += ["", *table(rows), "", *missed(rows), ""]
    yield HEAD.format(**BOUNDS, iterations=ITERATIONS)
    yield fill(had, WIDTH, break_on_hyphens=False)
    yield f"In all, {near} of {len(found)} predictions are within {within}."
    yield lost
    yield from few
    yield from ("", *missed(found), BELOW, *every)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+")
    parser.add_argument("--models", choices=FORWARD_S, nargs="+")
    parser.add_argument("--links", choices=LINKS, nargs="+")
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--keep", type=Path, help="a folder for what the commands write")
    options = parser.parse_args()
    part = WHOLE if options.whole else PART
    ranks, models, texts = (getattr(options, each) or part[each] for each in ("ranks", "models", "links"))
    used = set[str]()
    with kept(options.keep) as folder:
        links = [
            Link(folder, text, size, used) for text in texts for size in ranks if size in RANKS[text.partition(":")[0]]
        ]
        found = [each for link in links if link.text != SHARDED_LINK for each in compared(link, models, USUAL)]
        with_peers = [link for link in links if link.text in PEERS_LINKS and link.ranks == PEERS_RANKS]
        if PEERS_MODEL in models:
            found += [each for link in links for each in compared(link, [PEERS_MODEL], SHARDED)]
            found += [each for link in with_peers for each in compared(link, [PEERS_MODEL], PEERS)]
        records = [chosen(attempts(folder, each)) for each in sorted(used)]
        lines = list(page(found, losses(folder, used)))
    write_page(PAGE, "Predictions compared with measurements", records, lines)


if __name__ == "__main__":
    main()
