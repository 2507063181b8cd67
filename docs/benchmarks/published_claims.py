"""What papers print, and what this package gives for the same: figures for docs/benchmarks/published.py."""

import json
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import dropwhile
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dear_mpi.models.synthetic import load_table
from dear_mpi.simulate.settings import Settings
from dear_mpi.simulate.sweep import Simulated, simulate
from dear_mpi.training.routes.find import find_code, find_route

ITEMSIZE = 4
Shape = tuple[int, ...]

# SPD-KFAC: seconds of an iteration on 64 GPUs, 100 Gbit/s, from the scripts that plot the paper's figures.
KFAC_TOTALS = {
    "ResNet-50": {"D-KFAC": 0.853, "MPD-KFAC": 0.764, "SPD-KFAC": 0.676},
    "ResNet-152": {"D-KFAC": 1.581, "MPD-KFAC": 1.393, "SPD-KFAC": 1.169},
    "DenseNet-201": {"D-KFAC": 1.496, "MPD-KFAC": 1.534, "SPD-KFAC": 1.362},
    "Inception-v4": {"D-KFAC": 1.186, "MPD-KFAC": 1.147, "SPD-KFAC": 0.991},
}
TABLES = {"ResNet-50": "resnet50", "DenseNet-201": "densenet201", "Inception-v4": "inceptionv4"}
# Of ResNet-50 there, when phases end, and what inverting and sending inverses take.
COMPUTED_S, GRADIENTS_S, FACTORS_S, SENT_S, PIPELINED_S = 0.132, 0.197, 0.408, 0.578, 0.506
WITHOUT_NETWORK_S = COMPUTED_S + FACTORS_S - GRADIENTS_S  # passes and factors
INVERTED_S = {"D-KFAC": (0.27, 0.0), "MPD-KFAC": (0.051, 0.134), "SPD-KFAC": (0.105, 0.064)}

# Streaming DiLoCo, 1 billion parameters, 1 Gbit/s: hours and terabytes.
PARALLEL_H, PARALLEL_TB, STREAMING_H, STREAMING_TB = 109, 441, 0.88, 1.10
PERIODS = (100, 500)
BLOCKS, BLOCK = 20, 12 * 2048**2  # of a decoder: matrices of width 2048, a billion elements in all

# Themis: an all-reduce's gain on the average and at most; an iteration's likewise.
THEMIS = (1.72, 2.70)
THEMIS_ITERATIONS = {
    "ResNet-152": (1.49, 2.25),
    "GNMT": (1.30, 1.78),
    "DLRM": (1.30, 1.77),
    "Transformer-1T": (1.25, 1.53),
}
DIMENSIONS = ((2, 2), (4, 4), (8, 8), (16, 4), (4, 16))  # ranks of a host, hosts

RANK_OF = {"resnet50": 4, "bert_base": 32}  # as ACP-SGD has it


