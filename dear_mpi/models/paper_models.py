"""The five models of the DeAR paper as synthetic layers: ``synthetic:resnet50`` and its like.

The tables in ``paper_models.json`` list for every module the elements of its tensors, its forward FLOPs at the
paper's batch size, and when the forward pass calls it. A user's own table has the same form:

    {"batch": 64, "modules": [{"name": "conv1", "params": [9408], "fwd_flops": 15105785856}, ...]}      in forward order

The batch is that at which FLOPs are counted; only ``dear-mpi simulate --batch`` asks for it.
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

__all__ = ["Module", "load_batch", "load_modules", "synthetic_layers"]


@dataclass(frozen=True)
class Module:
    """One module of a model: elements of each tensor, and forward FLOPs."""

    name: str
    counts: tuple[int, ...]
    flops: float


def load_modules(name: str) -> list[Module]:
    """The modules of one of the paper's models, or of a JSON file, in the order of the forward pass.

    Raises:
        ValueError: the name is unknown, or the file is missing or malformed.
    """
    table = load_table(name)
    try:
        rows = sorted(table["modules"], key=lambda row: row.get("fwd_call", 0))
        modules = [Module(str(row["name"]), tuple(map(count, row["params"])), float(row["fwd_flops"])) for row in rows]
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise ValueError(f"synthetic model {name!r}: a module needs name, params and fwd_flops ({error!r})") from None
    if not any(module.counts for module in modules):
        raise ValueError(f"synthetic model {name!r}: some module must have params")
    flops = [module.flops for module in modules]
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
        return read_json("synthetic model", Path(name))
    tables = json.loads(resources.files("dear_mpi.models").joinpath("paper_models.json").read_text())
    return lookup("synthetic model", name, tables)


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
    total = sum(module.flops for module in modules)
    layers: list[Layer] = []
    for module in modules:
        share = module.flops / total if total else 1 / len(modules)
        parameters = [
            Parameter.of(f"{module.name}.{number}", rng.random(count, np.float32).astype(dtype))
            for number, count in enumerate(module.counts)
        ]
        layers.append(Synthetic(parameters, pace, forward_s=share * forward_s, backward_s=share * backward_s))
    return layers
