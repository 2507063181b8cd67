"""Compares figures that papers print with what this package gives. As a script, it writes docs/benchmarks/published.md.

python -m docs.benchmarks.published
"""

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean
from textwrap import fill

from docs.benchmarks import published_claims as claims
from docs.benchmarks.provenance import BELOW, Watch, write_page

PAGE = "docs/benchmarks/published.md"
WITHIN = 0.15  # of what is published
WIDTH = 120

HEAD = f"""Does the code of this package give the figures that papers print?

- **ours**: results of our simulator and wire formats. **agrees**: within {WITHIN:.0%} of the printed figure, unless the
  cell states otherwise.
- **Limits**: nothing was timed. The papers' tables were mostly not at hand, or their models are not in this package.
  The file of all rows explains each row and what could not be checked.

| paper | what it prints | ours | agrees |
|---|---|---|---|"""


@dataclass(frozen=True)
class Row:
    paper: str
    prints: str
    ours: str
    agrees: str
    unchecked: str
    reading: str

    def __str__(self) -> str:
        return f"| {self.paper} | {self.prints} | {self.ours} | {self.agrees} |"


def judged(ours: float, published: float) -> str:
    """How far ours is above, and whether that is near enough."""
    off = ours / published - 1
    return f"{'yes' if abs(off) <= WITHIN else 'no'} ({off:+.0%})"


def kfac() -> Row:
    ours, sums = claims.kfac_ours(), claims.kfac_phases()
    published = claims.KFAC_TOTALS["ResNet-50"]
    sent_s, waits_s = claims.SENT_S - claims.FACTORS_S, claims.PIPELINED_S - claims.FACTORS_S
    own_s, own_wait_s = claims.sent_s(claims.factor_elements("resnet50")), claims.pipelined_wait_s("resnet50")
    gradients_s = claims.sent_s(claims.gradient_elements("resnet50"))
    ratio = claims.factor_elements("resnet50") / claims.gradient_elements("resnet50")
    printed = [f"{name}: {', '.join(map(str, each.values()))}" for name, each in claims.KFAC_TOTALS.items()]
    elements = {paper: claims.factor_elements(name) for paper, name in claims.TABLES.items()}
    others = [f"{paper} {each / 1e6:.1f} M elements, {claims.sent_s(each):.3f} s" for paper, each in elements.items()]
    same = list(ours) == sorted(ours, key=lambda what: -ours[what])
    return Row(
        "SPD-KFAC (2107.06533)",
        f"(in scripts that plot its figures) s an iteration on 64 GPUs, 100 Gbit/s, of {' / '.join(published)}: "
        + "; ".join(printed),
        f"ResNet-50: {', '.join(f'{each:.3f}' for each in ours.values())}",
        f"order {'yes' if same else 'no'}; {', '.join(f'{w} {judged(ours[w], published[w])}' for w in ours)}",
        "the other three models: their phases were not at hand, and ResNet-152 has no table in this package",
        f"The published phases of ResNet-50 add up to {', '.join(f'{each:.3f}' for each in sums.values())} s, so they "
        "and the totals belong together. Ours takes from them what is computed: passes, factors, inverses. What is "
        "sent is ours: triangles of both factors of each layer, on the preset `paper-100gbib`; the row of SPD-KFAC is "
        "`wfbp` with factors as one more parameter of each layer, and a gather of inverses that nothing hides. The "
        f"triangles have {ratio:.2f} times the elements of the gradient. We predict {own_s:.3f} s for their "
        f"all-reduce (published {sent_s:.3f} s), {gradients_s:.3f} s for that of gradients (published "
        f"{claims.GRADIENTS_S - claims.COMPUTED_S:.3f} s), and {own_s / 2:.3f} s for the gather of inverses (published "
        f"{claims.INVERTED_S['MPD-KFAC'][1]} s and, placed, {claims.INVERTED_S['SPD-KFAC'][1]} s). Pipelined factors "
        f"keep the published iteration waiting for {waits_s:.3f} s, ours for {own_wait_s:.3f} s, gradients included. "
        "The preset was fitted to another cluster. Triangles and their all-reduce by our simulator: "
        f"{'; '.join(others)}.",
    )


