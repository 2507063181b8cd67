"""Choose the source of compute times.

The seconds of all layers together are given, or come from FLOPs at a rate, or from a measured profile. A profile can be
scaled to given seconds or to a rate. By default the passes take 0.1 and 0.2 seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dear_mpi.models.synthetic import Module, both_passes, load_batch, load_modules, measured_seconds
from dear_mpi.reporting.units import check_seconds
from dear_mpi.simulate.model import Model, has_companions, measured_model, synthetic_model
from dear_mpi.simulate.settings import Settings
from dear_mpi.training.fabric.costs import Costs
from dear_mpi.training.profiles.profile import Profile

SYNTHETIC = "synthetic"  # models with sleeping layers


def model_of(settings: Settings, name: str, ranks: int) -> Model:
    """Return the named model on this number of ranks.

    Raises:
        ValueError: there is no such model or type, or the given compute times have no meaning for it.
    """
    profile, parts = profile_of(settings), settings.accumulate
    how: dict[str, Any] = {"ranks": ranks, "wire": settings.line_type_name, "ownership": settings.ownership(ranks)}
    if profile is None:
        modules = modules_of(name, settings.batch)
        forward_s, backward_s = passes_s(settings, name, modules)
        how |= {"forward_s": forward_s, "backward_s": backward_s}
        model = synthetic_model(name, modules, parts=parts or 1, **how)
    elif name == profile.model:
        model = measured_model(profile, parts=parts, whole=settings.chosen_route.whole, **how)
    else:
        raise ValueError(f"profile of another model: it is of {profile.model!r}, not of {name!r}")
    costs = model.costs if settings.update_s is None else replace(model.costs, update_s=settings.update_s)
    return replace(model, costs=crowded(costs, settings.ranks_per_core, asleep=is_synthetic(name)))


def crowded(costs: Costs, ranks: float, *, asleep: bool) -> Costs:
    """Scale compute times for ranks that share a core: they take turns, and all wait for the last.

    Args:
        asleep: whether layers need no core.
    """
    longer: dict[str, Any] = {
        name: ranks * getattr(costs, name) for name in ("rest_s", "code_factor", "start_s", "wake_s")
    }
    if not asleep:
        longer |= {name: [ranks * each for each in getattr(costs, name)] for name in ("forward_s", "backward_s")}
        longer["weights_s"] = {use: ranks * each for use, each in costs.weights_s.items()}
    return replace(costs, ranks_per_core=ranks, **longer)


def profile_of(settings: Settings) -> Profile | None:
    """Return the profile, scaled to the other settings."""
    profile, rate = settings.profile, settings.flops_per_s
    if profile is None or not is_scaled(settings):
        return profile
    forward_s = settings.forward_s if rate is None else forward_at(profile, rate, settings.batch)
    return profile.scaled(forward_s, settings.backward_s)


def is_scaled(settings: Settings) -> bool:
    return any(each is not None for each in (settings.forward_s, settings.backward_s, settings.flops_per_s))


def forward_at(profile: Profile, flops_per_s: float, batch: int | None) -> float:
    """Return the seconds of the forward pass at a rate, with ``batch`` examples per rank."""
    if profile.forward_flops is None:
        raise ValueError(f"--rate: the profile of {profile.model!r} has no FLOPs (forward_flops): give --forward-time")
    if batch is not None and profile.batch is None:
        raise ValueError(f"--batch: the profile of {profile.model!r} has no batch")
    share = 1.0 if batch is None or profile.batch is None else batch * profile.ranks / profile.batch
    return check_seconds("--rate: forward_time", profile.forward_flops * share / flops_per_s)


def passes_s(settings: Settings, name: str, modules: Sequence[Module]) -> tuple[float, float]:
    """Return the seconds of both passes of a synthetic model."""
    if settings.flops_per_s is None:
        return both_passes(settings.forward_s, settings.backward_s)
    flops = sum(module.flops for module in modules)
    if not flops:
        raise ValueError(f"model {name!r} has no FLOPs (fwd_flops): a rate cannot give its time")
    forward_s = check_seconds(f"model {name!r} at this rate: forward_time", flops / settings.flops_per_s)
    return both_passes(forward_s, settings.backward_s)


def modules_of(name: str, batch: int | None) -> list[Module]:
    """Return the modules of a synthetic model for a batch, except a profile: there ``simulate`` needs tied tensors and
    FLOPs."""
    table = table_of(name)
    modules = load_modules(table)
    if measured_seconds(modules) is not None:
        raise ValueError(f"model {name!r} is a profile: give it as --profile {table}")
    share = 1.0 if batch is None else batch / load_batch(table)
    return [replace(module, flops=share * module.flops, rows=share * module.rows) for module in modules]


def table_of(name: str) -> str:
    """Return the name after ``synthetic:``."""
    if not is_synthetic(name):
        others = "others need a profile (--profile FILE, from dear-mpi train)"
        raise ValueError(f"simulate takes synthetic models, as synthetic:resnet50, not {name!r}: {others}")
    return name.partition(":")[2]


def is_synthetic(name: str) -> bool:
    return name.partition(":")[0] == SYNTHETIC


def update_origin(settings: Settings) -> str:
    """Name the source of update times, in a word or two."""
    said = settings.profile is not None or (settings.optimizer is not None and has_companions(settings.ownership(1)))
    return compute_text(settings)[1] if settings.update_s is None and said else "given"


def compute_text(settings: Settings) -> tuple[str, str]:
    """Describe a row's compute times, and their source in a word or two."""
    profile, rate, batch, given_s = profile_of(settings), settings.flops_per_s, settings.batch, settings.backward_s
    if profile is not None:
        scaled = ", scaled to {:.4g} s forward and {:.4g} s backward".format(*profile.passes_s)
        return (f"{profile}{scaled}", "measured, scaled") if is_scaled(settings) else (str(profile), "measured")
    if rate is None:
        return "{:g} s forward and {:g} s backward".format(*both_passes(settings.forward_s, given_s)), "given"
    examples = "the batch of its table" if batch is None else f"batch {batch}"
    text, origin = f"{rate / 1e12:g} TFLOPS and {examples} on each rank", "predicted"
    return (text, origin) if given_s is None else (f"{text}, and {given_s:g} s backward", f"{origin}, backward given")
