"""Time one rank's kernels: pack and unpack for the models' tensor lists, and a ring's sums.

They take turns with one copy of the whole bucket, the available bandwidth, and with one copy per tensor, the cost
without these kernels. GB/s counts bytes read and written.
"""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, product
from typing import Any

import numpy as np

from dear_mpi.cli.flags import Flags, check_files, flag, shared, try_files, written_by
from dear_mpi.cli.run import with_flags, write_json
from dear_mpi.kernels.calls import combiner, copier, packer, unpacker
from dear_mpi.kernels.dtypes import DTYPES
from dear_mpi.kernels.slab import CHUNK_BYTES, TENSOR_BYTES, Slab, round_up
from dear_mpi.models.synthetic import Module, load_modules
from dear_mpi.ranks.host import check_room
from dear_mpi.ranks.streams import Streams, open_streams, select_gpu
from dear_mpi.reporting.declared import listed, parsed
from dear_mpi.reporting.stats import median
from dear_mpi.reporting.terminal import PLUS_MINUS, bar, console, interval, table
from dear_mpi.reporting.units import check_distinct

MODELS = ("resnet50", "densenet201", "inceptionv4", "bert_base", "bert_large")
SEGMENTS = (1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26)
WARM_UP = 3
WORK_S = 500e-6  # of calls in a sample
BUDGET_S = 2.0  # of samples for one row's backends
SAMPLES = (7, 50)
Call = Callable[[], object]
KernelRow = dict[str, Any]

FLAGS = shared("json_file") | flag("device", str, "Where the kernels run: cpu or cuda.")
FLAGS |= flag("models", str, "Models whose tensors are packed, with commas.")


@with_flags(FLAGS, alone="bench-kernels", device="cpu", models=",".join(MODELS))
def bench_kernels(flags: Flags) -> None:
    """Example: dear-mpi bench-kernels --models resnet50"""
    names = listed("--models", flags["models"])
    check_distinct("--models", names)
    check_files({"--models": names}, written_by(flags))
    try_files(written_by(flags))
    tables = {name: parsed("--models", load_modules, name) for name in names}
    for name, modules in tables.items():  # tensors, and two fp32 buckets
        check_room(f"model {name!r}", 12 * sum(count for module in modules for count in module.counts), ranks=1)
    select_gpu(flags["device"])
    streams, rows = parsed("--device", open_streams, flags["device"]), list[KernelRow]()
    with bar(None, 4 * len(tables) + len(SEGMENTS), "kernels") as progress:
        for row in time_kernels(streams, tables):
            rows.append(row)
            progress(f"{row['kernel']}, {row['tensors']}")
    found = table(
        [rows],
        COLUMNS,
        left=("kernel", "tensors"),
        title=f"kernels on {flags['device']}, fp32 tensors, 1 rank",
        caption=f"us: medians; {PLUS_MINUS}; GB/s: bytes read and written; / copy: bandwidth over that of one copy of "
        "the bucket; / one by one: how many times as fast as one copy per tensor",
    )
    console().print(found)
    write_json(rows, flags.get("json_file"))


def time_kernels(streams: Streams, models: Mapping[str, Sequence[Module]]) -> Iterator[KernelRow]:
    """Yield a row per kernel: pack and unpack to fp32 and bf16 for each model, then sums of fp32 by size."""
    with streams.compute.use():
        for (name, modules), wire in product(models.items(), ("fp32", "bf16")):
            yield from of_model(streams, name, [count for module in modules for count in module.counts], wire)
        for nbytes in SEGMENTS:
            yield of_segment(streams, nbytes)


