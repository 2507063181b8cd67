"""Where the seconds of compute come from: given for all layers together, FLOPs at a rate, or measured in a run.

A profile may be scaled to what is given, or to a rate. If nothing is given, the passes take 0.1 and 0.2 seconds.
"""

from __future__ import annotations

from collections.abc import Sequence

from dear_mpi.models.paper_models import Module, both_passes, load_batch, load_modules, measured_seconds
from dear_mpi.reporting.units import check_seconds
from dear_mpi.simulate.model import Model, measured_model, synthetic_model
from dear_mpi.simulate.settings import Settings
from dear_mpi.training.profiles.profile import Profile


def model_of(settings: Settings, name: str, ranks: int) -> Model:
    """The model of this name, on so many ranks.

    Raises:
        ValueError: there is none, no such type, or what was given of its seconds has no meaning for it.
    """
    profile, wire, parts = measured(settings), settings.line_type_name, settings.accumulate
    if profile is None:
        modules = modules_of(name)
        forward_s, backward_s = passes_s(settings, name, modules)
        passes = {"forward_s": forward_s, "backward_s": backward_s}
        return synthetic_model(name, modules, ranks=ranks, wire=wire, parts=parts or 1, **passes)
    if name != profile.model:
        raise ValueError(f"profile of another model: it is of {profile.model!r}, not of {name!r}")
    return measured_model(profile, ranks=ranks, wire=wire, parts=parts)


def measured(settings: Settings) -> Profile | None:
    """The profile, scaled to what else was given."""
    profile, rate = settings.profile, settings.flops_per_s
    if profile is None or not is_scaled(settings):
        return profile
    forward_s = settings.forward_s if rate is None else forward_at(profile, rate, settings.batch)
    return profile.scaled(forward_s, settings.backward_s)


def is_scaled(settings: Settings) -> bool:
    return any(each is not None for each in (settings.forward_s, settings.backward_s, settings.flops_per_s))


def forward_at(profile: Profile, flops_per_s: float, batch: int | None) -> float:
    """Seconds of the forward pass at a rate, with a batch of so many examples on each rank."""
    if profile.forward_flops is None:
        raise ValueError(f"--rate: the profile of {profile.model!r} has no FLOPs (forward_flops): give --forward-time")
    if batch is not None and profile.batch is None:
        raise ValueError(f"--batch: the profile of {profile.model!r} has no batch")
    share = 1.0 if batch is None or profile.batch is None else batch * profile.ranks / profile.batch
    return check_seconds("--rate: forward_time", profile.forward_flops * share / flops_per_s)


def passes_s(settings: Settings, name: str, modules: Sequence[Module]) -> tuple[float, float]:
    """Seconds of both passes of a synthetic model."""
    if settings.flops_per_s is None:
        return both_passes(settings.forward_s, settings.backward_s)
    flops = sum(module.flops for module in modules)
    if not flops:
        raise ValueError(f"model {name!r} has no FLOPs (fwd_flops), to which a rate would give time")
    if settings.batch is not None:
        flops *= settings.batch / load_batch(table_of(name))
    forward_s = check_seconds(f"model {name!r} at this rate: forward_time", flops / settings.flops_per_s)
    return both_passes(forward_s, settings.backward_s)


def modules_of(name: str) -> list[Module]:
    """The modules of a synthetic model. A profile is none: from that ``simulate`` also takes tied tensors and FLOPs."""
    table = table_of(name)
    modules = load_modules(table)
    if measured_seconds(modules) is not None:
        raise ValueError(f"model {name!r} is a profile: give it as --profile {table}")
    return modules


def table_of(name: str) -> str:
    """What follows ``synthetic:``."""
    kind, _, table = name.partition(":")
    if kind != "synthetic":
        others = "others need a profile (--profile FILE, from dear-mpi train)"
        raise ValueError(f"simulate takes synthetic models, as synthetic:resnet50, not {name!r}: {others}")
    return table


def text_of(settings: Settings) -> str:
    """What a row says of the seconds of compute."""
    profile, rate, batch = measured(settings), settings.flops_per_s, settings.batch
    if profile is not None:
        scaled = ", scaled to {:.4g} s forward and {:.4g} s backward".format(*profile.passes_s)
        return f"{profile}{scaled * is_scaled(settings)}"
    if rate is None:
        return "{:g} s forward and {:g} s backward".format(*both_passes(settings.forward_s, settings.backward_s))
    examples = "the batch of its table" if batch is None else f"batch {batch}"
    backward = "" if settings.backward_s is None else f", and {settings.backward_s:g} s backward"
    return f"{rate / 1e12:g} TFLOPS and {examples} on each rank{backward}"


def origin_of(settings: Settings) -> str:
    """Where they come from, in a word or two."""
    if settings.profile is not None:
        return "measured, scaled" if is_scaled(settings) else "measured"
    if settings.flops_per_s is None:
        return "given"
    return "predicted" if settings.backward_s is None else "predicted, backward given"
