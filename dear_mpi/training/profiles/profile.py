"""A measured profile: which tensors each use of a layer trains, and how long it takes. As JSON:

    {"model": "mlp", "device": "cpu", "ranks": 2, "rank": 1, "batch": 32, "accumulate": 1, "dtype": "fp32",
     "wire": "fp32", "schedule": "sequential", "iterations": 297, "update_s_per_element": 1.5e-09, "rest_s": 0.0003,
     "forward_flops": null, "code_factor": null, "start_s": 0.0, "wake_s": 0.0,
     "uses": [{"name": "dense0", "tensors": [{"key": 0, "shape": [64, 128], "outputs": 1}, {"key": 1, "shape": [128]}],
               "forward_s": 2.1e-05, "backward_s": 4.4e-05}, ...]}                              in forward order

Tensors of one key are one and the same. ``profiler.py`` makes a profile; ``dear-mpi simulate --profile`` reads it here,
and ``--model synthetic:FILE.json`` in ``dear_mpi/models/synthetic.py``.
"""

import json
import math
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

from msgspec import Meta, convert

from dear_mpi.collectives.program.json_file import reading
from dear_mpi.collectives.program.user_file import is_in_file
from dear_mpi.kernels.dtypes import DTYPES
from dear_mpi.kernels.kfac import Sides
from dear_mpi.kernels.lookup import lookup
from dear_mpi.kernels.optimizer import Optimizer
from dear_mpi.models.synthetic import both_passes
from dear_mpi.reporting.files import replacing
from dear_mpi.reporting.units import MOST_SECONDS, plural
from dear_mpi.training.fabric.costs import Costs
from dear_mpi.training.routes.find import find_code, is_code
from dear_mpi.training.schedules import ROUNDS, SCHEDULES

Index = Annotated[int, Meta(ge=0)]
Count = Annotated[int, Meta(ge=1)]
Parts = Annotated[int, Meta(ge=1, le=1000)]  # of a batch: each is simulated
Seconds = Annotated[float, Meta(ge=0, le=MOST_SECONDS)]
Flops = Annotated[float, Meta(gt=0, le=sys.float_info.max)]


@dataclass(frozen=True)
class Tensor:
    """A trained tensor; tied ones have one key. ``outputs`` is as ``Parameter`` has it.

    Attributes:
        sides: of the factors that it has, for K-FAC.
    """

    key: Index
    shape: tuple[Index, ...]
    outputs: Index | None = 0
    sides: Sides | None = None

    @property
    def seen(self) -> tuple[int, ...]:
        """The shape that optimisers of whole tensors are given."""
        if self.outputs is None:
            return (math.prod(self.shape),)
        first = self.outputs if self.outputs < len(self.shape) else 0
        return (*self.shape[first : first + 1], *self.shape[:first], *self.shape[first + 1 :])

    def cost(self, optimizer: Optimizer) -> int:
        """What an update of it takes, where this is the session's optimiser: as ``Parameter.cost`` has it."""
        return self.sides.cost if self.sides else optimizer.cost(self.seen)


@dataclass(frozen=True)
class Use:
    """A use of a layer, and the seconds that it takes in an iteration."""

    name: str
    tensors: tuple[Tensor, ...]
    forward_s: Seconds
    backward_s: Seconds
    weights_s: Seconds = 0.0  # of backward_s, for its second half, where the schedule let that be delayed
    exchange_s: Seconds = 0.0  # of what it exchanges before both passes


