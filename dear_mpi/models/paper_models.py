"""The five models of the DeAR paper as synthetic layers: ``synthetic:resnet50`` and its like.

The tables in ``paper_models.json`` list for every module the elements of its tensors, its forward FLOPs at the
paper's batch size, and when the forward pass calls it. A user's own table has the same form:

    {"batch": 64, "modules": [{"name": "conv1", "params": [9408], "fwd_flops": 15105785856}, ...]}      in forward order

The batch is the one at which FLOPs are counted; only ``dear-mpi simulate --batch`` asks for it. A profile
(``dear_mpi/training/profiles/profile.py``) is a table, in which seconds take the place of FLOPs.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from dear_mpi.collectives.program.json_file import read_json
from dear_mpi.kernels.lookup import lookup
from dear_mpi.models.layer import Layer, Parameter
from dear_mpi.models.layers.synthetic import Pace, Synthetic

FORWARD_S = 0.1  # where nothing is said


@dataclass(frozen=True)
class Module:
    """One module of a model: elements of each tensor, and forward FLOPs.

    Its share of the backward pass is its share of the forward pass, unless ``backward`` says another one.
    """

    name: str
    counts: tuple[int, ...]
    flops: float
    backward: float | None = None


def load_modules(name: str) -> list[Module]:
    """The modules of one of the paper's models, or of a JSON file, in the order of the forward pass.

    Raises:
        ValueError: the name is unknown, or the file is missing or malformed.
    """
    table = load_table(name)
    try:
        rows = sorted(table["modules"], key=lambda row: row.get("fwd_call", 0))
        modules = [
            Module(
                str(row["name"]),
                tuple(map(count, row["params"])),
                float(row["fwd_flops"]),
                float(row["backward"]) if "uses" in table else None,
            )
            for row in rows
        ]
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise ValueError(f"synthetic model {name!r}: a module needs name, params and fwd_flops ({error!r})") from None
    if not any(module.counts for module in modules):
        raise ValueError(f"synthetic model {name!r}: some module must have params")
    flops = [each for module in modules for each in (module.flops, module.backward or 0.0)]
    if not (min(flops) >= 0 and sum(flops) < math.inf):
        raise ValueError(f"synthetic model {name!r}: fwd_flops must be finite and not negative, and so must their sum")
    unseen = [module.name for module in modules if not module.name.isprintable()]
    if unseen:
        raise ValueError(f"synthetic model {name!r}: names must be printable, not {unseen[0]!r}")
    return modules


def load_batch(name: str) -> int:
    """The batch at which the FLOPs of a model are counted.

    Raises:
        ValueError: as for ``load_modules``, or the table does not say it.
    """
    table = load_table(name)
    batch = table.get("batch") if isinstance(table, dict) else None
    if type(batch) is not int or batch < 1:
        raise ValueError(f"synthetic model {name!r}: batch must be a whole number above zero, not {batch!r}")
    return batch


def load_table(name: str) -> Any:
    """The table of one of the paper's models, or of a JSON file."""
    if name.endswith(".json"):
        table = read_json("synthetic model", Path(name))
        return table_of(name, table) if isinstance(table, dict) and "uses" in table else table
    tables = json.loads(resources.files("dear_mpi.models").joinpath("paper_models.json").read_text())
    return lookup("synthetic model", name, tables)


def table_of(name: str, profile: dict[str, Any]) -> dict[str, Any]:
    """A profile as a table: a tied tensor belongs to its first use, and seconds are the shares of the passes.

    Raises:
        ValueError: it is none.
    """
    seen, modules = set[Any](), []
    try:
        for use in profile["uses"]:
            own = {tensor["key"]: math.prod(tensor["shape"]) for tensor in use["tensors"] if tensor["key"] not in seen}
            seen |= own.keys()
            row = {"name": use["name"], "params": list(filter(None, own.values()))}
            modules.append(row | {"fwd_flops": use["forward_s"], "backward": use["backward_s"]})
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"synthetic model {name!r} has uses, and is no profile ({error!r})") from None
    return profile | {"modules": modules}


def load_seconds(name: str) -> tuple[float, float] | None:
    """What the passes of a model take if its table is a profile, else None.

    Raises:
        ValueError: as for ``load_modules``.
    """
    modules = load_modules(name)
    back = [module.backward for module in modules if module.backward is not None]
    return (sum(module.flops for module in modules), sum(back)) if back else None


def both_passes(
    forward_s: float | None, backward_s: float | None, measured: tuple[float, float] | None = None
) -> tuple[float, float]:
    """Seconds of the forward and the backward pass: those that are given, and what follows for a pass that is not.

    Args:
        measured: both passes, whose ratio stays; without them backward takes twice as long as forward.

    >>> both_passes(0.5, None), both_passes(0.5, None, (1.0, 3.0)), both_passes(None, 0.5, (1.0, 3.0))
    ((0.5, 1.0), (0.5, 1.5), (1.0, 0.5))
    """
    usual_s, ratio_s = (FORWARD_S, 2 * FORWARD_S) if measured is None else measured
    forward_s = usual_s if forward_s is None else forward_s
    ratio = ratio_s / usual_s if usual_s else 1.0
    return forward_s, forward_s * ratio if backward_s is None else backward_s


def count(value: Any) -> int:
    """A number of elements."""
    if type(value) is not int or value < 1:
        raise ValueError(f"params must be whole numbers above zero, not {value!r}")
    return value


def synthetic_layers(
    modules: Sequence[Module],
    *,
    forward_s: float,
    backward_s: float,
    dtype: np.dtype[Any],
    rng: np.random.Generator,
    compute: str = "sleep",
) -> list[Layer]:
    """Layers that share ``forward_s`` and ``backward_s`` seconds in proportion to their FLOPs."""
    pace = Pace(compute)
    ahead, back = shares_of(modules)
    layers: list[Layer] = []
    for module, share, behind in zip(modules, ahead, back, strict=True):
        parameters = [
            Parameter.of(f"{module.name}.{number}", rng.random(count, np.float32).astype(dtype))
            for number, count in enumerate(module.counts)
        ]
        layers.append(Synthetic(parameters, pace, forward_s=share * forward_s, backward_s=behind * backward_s))
    return layers


def shares_of(modules: Sequence[Module]) -> tuple[list[float], list[float]]:
    """The share of each in the forward and in the backward pass; equal ones if there is nothing to share."""
    ahead = [module.flops for module in modules]
    back = [module.flops if module.backward is None else module.backward for module in modules]
    first, second = (
        [each / total if total else 1 / len(found) for each in found]
        for found in (ahead, back)
        for total in [sum(found)]
    )
    return first, second
