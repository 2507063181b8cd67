"""Hold a measured profile: the tensors that each layer call trains, and its time. As JSON:

    {"model": "mlp", "device": "cpu", "ranks": 2, "rank": 1, "batch": 32, "accumulate": 1, "dtype": "fp32",
     "wire": "fp32", "schedule": "sequential", "iterations": 297, "update_s_per_element": 1.5e-09, "rest_s": 0.0003,
     "code_factor": null, "start_s": 0.0, "wake_s": 0.0,
     "uses": [{"name": "dense0", "tensors": [{"key": 0, "shape": [64, 128], "outputs": 1}, {"key": 1, "shape": [128]}],
               "forward_s": 2.1e-05, "backward_s": 4.4e-05}, ...]}                              in forward order

Equal keys mean one tied tensor. ``profiler.py`` makes a profile; ``dear-mpi simulate --profile`` reads it here, and
``--model synthetic:FILE.json`` in ``dear_mpi/models/synthetic.py``.
"""

import json
import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

from msgspec import Meta, convert

from dear_mpi.collectives.program.json_file import reading
from dear_mpi.collectives.program.user_file import is_in_file
from dear_mpi.kernels.dtypes import DTYPES
from dear_mpi.kernels.lookup import lookup
from dear_mpi.kernels.optimizers import Optimizer
from dear_mpi.models.synthetic import both_passes
from dear_mpi.reporting.files import replacing
from dear_mpi.reporting.units import MOST_SECONDS, plural
from dear_mpi.training.fabric.virtual import Costs
from dear_mpi.training.routes.find import find_code, is_code
from dear_mpi.training.schedules import ALL_SCHEDULES

Index = Annotated[int, Meta(ge=0)]
Count = Annotated[int, Meta(ge=1)]
Parts = Annotated[int, Meta(ge=1, le=1 << 24)]  # of a batch: each is simulated
Seconds = Annotated[float, Meta(ge=0, le=MOST_SECONDS)]


@dataclass(frozen=True)
class Tensor:
    """Describe a trained tensor; tied ones share a key. ``outputs``: see ``Parameter``.

    ``own_cost`` is an update's cost by the tensor's own optimiser, if any; see ``Optimizer.cost``.
    """

    key: Index
    shape: tuple[Index, ...]
    outputs: Index | None = 0
    own_cost: Count | None = None

    @property
    def seen(self) -> tuple[int, ...]:
        """Return the shape that optimisers of whole tensors see."""
        if self.outputs is None:
            return (math.prod(self.shape),)
        first = self.outputs if self.outputs < len(self.shape) else 0
        return (*self.shape[first : first + 1], *self.shape[:first], *self.shape[first + 1 :])

    def cost(self, optimizer: Optimizer) -> int:
        return optimizer.cost(self.seen) if self.own_cost is None else self.own_cost


@dataclass(frozen=True)
class Use:
    """Describe a layer call and its seconds per iteration."""

    name: str
    tensors: tuple[Tensor, ...]
    forward_s: Seconds
    backward_s: Seconds
    weights_s: Seconds = 0.0  # the part of backward_s in its second half
    exchange_s: Seconds = 0.0  # of its exchanges before both passes


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Hold measurements: seconds of one rank, means over iterations."""

    model: Annotated[str, Meta(min_length=1)]
    device: str
    ranks: Count
    rank: Index  # the busiest; the others wait for it
    batch: Count | None  # examples of the whole job; None without data
    accumulate: Parts  # parts of a batch, whose seconds add up
    dtype: str  # of the parameters
    wire: str  # of gradients
    schedule: str
    iterations: Count  # measured, without the first ones; half of them count
    update_s_per_element: Seconds
    rest_s: Seconds  # the loss, packing, Python
    uses: tuple[Use, ...]  # in forward order
    code_factor: Seconds | None = None  # measured over nominal time of compression
    start_s: Seconds = 0.0  # until an idle engine begins
    wake_s: Seconds = 0.0  # until a thread that waited continues

    @property
    def has_companions(self) -> bool:
        return any(tensor.own_cost is not None for use in self.uses for tensor in use.tensors)

    @property
    def passes_s(self) -> tuple[float, float]:
        return sum(use.forward_s for use in self.uses), sum(use.backward_s for use in self.uses)

    def scaled(self, forward_s: float | None = None, backward_s: float | None = None) -> "Profile":
        """Scale the layers to a machine whose passes take these seconds.

        The rest scales like the forward pass, also the backward pass without ``backward_s``. Raises ValueError if a
        pass took no time.
        """
        pairs = list(zip(self.passes_s, both_passes(forward_s, backward_s, self.passes_s), strict=True))
        if any(to and not of for of, to in pairs):
            raise ValueError(f"profile of {self.model!r} has a pass that takes no time, which cannot be scaled")
        ahead, back = (to / of if of else 1.0 for of, to in pairs)
        return replace(
            self,
            update_s_per_element=ahead * self.update_s_per_element,
            rest_s=ahead * self.rest_s,
            code_factor=None if self.code_factor is None else ahead * self.code_factor,
            uses=tuple(
                replace(
                    use,
                    forward_s=ahead * use.forward_s,
                    backward_s=back * use.backward_s,
                    weights_s=back * use.weights_s,
                )
                for use in self.uses
            ),
        )

    def costs(self, parts: int | None = None) -> Costs:
        """Return the costs of layers, updates and the rest."""
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
        with replacing("--profile", path) as file:
            file.write_text(json.dumps(asdict(self), indent=1) + "\n", "utf-8")

    def check(self) -> None:
        for text in (self.model, self.schedule, *(use.name for use in self.uses)):
            if not text.isprintable():
                raise ValueError(f"names must be printable, not {text!r:.200}")
        lookup("device", self.device, dict.fromkeys(("cpu", "cuda")))
        lookup("dtype", self.dtype, DTYPES)
        find_code(self.wire) if is_code(self.wire) else lookup("wire", self.wire, DTYPES)
        if not is_in_file(self.schedule):
            lookup("schedule", self.schedule.partition(":")[0], ALL_SCHEDULES)
        if self.rank >= self.ranks:
            raise ValueError(f"rank must be below ranks, {self.ranks}, not {self.rank}")
        shapes: dict[int, tuple[int, ...]] = {}
        for tensor in (tensor for use in self.uses for tensor in use.tensors):
            if (known := shapes.setdefault(tensor.key, tensor.shape)) != tensor.shape:
                raise ValueError(f"tensors of key {tensor.key} must have one shape, not {known} and {tensor.shape}")
        if any(use.weights_s > use.backward_s for use in self.uses):
            raise ValueError("weights_s must be a part of backward_s, and is more in some use")
        if not any(map(all, shapes.values())):  # none of its lengths is 0
            raise ValueError("uses must be a list, and some use must have tensors")


def read_profile(path: Path) -> Profile:
    """Read a profile; unknown keys are ignored. Raises ValueError."""
    with reading("profile", path, "dear-mpi train --profile") as content:
        found = convert(content, Profile)
        found.check()
    return found