def matrix(row: dict[str, Any]) -> tuple[int, int] | None:
    """Outputs and inputs of a row's weight, each element of which takes two FLOPs per row of outputs."""
    weight = row["params"][0] if row["params"] else 0
    outputs = 2 * weight * row.get("out_elems", 0) / row["fwd_flops"] if row["fwd_flops"] else 0.0
    is_whole = outputs >= 1 and outputs == int(outputs) and weight % int(outputs) == 0
    return (int(outputs), weight // int(outputs)) if is_whole else None


def factors(row: dict[str, Any]) -> list[int]:
    """The elements of a row's factors, two triangles and two numbers; none of a normalisation."""
    outputs, inputs = matrix(row) or (0, 0)
    sizes = (inputs + len(row["params"]) - 1, outputs)
    return [sum(size * (size + 1) // 2 for size in sizes) + 2] if outputs else []


def factor_elements(name: str) -> int:
    return sum(sum(factors(row)) for row in load_table(name)["modules"])


def gradient_elements(name: str) -> int:
    return sum(sum(module["params"]) for module in load_table(name)["modules"])


def with_factors(name: str) -> list[dict[str, Any]]:
    """The rows of a table, with factors as one more parameter of each, as ``dear_mpi/contrib/kfac`` has them."""
    rows = load_table(name)["modules"]
    return [row | {"params": [*row["params"], *factors(row)]} for row in rows]


def plain(*counts: int) -> list[dict[str, Any]]:
    """A table of layers alike but for their elements."""
    return [{"name": f"layer{number}", "params": [each], "fwd_flops": 1} for number, each in enumerate(counts)]


def simulated(rows: list[dict[str, Any]], seconds: float, *schedules: str, **how: Any) -> list[Simulated]:
    """An iteration of a table under some schedules; two thirds of its compute are backward."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "table.json"
        path.write_text(json.dumps({"modules": rows}))
        return simulate(Settings(models=(f"synthetic:{path}",), schedules=schedules, forward_s=seconds / 3, **how))


def on_testbed(rows: list[dict[str, Any]], seconds: float, schedule: str) -> Simulated:
    """64 GPUs, 100 Gbit/s."""
    (found,) = simulated(rows, seconds, schedule, ranks=(64,), network="paper-100gbib", fusions=("64MB",))
    return found


@cache
def sent_s(elements: int) -> float:
    return float(on_testbed(plain(elements), 0.003, "sequential").prediction.network_s["all_reduce"])


def pipelined_wait_s(name: str) -> float:
    """How long an iteration waits for gradients and factors that are sent as soon as they are there."""
    found = on_testbed(with_factors(name), WITHOUT_NETWORK_S, "wfbp")
    return float(found.row["iteration_s"]) - WITHOUT_NETWORK_S


def kfac_ours(name: str = "resnet50") -> dict[str, float]:
    """ResNet-50 with the published seconds of compute, and our seconds of what is sent."""
    gathered_s = sent_s(factor_elements(name)) / 2
    inverted = {what: seconds for what, (seconds, _) in INVERTED_S.items()}
    serial_s = WITHOUT_NETWORK_S + sent_s(gradient_elements(name)) + sent_s(factor_elements(name))
    return {
        "D-KFAC": serial_s + inverted["D-KFAC"],
        "MPD-KFAC": serial_s + inverted["MPD-KFAC"] + gathered_s,
        "SPD-KFAC": WITHOUT_NETWORK_S + pipelined_wait_s(name) + inverted["SPD-KFAC"] + gathered_s,
    }


def kfac_phases() -> dict[str, float]:
    """What the published phases of ResNet-50 add up to."""
    ends = {"D-KFAC": SENT_S, "MPD-KFAC": SENT_S, "SPD-KFAC": PIPELINED_S}
    return {what: end + sum(INVERTED_S[what]) for what, end in ends.items()}


@cache
def diloco_hours(period: int | None) -> float:
    """Hours at 1 Gbit/s of fp32, data-parallel without a period: where all compute takes as long as Streaming DiLoCo,
    and data-parallel training waits for the link as long as was published."""
    rows, link = plain(*[BLOCK] * BLOCKS), {"ranks": (2,), "network": "1gbit,50us"}
    (alone,) = simulated(rows, 0.003, "dear", **link)
    seconds = sum(alone.prediction.network_s.values()) * STREAMING_H / PARALLEL_H
    schedule = f"diloco:{period}:delay=5:staggered=yes" if period else "dear"
    (found,) = simulated(rows, seconds, schedule, **link)
    return STREAMING_H * float(found.row["iteration_s"]) / seconds


def smaller_by_4_bits(count: int = BLOCK) -> float:
    """How many times as many bytes fp32 has as our codes of 4 bits."""
    return ITEMSIZE * count / find_code("int4").wire.nbytes(count)


def links_full(terabytes: float, hours: float) -> float:
    """How many links of 1 Gbit/s are busy all the time."""
    return terabytes * 8e12 / (hours * 3600 * 1e9)


@cache
def themis_gains(shape: tuple[int, int]) -> list[float]:
    """Of 64 MiB over `hierarchical`, at some ratios of rates."""
    from docs.benchmarks.dimensions import FEW_RATIOS, gain  # of an extra

    return [gain(*shape, ratio) for ratio in FEW_RATIOS]


def shapes(name: str) -> Iterator[Shape]:
    """Of the tensors of a table: weights are matrices, others vectors, and embeddings as wide as the next norm."""
    rows = load_table(name)["modules"]
    for number, row in enumerate(rows):
        first, *others = row["params"]
        norm = next(dropwhile(lambda each: len(each["params"]) < 2, rows[number:]), row)["params"][0]
        if matrix(row):
            yield matrix(row) or ()
        elif not others and not row["fwd_flops"] and first % norm == 0:
            yield first // norm, norm
        else:
            yield (first,)
        yield from ((each,) for each in others)


def coded_bytes(wire: str, of: Sequence[Shape]) -> int:
    """That are summed in an iteration, of one bucket."""
    route = find_route("full", wire=wire)
    lines = [line for line in route.codes if line.endswith("codes")]
    count, how = sum(map(prod, of)), {"wire": ITEMSIZE, "values": ITEMSIZE, "ranks": 1, "shapes": tuple(of)}
    return sum(route.nbytes(line, count, **how) for line in lines)


def low_rank_bytes(name: str) -> tuple[int, int, int]:
    of, rank = tuple(shapes(name)), RANK_OF[name]
    return ITEMSIZE * sum(map(prod, of)), coded_bytes(f"powersgd:{rank}", of), coded_bytes(f"acp:{rank}", of)


def factors_share(name: str) -> float:
    """Of ACP-SGD's bytes in PowerSGD's, of matrices that travel as factors alone."""
    rank = RANK_OF[name]
    of = tuple(filter(find_code(f"acp:{rank}").wire.matrix, shapes(name)))
    return coded_bytes(f"acp:{rank}", of) / coded_bytes(f"powersgd:{rank}", of)
