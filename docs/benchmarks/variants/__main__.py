"""Writes the page of variants.

python -m docs.benchmarks.variants [--keep FILE]

Each row is a claim that could fail: with what is beside it, on the same machine, a few minutes in all.
"""

from docs.benchmarks.provenance import BELOW, Watch, write_page
from docs.benchmarks.variants import codes, kfac, orders, owners, recipes, rounds, sketch, twin

PAGE = "docs/benchmarks/variants.md"
HEAD = """Does each variant do what it promises?

- **Set-up**: unless a row names another, the model is `mlp` on the digits, with the preset's batch and seed 0. Ranks
  are four threads, over the row's emulated link; the rows of [the twin of a run](../simulate.md#the-twin-of-a-run) use
  processes. "Exposed" is the waiting of the median iteration. [Variants](../variants.md) describes each.
- **Limits**: a small classifier shows whether training still converges, not what a large model would lose.
"""

FILES = (codes, sketch, rounds, owners, orders, kfac, recipes, twin)


TABLE = ["| variant | target | seen | met |", "|---|---|---|---|"]
ON_PAGE = 8  # rows, the first one of each variant; the others are in the file of all rows


def page(rows: list[str]) -> list[str]:
    """The lines of the page, and below all rows."""
    missed = [row for row in rows if not row.endswith("| yes |")]
    first = list({row.split(" | ")[0]: row for row in reversed(rows)}.values())[::-1][:ON_PAGE]
    met = f"{len(rows) - len(missed)} of {len(rows)} targets are met. Some of the rows:\n"
    return [HEAD, met, *TABLE, *dict.fromkeys([*missed, *first]), BELOW, *TABLE, *rows]


def main() -> None:
    watch, rows = Watch("make variants"), []
    for target in (target for file in FILES for target in file.TARGETS):
        seen, met = target.measure()
        rows.append(f"| {target.variant} | {target.claim} | {seen} | {'yes' if met else '**no**'} |")
        print(rows[-1], flush=True)
    write_page(PAGE, "Variants and their targets", [watch.record()], page(rows))


if __name__ == "__main__":
    main()