@dataclass(frozen=True, kw_only=True)
class Profile:
    """What a run measured. All seconds are of one rank, and means over iterations, so that they add up.

    Attributes:
        rank: the one that was busy longest, for which the others wait.
        batch: examples of an iteration, of the whole job; None where there are no data.
        accumulate: in how many parts the batch passed; seconds are the sum over parts.
        dtype, wire: the type of the parameters; and that of gradients on their way, or their code.
        schedule: under another one than ``sequential`` communication went on beside compute.
        iterations: how many were measured, without the first ones; half of them count (``profiler.py``).
        update_s_per_element: of the optimiser.
        rest_s: of an iteration, for what is neither a layer, nor an update, nor waiting: the loss, packing, Python.
        uses: in the order of the forward pass.
        code_factor: how many times as long as their wire says codes took, for all that shared the core; None where
            there were none.
        start_s, wake_s: until an engine without work began, and until the main thread went on after what it had waited
            for (``profiler.py``).
        forward_flops: of the forward pass of an iteration on one rank, a multiplication with an addition being two;
            None where nothing counts them.
    """

    model: Annotated[str, Meta(min_length=1)]
    device: str
    ranks: Count
    rank: Index
    batch: Count | None
    accumulate: Parts
    dtype: str
    wire: str
    schedule: str
    iterations: Count
    update_s_per_element: Seconds
    rest_s: Seconds
    uses: tuple[Use, ...]
    forward_flops: Flops | None = None
    code_factor: Seconds | None = None
    start_s: Seconds = 0.0
    wake_s: Seconds = 0.0

    @property
    def factored(self) -> bool:
        """Whether layers have factors."""
        return any(tensor.sides for use in self.uses for tensor in use.tensors)

    @property
    def passes_s(self) -> tuple[float, float]:
        return sum(use.forward_s for use in self.uses), sum(use.backward_s for use in self.uses)

    def scaled(self, forward_s: float | None = None, backward_s: float | None = None) -> "Profile":
        """The same layers on a machine whose passes take so long; ValueError if one takes no time, and is to take some.

        A backward pass that is not given is scaled as the forward pass is; so are updates, codes and the rest.
        """
        old, new = self.passes_s, both_passes(forward_s, backward_s, self.passes_s)
        if any(to and not of for of, to in zip(old, new, strict=True)):
            raise ValueError(f"profile of {self.model!r} has a pass that takes no time, which cannot be scaled")
        ahead, back = (to / of if of else 1.0 for of, to in zip(old, new, strict=True))
        update_s, rest_s = ahead * self.update_s_per_element, ahead * self.rest_s
        code_factor = None if self.code_factor is None else ahead * self.code_factor

        def scaled_use(use: Use) -> Use:
            back_s, weights_s = back * use.backward_s, back * use.weights_s
            return replace(use, forward_s=ahead * use.forward_s, backward_s=back_s, weights_s=weights_s)

        uses = tuple(map(scaled_use, self.uses))
        return replace(self, update_s_per_element=update_s, rest_s=rest_s, code_factor=code_factor, uses=uses)

    def costs(self, parts: int | None = None) -> Costs:
        """Layers, updates and the rest; a batch is split into so many parts, or as it was."""
        parts = parts or self.accumulate
        return Costs(
            forward_s=[use.forward_s / parts for use in self.uses],
            backward_s=[use.backward_s / parts for use in self.uses],
            weights_s={at: use.weights_s / parts for at, use in enumerate(self.uses) if use.weights_s},
            exchange_s={at: use.exchange_s / (2 * parts) for at, use in enumerate(self.uses) if use.exchange_s},
            parts=parts,
            update_s=self.update_s_per_element,
            rest_s=self.rest_s,
            code_factor=1.0 if self.code_factor is None else self.code_factor,
            start_s=self.start_s,
            wake_s=self.wake_s,
        )

    def __str__(self) -> str:
        batch = "" if self.batch is None else f", batch {self.batch}"
        return f"profile of {self.model} on {self.device}, {plural(self.ranks, 'rank')}{batch}, {self.schedule}"

    def write(self, path: Path) -> None:
        """ValueError if it cannot be written."""
        with replacing("--profile", path) as file:
            file.write_text(json.dumps(asdict(self), indent=1) + "\n", "utf-8")

    def check(self) -> None:
        """See that what was read has a meaning, beyond the types of its values; else ValueError."""
        for text in (self.model, self.schedule, *(use.name for use in self.uses)):
            if not text.isprintable():
                raise ValueError(f"names must be printable, not {text!r:.200}")
        lookup("device", self.device, dict.fromkeys(("cpu", "cuda")))
        lookup("dtype", self.dtype, DTYPES)
        find_code(self.wire) if is_code(self.wire) else lookup("wire", self.wire, DTYPES)
        if not is_in_file(self.schedule):
            lookup("schedule", self.schedule.partition(":")[0], SCHEDULES | ROUNDS)
        if self.rank >= self.ranks:
            raise ValueError(f"rank must be below ranks, {self.ranks}, not {self.rank}")
        shapes: dict[int, tuple[int, ...]] = {}
        for tensor in (tensor for use in self.uses for tensor in use.tensors):
            if shapes.setdefault(tensor.key, tensor.shape) != tensor.shape:
                both = f"{shapes[tensor.key]} and {tensor.shape}"
                raise ValueError(f"tensors of key {tensor.key} must have one shape, not {both}")
            sides = tensor.sides
            if sides and (min(sides.inputs, sides.outputs) < 1 or tensor.shape != (sides.elements,)):
                raise ValueError(f"sides must be above zero, of {sides.elements} elements, not those of {tensor}")
        if any(use.weights_s > use.backward_s for use in self.uses):
            raise ValueError("weights_s must be a part of backward_s, and is more in some use")
        if not any(map(all, shapes.values())):  # none of its lengths is 0
            raise ValueError("uses must be a list in which some use has tensors")


def read_profile(path: Path) -> Profile:
    """The profile in a file; other keys in it are ignored. ValueError if something is missing or has no meaning."""
    with reading("profile", path, "dear-mpi train --profile") as content:
        found = convert(content, Profile)
        found.check()
    return found
