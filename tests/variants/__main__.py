"""Writes the page of variants.

python -m tests.variants [--keep FILE]

Each row is a claim that could fail: with what is beside it, on the same machine, a few minutes in all.
"""

from tests.provenance import Watch, write_page
from tests.variants import codes, kfac, orders, owners, recipes, rounds, sketch, twin

PAGE = "docs/benchmarks/variants.md"
HEAD = """Each row has a target, what was seen, and whether that meets it. The model is `mlp` on the digits where no
other is named, on 4 ranks that are threads of one process, over the emulated link that the row names, with the preset's
batch and seed 0. In the last three rows the ranks are processes, with 32 examples together: these are of
[the twin of a run](../simulate.md#the-twin-of-a-run). "Exposed" is the waiting of the median iteration. How each
variant works, and when it pays, is in [variants](../variants.md).

A small classifier says whether training goes on as before. It does not say what a large model would lose.
"""

FILES = (codes, sketch, rounds, owners, orders, kfac, recipes, twin)


def main() -> None:
    watch, rows = Watch("make variants"), []
    for target in (target for file in FILES for target in file.TARGETS):
        seen, met = target.measure()
        rows.append(f"| {target.variant} | {target.claim} | {seen} | {'yes' if met else 'no'} |")
        print(rows[-1], flush=True)
    table = ["| variant | target | seen | met |", "|---|---|---|---|", *rows]
    write_page(PAGE, "Variants: targets and what was seen", [watch.record()], [HEAD, *table])


if __name__ == "__main__":
    main()
