"""Simulate layers by their compute time and gradient sizes, with tables of the DeAR paper's five models.

A synthetic layer writes gradients (a small multiple of its parameters: any error in their sum shows) and sleeps for the
rest of its time, like a host during its GPU's work. A table has modules in forward order (keys: docs/how-to/model.md):

    {"batch": 64, "modules": [{"name": "conv1", "params": [9408], "fwd_flops": 15105785856}, ...]}

A profile (``dear_mpi/training/events/profile.py``) has seconds in place of FLOPs.
"""

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from dear_mpi.collectives.program.json_file import read_json
from dear_mpi.kernels.array import Array, array_module
from dear_mpi.kernels.lookup import lookup
from dear_mpi.models.layer import Layer, Parameter

FORWARD_S = 0.1
MOST_EXCHANGED = 10**13  # bytes
HALF = 0.5  # FLOPs of backward over forward: a matrix product's gradients take equally many


@dataclass(frozen=True)
class Module:
    name: str
    counts: tuple[int, ...]
    flops: float  # of the forward pass; in a profile, seconds
    backward: float | None = None  # of the backward pass; None: proportional to forward
    weights: float = HALF  # share of backward for the parameters' gradients, which may be delayed
    exchange_bytes: int = 0  # bytes of all ranks together, before each pass
    out_elems: float = 0.0


def load_modules(name: str) -> list[Module]:
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
    if name.endswith(".json"):
        return read_json("synthetic model", Path(name))
    tables = json.loads(resources.files("dear_mpi.models").joinpath("paper_models.json").read_text())
    return lookup("synthetic model", name, tables)


def module_of_row(row: Any) -> Module:
    exchange_bytes = row.get("exchange_bytes", 0)
    if type(exchange_bytes) is not int or not 0 <= exchange_bytes <= MOST_EXCHANGED:
        raise ValueError(f"exchange_bytes must be a whole number from 0 to {MOST_EXCHANGED}, not {exchange_bytes!r}")
    counts, flops, out_elems = tuple(map(count, row["params"])), float(row["fwd_flops"]), float(row.get("out_elems", 0))
    return Module(str(row["name"]), counts, flops, exchange_bytes=exchange_bytes, out_elems=out_elems)


def modules_of_profile(profile: Any) -> list[Module]:
    """Convert a profile; a tied tensor belongs to its first call."""
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


def measured_seconds(modules: Sequence[Module]) -> tuple[float, float] | None:
    """Return a profile's seconds; None for other tables."""
    back = [module.backward for module in modules if module.backward is not None]
    return (sum(module.flops for module in modules), sum(back)) if back else None


def both_passes(
    forward_s: float | None, backward_s: float | None, measured: tuple[float, float] | None = None
) -> tuple[float, float]:
    """Derive a pass's missing seconds from the ratio of the ``measured`` ones, default 1:2.

    >>> both_passes(0.5, None), both_passes(0.5, None, (1.0, 3.0)), both_passes(None, 0.5, (1.0, 3.0))
    ((0.5, 1.0), (0.5, 1.5), (1.0, 0.5))
    """
    ahead_s, back_s = measured or (FORWARD_S, 2 * FORWARD_S)
    forward_s = ahead_s if forward_s is None else forward_s
    ratio = back_s / ahead_s if ahead_s else 1.0
    return forward_s, forward_s * ratio if backward_s is None else backward_s


def shares_of(modules: Sequence[Module]) -> tuple[list[float], list[float]]:
    ahead = [module.flops for module in modules]
    back = [module.flops if module.backward is None else module.backward for module in modules]
    return shares(ahead), shares(back)


def shares(amounts: Sequence[float]) -> list[float]:
    total = sum(amounts)
    return [each / total if total else 1 / len(amounts) for each in amounts]


GRADIENT_SCALE = 1e-3
ALL_TO_ALL = "pairwise", "all_to_all"  # algorithm, collective


class ComputeTime:
    """Let time pass, asleep.

    Short times add up until a sleep is worthwhile, and a sleep's excess shortens the next: the sum is exact.
    """

    def __init__(self) -> None:
        self.owed_s, self.pace = 0.0, 1.0  # the pace multiplies times

    def spend(self, seconds: float, since_s: float) -> None:
        """Wait until ``seconds`` times the pace have passed since ``since_s`` of ``time.perf_counter``."""
        self.owed_s += self.pace * seconds - (time.perf_counter() - since_s)
        if self.owed_s > 1e-3:
            begin_s = time.perf_counter()
            time.sleep(self.owed_s)
            self.owed_s -= time.perf_counter() - begin_s


@dataclass(eq=False)
class Synthetic:
    parameters: Sequence[Parameter]
    compute_time: ComputeTime
    forward_s: float
    backward_s: float
    weights_s: float = 0.0

    def forward(self, x: Array) -> Array:
        self.compute_time.spend(self.forward_s, time.perf_counter())
        return x

    def backward(self, dy: Array) -> Array:
        self.write(self.backward_s)
        return dy

    def backward_input(self, dy: Array) -> Array:
        self.compute_time.spend(self.backward_s - self.weights_s, time.perf_counter())
        return dy

    def backward_weights(self) -> None:
        self.write(self.weights_s)

    def write(self, seconds: float) -> None:
        begin_s = time.perf_counter()
        for parameter in self.parameters:
            scale = parameter.value.dtype.type(GRADIENT_SCALE)
            array_module(parameter.value).multiply(parameter.value, scale, out=parameter.grad)
        self.compute_time.spend(seconds, begin_s)


@dataclass(eq=False, kw_only=True)
class Exchanging(Synthetic):
    exchange: Callable[[], object]

    def exchange_forward(self, x: Array) -> Array:
        self.exchange()
        return x

    exchange_backward = exchange_forward


def synthetic_layers(
    modules: Sequence[Module],
    *,
    forward_s: float,
    backward_s: float,
    dtype: np.dtype[Any],
    rng: np.random.Generator,
    compute_time: ComputeTime | None = None,
    exchange: Callable[[int], object] = lambda nbytes: None,
) -> list[Layer]:
    """Create layers that share these seconds by FLOPs; ``exchange`` of bytes is collective."""
    compute_time = compute_time or ComputeTime()
    layers: list[Layer] = []
    for module, ahead, back in zip(modules, *shares_of(modules), strict=True):
        parameters = [
            Parameter.of(f"{module.name}.{number}", rng.random(count, np.float32).astype(dtype))
            for number, count in enumerate(module.counts)
        ]
        times = ahead * forward_s, back * backward_s, module.weights * back * backward_s
        if module.exchange_bytes:
            sends = partial(exchange, module.exchange_bytes)
            layers.append(Exchanging(parameters, compute_time, *times, exchange=sends))
        else:
            layers.append(Synthetic(parameters, compute_time, *times))
    return layers
