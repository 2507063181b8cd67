"""Read ASTRA-sim's text workloads, into tables of ``--model synthetic:FILE.json``.

    DATA
    2
    conv1  -1  120 NONE 0  0 NONE 0    100 ALLREDUCE 37632   5
    fc     -1   40 NONE 0  35 NONE 0    30 ALLREDUCE 4096000 5

Each layer has a time, a collective and its bytes for three passes: forward, gradients of inputs, gradients of weights.
The last number is the update's time. Times are in microseconds, as for Chakra's converter; gradients are fp32.

Source: mlcommons/chakra (its text converter).
"""

from pathlib import Path
from typing import Annotated, Any, TypeAlias

from msgspec import Meta, convert

from dear_mpi.collectives.program.json_file import in_words
from dear_mpi.contrib.networks.formats.xml import read_bytes

SUMS = ("ALLREDUCE", "REDUCESCATTER")
Amount: TypeAlias = Annotated[int, Meta(ge=0, lt=10**15)]  # us or bytes
Fields: TypeAlias = tuple[str, str, Amount, str, Amount, Amount, str, Amount, Amount, str, Amount, Amount]


def read_astra(path: Path) -> dict[str, Any]:
    """ValueErrors name the line, and the field from 0."""
    lines = read_bytes(path).decode("utf-8", "replace").splitlines()
    count = lines[1].strip() if len(lines) > 1 else ""
    if not (count.isdecimal() and len(count) < 7) or len(lines) < 2 + int(count):
        raise ValueError(f"{path}, line 2: must be the number of layers that follow, not {count!r:.30}")
    uses = []
    for number, line in enumerate(lines[2 : 2 + int(count)]):
        try:
            uses.append(layer(number, line.split()))
        except ValueError as error:
            raise ValueError(f"{path}, line {number + 3}: {in_words(str(error), line.split())}") from None
    if not any(use["tensors"] for use in uses):
        raise ValueError(f"{path}: no layer sums gradients of weights")
    return {"uses": uses}


def layer(number: int, fields: list[str]) -> dict[str, Any]:
    name, _, forward, first, _, inputs, second, _, weights, summed, nbytes, _ = convert(fields, Fields, strict=False)
    if (first, second) != ("NONE", "NONE"):
        raise ValueError("only gradients of weights may be communicated: the first two collectives must be NONE")
    if summed not in ("NONE", *SUMS) or (summed != "NONE" and nbytes < 4):
        raise ValueError(f"{' or '.join(SUMS)} of 4 bytes or more, or NONE, not {summed!r:.30} of {nbytes}")
    tensors = [{"key": number, "shape": [nbytes // 4]}] if summed != "NONE" else []
    seconds = {"forward_s": forward / 1e6, "backward_s": (inputs + weights) / 1e6, "weights_s": weights / 1e6}
    return {"name": name, "tensors": tensors, **seconds}
