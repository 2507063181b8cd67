"""A measured profile: which tensors each use of a layer trains, and how long it takes. As JSON:

    {"model": "mlp", "device": "cpu", "ranks": 2, "rank": 1, "batch": 32, "accumulate": 1, "dtype": "fp32",
     "wire": "fp32", "schedule": "sequential", "iterations": 297, "update_s_per_element": 1.5e-09, "rest_s": 0.0003,
     "forward_flops": null,
     "uses": [{"name": "dense0", "tensors": [{"key": 0, "shape": [64, 128]}, {"key": 1, "shape": [128]}],
               "forward_s": 2.1e-05, "backward_s": 4.4e-05}, ...]}                              in forward order

Tensors of one key are one and the same. ``profiler.py`` makes a profile; ``read.py`` reads it for ``dear-mpi
simulate --profile``, and ``dear_mpi/models/paper_models.py`` for ``--model synthetic:FILE.json``.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from dear_mpi.models.paper_models import both_passes
from dear_mpi.reporting.files import replacing
from dear_mpi.reporting.units import plural


@dataclass(frozen=True)
class Tensor:
    """A trained tensor; tied ones have one key."""

    key: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Use:
    """A use of a layer, and the seconds that it takes in an iteration."""

    name: str
    tensors: tuple[Tensor, ...]
    forward_s: float
    backward_s: float


@dataclass(frozen=True, kw_only=True)
class Profile:
    """What a run measured. All seconds are of one rank, and means over iterations, so that they add up.

    Attributes:
        rank: the rank of these seconds: the one that was busy longest, for which the others wait.
        batch: examples of an iteration, of the whole job; None where there are no data.
        accumulate: in how many parts the batch passed; seconds are the sum over parts.
        dtype, wire: the types of the parameters, and of gradients on their way.
        schedule: of the run; under another one than ``sequential`` communication went on beside compute.
        iterations: how many were measured, without the first ones; half of them count (``profiler.py``).
        update_s_per_element: of the optimiser.
        rest_s: of an iteration, for what is neither a layer, nor an update, nor waiting: the loss, packing, Python.
        uses: in the order of the forward pass.
        forward_flops: of the forward pass of an iteration on one rank, a multiplication with an addition being two;
            None where nothing counts them.
    """

    model: str
    device: str
    ranks: int
    rank: int
    batch: int | None
    accumulate: int
    dtype: str
    wire: str
    schedule: str
    iterations: int
    update_s_per_element: float
    rest_s: float
    uses: tuple[Use, ...]
    forward_flops: float | None = None

    @property
    def passes_s(self) -> tuple[float, float]:
        """The forward and the backward pass."""
        return sum(use.forward_s for use in self.uses), sum(use.backward_s for use in self.uses)

    def scaled(self, forward_s: float | None = None, backward_s: float | None = None) -> Profile:
        """The same layers on a machine whose passes take so long.

        A backward pass that is not given is scaled as the forward pass is; so are updates and the rest.

        Raises:
            ValueError: a pass takes no time, and is to take some.
        """
        old, new = self.passes_s, both_passes(forward_s, backward_s, self.passes_s)
        if any(to and not of for of, to in zip(old, new, strict=True)):
            raise ValueError(f"profile of {self.model!r} has a pass that takes no time, which cannot be scaled")
        ahead, back = (to / of if of else 1.0 for of, to in zip(old, new, strict=True))
        return replace(
            self,
            update_s_per_element=ahead * self.update_s_per_element,
            rest_s=ahead * self.rest_s,
            uses=tuple(
                replace(use, forward_s=ahead * use.forward_s, backward_s=back * use.backward_s) for use in self.uses
            ),
        )

    def __str__(self) -> str:
        batch = "" if self.batch is None else f", batch {self.batch}"
        return f"profile of {self.model} on {self.device}, {plural(self.ranks, 'rank')}{batch}, {self.schedule}"

    def write(self, path: Path) -> None:
        """Write it to a file.

        Raises:
            ValueError: it cannot be written.
        """
        with replacing("--profile", path) as file:
            file.write_text(json.dumps(asdict(self), indent=1) + "\n", "utf-8")