def of_model(streams: Streams, name: str, counts: Sequence[int], wire: str) -> list[KernelRow]:
    tensors = [streams.put(np.full(count, 1, np.float32)) for count in counts]
    slab, itemsize = Slab.beside(tensors[0]), DTYPES[wire].itemsize
    *starts, end = accumulate((round_up(count, TENSOR_BYTES // itemsize) for count in counts), initial=0)
    nbytes = round_up(end * itemsize, CHUNK_BYTES)
    bucket, other = (slab.zeros(nbytes // itemsize, DTYPES[wire]) for _ in range(2))
    views = [bucket[start : start + count] for start, count in zip(starts, counts, strict=True)]
    each = [copier(view, tensor) for view, tensor in zip(views, tensors, strict=True)]
    calls: dict[str, Call] = {
        "copy": copier(other, bucket),
        "pack": packer(tensors, views),
        "unpack": unpacker(views, tensors),
        "each": lambda: [call() for call in each],
    }
    times = in_turns(streams, calls)
    moved = {"copy": 2 * nbytes} | dict.fromkeys(("pack", "unpack"), nbytes + 4 * sum(counts))
    facts = {"tensors": name, "number": len(counts), "bucket_bytes": nbytes, "bucket_dtype": wire}
    return [row_of(kernel, times, moved, **facts) for kernel in ("pack", "unpack")]


def of_segment(streams: Streams, nbytes: int) -> KernelRow:
    dst, src = (streams.put(np.ones(nbytes // 4, np.float32)) for _ in range(2))
    times = in_turns(streams, {"copy": copier(dst, src), "accumulate": combiner(dst, (), [src])})
    moved = {"copy": 2 * nbytes, "accumulate": 3 * nbytes}
    return row_of("accumulate", times, moved, tensors="a segment", number=1, bucket_bytes=nbytes, bucket_dtype="fp32")


def in_turns(streams: Streams, calls: dict[str, Call]) -> dict[str, list[float]]:
    """Measure the seconds of each call, between two events of the compute stream.

    Short calls are repeated between the events, so a sample measures no launch, except for copies of single tensors.
    """
    times = {name: list[float]() for name in calls}
    spent_s = {name: spent(streams, call, WARM_UP) for name, call in calls.items()}
    repeats = {name: max(1, math.ceil(WORK_S / seconds)) for name, seconds in spent_s.items()}
    turn_s = sum(repeats[name] * seconds for name, seconds in spent_s.items())
    for _ in range(int(min(max(SAMPLES[0], BUDGET_S / turn_s), SAMPLES[1]))):
        for name, call in calls.items():
            times[name].append(spent(streams, call, repeats[name]))
    return times


def spent(streams: Streams, call: Call, repeats: int) -> float:
    begin = streams.compute.mark()
    for _ in range(repeats):
        call()
    return streams.compute.seconds(begin, streams.compute.mark()) / repeats


def row_of(kernel: str, times: dict[str, list[float]], moved: dict[str, int], **facts: Any) -> KernelRow:
    middle = median(times[kernel])
    bandwidth = moved[kernel] / middle.value
    return {
        "kernel": kernel,
        **facts,
        "tensor_dtype": "fp32",
        "samples": len(times[kernel]),
        "p50_us": middle.value * 1e6,
        "ci_low_us": middle.low * 1e6,
        "ci_high_us": middle.high * 1e6,
        "GBps": bandwidth * 1e-9,
        "of_copy": bandwidth / (moved["copy"] / statistics.median(times["copy"])),  # of one copy's bandwidth
        "faster_than_each": statistics.median(times["each"]) / middle.value if "each" in times else None,  # (speed-up)
    }


COLUMNS: dict[str, Callable[[KernelRow], str]] = {
    "kernel": lambda row: row["kernel"],
    "tensors": lambda row: row["tensors"],
    "number": lambda row: str(row["number"]),
    "bucket": lambda row: f"{row['bucket_bytes'] / 1e6:.1f} MB {row['bucket_dtype']}",
    "time (us)": lambda row: interval(row["p50_us"], row["ci_low_us"], row["ci_high_us"], 1, 0),
    "GB/s": lambda row: f"{row['GBps']:.1f}",
    "/ copy": lambda row: f"{row['of_copy']:.2f}",
    "/ one by one": lambda row: "" if row["faster_than_each"] is None else f"{row['faster_than_each']:.1f} x",
}