def diloco() -> Row:
    hours = {period: claims.diloco_hours(period) for period in claims.PERIODS}
    smaller = claims.smaller_by_4_bits()
    fewer = claims.PARALLEL_TB / claims.STREAMING_TB
    links = claims.links_full(claims.PARALLEL_TB, claims.PARALLEL_H)
    few_links = claims.links_full(claims.STREAMING_TB, claims.STREAMING_H)
    return Row(
        "Streaming DiLoCo (2501.18512)",
        f"1 billion parameters, 25 billion tokens, 1 Gbit/s: {claims.STREAMING_H} h and {claims.STREAMING_TB:.2f} TB, "
        f"data-parallel {claims.PARALLEL_H} h and {claims.PARALLEL_TB} TB",
        ", ".join(f"{each:.2f} h with rounds of {period}" for period, each in hours.items()) + ", in fp32",
        "that the link hides a round: "
        + ", ".join(f"{period} {judged(each, claims.STREAMING_H)}" for period, each in hours.items()),
        "the hours of data-parallel training, which ours takes as given; the terabytes; the losses; the length of "
        "rounds and the number of replicas of that run",
        f"Given are the {claims.PARALLEL_H} h of data-parallel training, and {claims.STREAMING_H} h for all compute. "
        "The question is whether a link of 1 Gbit/s hides a round: `diloco` with staggered buckets and a delay of 5 "
        f"iterations, in fp32. The published bytes are {fewer:.0f} times fewer. Our codes of 4 bits have {smaller:.2f} "
        f"times fewer bytes than fp32: that would be rounds of {fewer / smaller:.0f} iterations from fp32, and of "
        f"{2 * fewer / smaller:.0f} from types of 16 bits. A link at 1 Gbit/s cannot carry {claims.PARALLEL_TB} TB in "
        f"{claims.PARALLEL_H} h: {links:.1f} such links can. For {claims.STREAMING_TB} TB in {claims.STREAMING_H} h it "
        f"takes {few_links:.1f}.",
    )


def themis() -> Row:
    gains = {shape: claims.themis_gains(shape) for shape in claims.DIMENSIONS}
    each = [gain for found in gains.values() for gain in found]
    mean, most = claims.THEMIS
    lines = [f"{across} hosts of {ranks} {fmean(g):.2f} ({max(g):.2f})" for (ranks, across), g in gains.items()]
    iterations = [f"{name} {usual:.2f} ({best:.2f})" for name, (usual, best) in claims.THEMIS_ITERATIONS.items()]
    return Row(
        "Themis (2110.04478)",
        f"utilisation of links {mean} times (at most {most:.2f}); iterations {', '.join(iterations)}",
        f"an all-reduce over `hierarchical`, by dimensions: {', '.join(lines)}",
        f"that there is a gain, and never a loss: {'yes' if min(each) >= 1 < fmean(each) else 'no'}; the figures are "
        f"not comparable (mean {fmean(each):.2f}, largest {max(each):.2f})",
        "its networks, which have other dimensions and rates; iterations: none of its four models has a table here",
        "As the bytes are the same, a gain in utilisation is a gain in time. It depends on both dimensions, and on the "
        "ratio of their rates: our means are over the ratios of `make dimensions`, from 1/8 to 8, for 64 MiB. A mean "
        "near the published one says nothing. The [page on dimensions](dimensions.md) has the proofs, and what "
        "was measured.",
    )


def low_rank() -> Row:
    found = {name: claims.low_rank_bytes(name) for name in claims.RANK_OF}
    shares = {name: claims.factors_share(name) for name in claims.RANK_OF}
    ours = [
        f"{name}, rank {claims.RANK_OF[name]}: {power / 1e6:.2f} and {acp / 1e6:.2f} MB of {whole / 1e6:.1f} "
        f"({power / whole:.1%}, {acp / whole:.1%})"
        for name, (whole, power, acp) in found.items()
    ]
    return Row(
        "ACP-SGD (2306.08881), PowerSGD",
        "PowerSGD sends r (n + m) of the n m elements of a matrix, ACP-SGD half of that; ranks 4 for CNNs, 32 for BERT",
        "; ".join(ours),
        ", ".join(f"{name}: factors {share:.3f} of PowerSGD's" for name, share in shares.items())
        + f", half: {judged(max(shares.values()), 0.5)}",
        "the papers' tables of times and accuracies, which were not at hand",
        "Bytes are those that the routes of `--wire powersgd` and `--wire acp` sum in an iteration, in one bucket. "
        "Vectors travel whole in both, and so does a matrix whose factors would have more than half of its elements: "
        "so over all tensors ACP-SGD has "
        f"{', '.join(f'{acp / power:.2f} ({name})' for name, (_, power, acp) in found.items())} of PowerSGD's bytes. "
        "Of two turns the longer counts; where buckets hold one matrix each, that is the longer factor alone. Shapes "
        "come from the tables of models: outputs from FLOPs, and rows of embeddings from the norm behind them.",
    )


ROWS = (kfac, diloco, themis, low_rank)


def page() -> Iterator[str]:
    """The whole page, and below a paragraph for each row."""
    rows = [row() for row in ROWS]
    yield HEAD
    yield from (*map(str, rows), BELOW, *map(str, rows), "")
    for row in rows:
        yield f"{fill(f'{row.paper}: {row.reading} Not checked: {row.unchecked}.', WIDTH, break_on_hyphens=False)}\n"


if __name__ == "__main__":
    watch = Watch("make published")
    lines = list(page())
    write_page(PAGE, "Published figures", [watch.record()], lines)
