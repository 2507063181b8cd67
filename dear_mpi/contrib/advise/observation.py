"""Hold an observed script: as JSON a profile for ``simulate``, with ``Observed`` under the key ``observed``."""

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from msgspec import convert

from dear_mpi.collectives.program.json_file import reading
from dear_mpi.contrib.advise.observed import Wrapped
from dear_mpi.reporting.files import replacing
from dear_mpi.training.events.profile import Profile, Seconds

KEY = "observed"


@dataclass(frozen=True, kw_only=True)
class Observed:
    """Attributes:
    iteration_s: the median of unwatched iterations.
    low_s, high_s: their quartiles.
    watched_s: the median of watched iterations, including the hooks.
    before_s, loss_s, after_s: the parts of the profile's rest: before the forward pass (data, zeroed gradients),
        between both passes, after the backward pass without the optimiser.
    wrapped: DDP's settings, if the script uses it.
    threads: of PyTorch.
    notes: facts that could not be observed.
    """

    iteration_s: Seconds
    low_s: Seconds
    high_s: Seconds
    watched_s: Seconds
    before_s: Seconds
    loss_s: Seconds
    after_s: Seconds
    wrapped: Wrapped | None
    threads: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Kept:
    observed: Observed


@dataclass(frozen=True)
class Observation:
    profile: Profile
    observed: Observed

    @property
    def sum_s(self) -> float:
        return sum(self.profile.passes_s) + self.update_s + self.profile.rest_s

    @property
    def update_s(self) -> float:
        return self.profile.update_s_per_element * elements(self.profile)

    def write(self, path: Path) -> None:
        content: dict[str, Any] = asdict(self.profile) | {KEY: asdict(self.observed)}
        with replacing("--save", path) as file:
            file.write_text(json.dumps(content, indent=1) + "\n", "utf-8")


def elements(profile: Profile) -> int:
    shapes = {tensor.key: tensor.shape for use in profile.uses for tensor in use.tensors}
    return sum(map(math.prod, shapes.values()))


def read_observation(path: Path) -> Observation:
    """Read a file from ``--save``. Raises ValueError if it is incomplete or meaningless."""
    with reading("observation", path, "dear-mpi advise --save") as content:
        profile = convert(content, Profile)
        profile.check()
        return Observation(profile, convert(content, Kept).observed)
