"""Where the seconds of compute come from: given for all layers together, FLOPs at a rate, or measured in a run.

Each of the three has a row's ``compute`` as its text, and its ``compute_origin``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from dear_mpi.models.paper_models import Module, both_passes, load_batch, load_modules, measured_seconds
from dear_mpi.reporting.units import check_seconds
from dear_mpi.simulate.model import Model, measured_model, synthetic_model
from dear_mpi.training.profiles.profile import Profile

MOST_BATCH = 10**9


class Compute(Protocol):
    """Makes models whose layers take time."""

    @property
    def origin(self) -> str:
        """``given``, ``predicted`` (perhaps with the backward pass given), or ``measured`` (perhaps scaled)."""

    def model(self, name: str, *, ranks: int, wire: str | None, parts: int | None = None) -> Model:
        """The model of this name; type of gradients and parts of a batch are the usual ones if they are None.

        Raises:
            ValueError: it has no such model, or there is no such type.
        """


@dataclass(frozen=True)
class Given:
    """Seconds of both passes, which layers share in proportion to their FLOPs."""

    forward_s: float
    backward_s: float
    origin: ClassVar[str] = "given"

    def __str__(self) -> str:
        return f"{self.forward_s:g} s forward and {self.backward_s:g} s backward"

    def model(self, name: str, *, ranks: int, wire: str | None, parts: int | None = None) -> Model:
        times = {"forward_s": self.forward_s, "backward_s": self.backward_s}
        return synthetic_model(name, modules_of(name), ranks=ranks, wire=wire or "fp32", parts=parts or 1, **times)


@dataclass(frozen=True)
class AtRate:
    """The FLOPs of each layer at one rate; backward takes twice the time unless it is given.

    Attributes:
        flops_per_s: the rate.
        batch: of a rank; the batch of the model's table if it is None.
    """

    flops_per_s: float
    batch: int | None = None
    backward_s: float | None = None

    @property
    def origin(self) -> str:
        return "predicted" if self.backward_s is None else "predicted, backward given"

    def __str__(self) -> str:
        batch = "the batch of its table" if self.batch is None else f"batch {self.batch}"
        backward = "" if self.backward_s is None else f", and {self.backward_s:g} s backward"
        return f"{self.flops_per_s / 1e12:g} TFLOPS and {batch} on each rank{backward}"

    def model(self, name: str, *, ranks: int, wire: str | None, parts: int | None = None) -> Model:
        modules = modules_of(name)
        flops = sum(module.flops for module in modules)
        if not flops:
            raise ValueError(f"model {name!r} has no FLOPs (fwd_flops), to which a rate would give time")
        if self.batch is not None:
            flops *= self.batch / load_batch(table_of(name))
        forward_s = check_seconds(f"model {name!r} at this rate: forward_time", flops / self.flops_per_s)
        backward_s = 2 * forward_s if self.backward_s is None else self.backward_s
        return Given(forward_s, backward_s).model(name, ranks=ranks, wire=wire, parts=parts)


@dataclass(frozen=True)
class Measured:
    """What a run has measured, perhaps with ``scale``, which says to what its seconds were scaled."""

    profile: Profile
    scale: str = ""

    @property
    def origin(self) -> str:
        return "measured, scaled" if self.scale else "measured"

    def __str__(self) -> str:
        return f"{self.profile}{self.scale}"

    def model(self, name: str, *, ranks: int, wire: str | None, parts: int | None = None) -> Model:
        if name != self.profile.model:
            raise ValueError(f"profile of another model: it is of {self.profile.model!r}, not of {name!r}")
        return measured_model(self.profile, ranks=ranks, wire=wire or self.profile.wire, parts=parts)


def table_of(name: str) -> str:
    """What follows ``synthetic:``.

    Raises:
        ValueError: nothing does.
    """
    kind, _, table = name.partition(":")
    if kind != "synthetic":
        others = "others need a profile (--profile FILE, from dear-mpi train)"
        raise ValueError(f"simulate takes synthetic models, as synthetic:resnet50, not {name!r}: {others}")
    return table


def modules_of(name: str) -> list[Module]:
    """The modules of a synthetic model.

    Raises:
        ValueError: there is none, or its table is a profile, of which simulate also takes tied tensors and FLOPs.
    """
    table = table_of(name)
    modules = load_modules(table)
    if measured_seconds(modules) is not None:
        raise ValueError(f"model {name!r} is a profile: give it as --profile {table}")
    return modules


def compute_of(
    *,
    forward_s: float | None = None,
    backward_s: float | None = None,
    flops_per_s: float | None = None,
    batch: int | None = None,
    profile: Profile | None = None,
) -> Compute:
    """What was chosen; if nothing was, the passes take 0.1 and 0.2 seconds. A profile may be scaled.

    Raises:
        ValueError: several were, or a value has no meaning for it.
    """
    if forward_s is not None and flops_per_s is not None:
        raise ValueError("--forward-time and --rate contradict each other: give one of them, or none")
    if batch is not None and flops_per_s is None:
        raise ValueError("--batch needs --rate: it changes FLOPs, and not the seconds that are given or measured")
    if batch is not None and not 1 <= batch <= MOST_BATCH:
        raise ValueError(f"batch must be from 1 to {MOST_BATCH}, not {batch}")
    for what, seconds in (("forward_time", forward_s), ("backward_time", backward_s)):
        if seconds is not None:
            check_seconds(what, seconds)
    if profile is not None:
        return scaled(profile, forward_at(profile, flops_per_s, batch) if flops_per_s else forward_s, backward_s)
    if flops_per_s is not None:
        return AtRate(flops_per_s, batch, backward_s)
    return Given(*both_passes(forward_s, backward_s))


def scaled(profile: Profile, forward_s: float | None, backward_s: float | None) -> Measured:
    """A profile, its passes scaled to the seconds that are given.

    Raises:
        ValueError: a pass cannot be scaled.
    """
    if forward_s is None and backward_s is None:
        return Measured(profile)
    found = profile.scaled(forward_s, backward_s)
    passes = "{:.4g} s forward and {:.4g} s backward".format(*found.passes_s)
    return Measured(found, f", scaled to {passes}")


def forward_at(profile: Profile, flops_per_s: float, batch: int | None) -> float:
    """Seconds of the forward pass at a rate, with a batch of so many examples on each rank.

    Raises:
        ValueError: the profile says too little for that.
    """
    if profile.forward_flops is None:
        raise ValueError(f"--rate: the profile of {profile.model!r} has no FLOPs (forward_flops): give --forward-time")
    if batch is not None and profile.batch is None:
        raise ValueError(f"--batch: the profile of {profile.model!r} has no batch")
    share = 1.0 if batch is None or profile.batch is None else batch * profile.ranks / profile.batch
    return check_seconds("--rate: forward_time", profile.forward_flops * share / flops_per_s)
