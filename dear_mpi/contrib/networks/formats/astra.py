"""Read ASTRA-sim's text workloads, into tables of ``--model synthetic:FILE.json``.

    DATA
    2
    conv1  -1  120 NONE 0  0 NONE 0    100 ALLREDUCE 37632   5
    fc     -1   40 NONE 0  35 NONE 0    30 ALLREDUCE 4096000 5

Each layer has a time, a collective and its bytes for three passes: forward, gradients of inputs, gradients of weights.
The last number is the update's time. Times are in microseconds, as for Chakra's converter; gradients are fp32.

Source: mlcommons/chakra (its text converter).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dear_mpi.contrib.networks.formats.xml import read_bytes

FIELDS = 12
MOST = 10**15
SUMS = ("ALLREDUCE", "REDUCESCATTER")


def read_astra(path: Path) -> dict[str, Any]:
    """ValueErrors name the line."""
    lines = read_bytes(path).decode("utf-8", "replace").splitlines()
    count = lines[1].strip() if len(lines) > 1 else ""
    if not (count.isdecimal() and len(count) < 7) or len(lines) < 2 + int(count):
        raise ValueError(f"{path}, line 2: must be the number of layers that follow, not {count!r:.30}")
    uses = list(layers(path, lines[2 : 2 + int(count)]))
    if not any(use["tensors"] for use in uses):
        raise ValueError(f"{path}: no layer sums gradients of weights")
    return {"uses": uses}


def layers(path: Path, lines: list[str]) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(lines):
        fields, where = line.split(), f"{path}, line {number + 3}"
        numbers = [each for column, each in enumerate(fields) if column not in (0, 1, 3, 6, 9)]
        if len(fields) != FIELDS or not all(each.isdecimal() and int(each[:20]) < MOST for each in numbers):
            raise ValueError(
                f"{where}: a layer has a name and {FIELDS - 1} fields as in the first example: {line!r:.90}"
            )
        forward, _, inputs, _, weights, nbytes, _ = map(int, numbers)
        for column in (3, 6):
            if fields[column] != "NONE":
                raise ValueError(
                    f"{where}: only weights may be communicated, and field {column} is {fields[column]!r:.30}"
                )
        if fields[9] not in ("NONE", *SUMS) or (fields[9] != "NONE" and nbytes < 4):
            raise ValueError(
                f"{where}: {' or '.join(SUMS)} of 4 bytes or more, or NONE, not {fields[9]!r:.30} of {nbytes}"
            )
        tensors = [{"key": number, "shape": [nbytes // 4]}] if fields[9] != "NONE" else []
        seconds = {"forward_s": forward / 1e6, "backward_s": (inputs + weights) / 1e6, "weights_s": weights / 1e6}
        yield {"name": fields[0], "tensors": tensors, **seconds}
