"""The five models of the DeAR paper as tables, of which ``synthetic:resnet50`` and its like are made.

The tables in ``paper_models.json`` list for every module the elements of its tensors, its forward FLOPs at the
paper's batch size, and when the forward pass calls it. A user's own table has the same form:

    {"batch": 64, "modules": [{"name": "conv1", "params": [9408], "fwd_flops": 15105785856}, ...]}      in forward order

The batch is the one at which FLOPs are counted; only ``dear-mpi simulate --batch`` asks for it. A module with
``"exchange_bytes": 4194304`` has so many bytes for all ranks together, before each pass: an all-to-all. With
``"out_elems": 51380224``, the elements of its output, ``simulate --optimizer kfac`` knows its factors. A profile
(``dear_mpi/training/profiles/profile.py``) is a table, too, in which seconds take the place of FLOPs.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from dear_mpi.collectives.program.json_file import read_json
from dear_mpi.kernels.kfac import Sides
from dear_mpi.kernels.lookup import lookup

FORWARD_S = 0.1  # where nothing is said
MOST_EXCHANGED = 10**13  # bytes
HALF = 0.5  # of a backward pass: a product of matrices has as many FLOPs for either of its gradients


@dataclass(frozen=True)
class Module:
    """One module of a model."""

    name: str
    counts: tuple[int, ...]  # elements of each tensor
    flops: float  # of the forward pass; of a profile its seconds
    backward: float | None = None  # the same of the backward pass; None: it has the same share of that
    weights: float = HALF  # the part of its backward pass that is its tensors' gradients, and may be done later
    exchange_bytes: int = 0  # for all ranks together, before each pass
    sides: Sides | None = None  # of its factors; None where its weight is no matrix that is known
    rows: float = 0.0  # that each factor is a sum over


def load_modules(name: str) -> list[Module]:
    """The modules of one of the paper's models, or of a JSON file, in the order of the forward pass.

    ValueError if the name is unknown, or the file is missing or malformed.
    """
    table, model = load_table(name), f"synthetic model {name!r}"
    profiled = isinstance(table, dict) and "uses" in table
    try:
        if profiled:
            modules = modules_of_profile(table)
        else:
            modules = [module_of_row(row) for row in sorted(table["modules"], key=lambda row: row.get("fwd_call", 0))]
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        wrong = " has uses, and is no profile" if profiled else ": a module needs name, params and fwd_flops"
        raise ValueError(f"{model}{wrong} ({error!r})") from None
    if not any(module.counts for module in modules):
        raise ValueError(f"{model}: some module must have params")
    flops = [each for module in modules for each in (module.flops, module.backward or 0.0)]
    if not (min(flops) >= 0 and sum(flops) < math.inf):
        raise ValueError(f"{model}: fwd_flops must be finite and not negative, and so must their sum")
    unseen = [module.name for module in modules if not module.name.isprintable()]
    if unseen:
        raise ValueError(f"{model}: names must be printable, not {unseen[0]!r}")
    return modules


def load_table(name: str) -> Any:
    """The table of one of the paper's models, or what is in a JSON file."""
    if name.endswith(".json"):
        return read_json("synthetic model", Path(name))
    tables = json.loads(resources.files("dear_mpi.models").joinpath("paper_models.json").read_text())
    return lookup("synthetic model", name, tables)


def module_of_row(row: Any) -> Module:
    exchange_bytes = row.get("exchange_bytes", 0)
    if type(exchange_bytes) is not int or not 0 <= exchange_bytes <= MOST_EXCHANGED:
        raise ValueError(f"exchange_bytes must be a whole number from 0 to {MOST_EXCHANGED}, not {exchange_bytes!r}")
    counts, shape = tuple(map(count, row["params"])), matrix(row)
    module = Module(str(row["name"]), counts, float(row["fwd_flops"]), exchange_bytes=exchange_bytes)
    if shape is None:
        return module
    outputs, inputs = shape
    return replace(module, sides=Sides(inputs + len(counts) - 1, outputs), rows=row["out_elems"] / outputs)


def matrix(row: Any) -> tuple[int, int] | None:
    """Outputs and inputs of the weight of a row that has ``out_elems``: each of its elements has two FLOPs for each row
    of outputs. None where it is no matrix, as in a normalisation."""
    (weight, *_), flops, out_elems = row["params"] or [0], row["fwd_flops"], row.get("out_elems", 0)
    outputs = 2 * weight * out_elems / flops if flops else 0.0
    is_whole = outputs >= 1 and outputs == int(outputs) and weight % int(outputs) == 0
    return (int(outputs), weight // int(outputs)) if is_whole else None


def modules_of_profile(profile: Any) -> list[Module]:
    """The uses of a profile: a tied tensor belongs to the first of them, and seconds are the shares of the passes."""
    seen, modules = set[Any](), []
    for use in profile["uses"]:
        own = {tensor["key"]: math.prod(tensor["shape"]) for tensor in use["tensors"] if tensor["key"] not in seen}
        seen |= own.keys()
        counts = tuple(map(count, filter(None, own.values())))
        ahead_s, back_s = float(use["forward_s"]), float(use["backward_s"])
        weights = float(use.get("weights_s", 0.0)) / back_s if back_s else 0.0
        modules.append(Module(str(use["name"]), counts, ahead_s, back_s, weights))
    return modules


def count(value: Any) -> int:
    if type(value) is not int or value < 1:
        raise ValueError(f"params must be whole numbers above zero, not {value!r}")
    return value


def load_batch(name: str) -> int:
    """The batch at which the FLOPs of a model's modules are counted; ValueError if its table does not say it."""
    batch = load_table(name).get("batch")
    if type(batch) is not int or batch < 1:
        raise ValueError(f"synthetic model {name!r}: batch must be a whole number above zero, not {batch!r}")
    return batch


def measured_seconds(modules: Sequence[Module]) -> tuple[float, float] | None:
    """What the passes of a profile take; None for other tables, which do not say it."""
    back = [module.backward for module in modules if module.backward is not None]
    return (sum(module.flops for module in modules), sum(back)) if back else None


def both_passes(
    forward_s: float | None, backward_s: float | None, measured: tuple[float, float] | None = None
) -> tuple[float, float]:
    """Seconds of the forward and the backward pass: those that are given, and what follows for a pass that is not.

    The ratio of passes that were ``measured`` stays; without them backward takes twice as long as forward.

    >>> both_passes(0.5, None), both_passes(0.5, None, (1.0, 3.0)), both_passes(None, 0.5, (1.0, 3.0))
    ((0.5, 1.0), (0.5, 1.5), (1.0, 0.5))
    """
    ahead_s, back_s = measured or (FORWARD_S, 2 * FORWARD_S)
    forward_s = ahead_s if forward_s is None else forward_s
    ratio = back_s / ahead_s if ahead_s else 1.0
    return forward_s, forward_s * ratio if backward_s is None else backward_s


def shares_of(modules: Sequence[Module]) -> tuple[list[float], list[float]]:
    """The share of each in the forward and in the backward pass."""
    ahead = [module.flops for module in modules]
    back = [module.flops if module.backward is None else module.backward for module in modules]
    return shares(ahead), shares(back)


def shares(amounts: Sequence[float]) -> list[float]:
    """The share of each in their sum; equal ones if that is 0."""
    total = sum(amounts)
    return [each / total if total else 1 / len(amounts) for each in amounts]
