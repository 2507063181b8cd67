"""Predict a script's iteration on given ranks and a network: under its DDP, and our schedules at their best fusion."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dear_mpi.contrib.advise.observation import Observation
from dear_mpi.simulate.settings import Settings
from dear_mpi.simulate.sweep import FUSIONS, Simulated, seconds_of, simulate
from dear_mpi.training.events.profile import Profile
from dear_mpi.training.schedules import Schedule

OURS = ("dear", "dear-eager")
CODE = "int8"
PAYS = 0.01  # least gain of compression, of an iteration
SLOWEST, FASTEST, HALVINGS = 1e6, 1e13, 9  # bits per second


@dataclass(frozen=True)
class Row:
    """``iteration_s``: the sum over parts, if DDP sends each part of a batch."""

    name: str
    simulated: Simulated
    iteration_s: float


@dataclass(frozen=True)
class Answer:
    """Attributes:
    ddp: as in the script, or with PyTorch's defaults.
    unsynced: DDP with ``no_sync``, if the script does not use it.
    ours: the fastest row of each schedule, fastest first.
    coded: our fastest row with compression.
    twice_s: our fastest row with twice the bandwidth.
    pays_below: bits per second below which compression pays; 0: never, infinity: at all tried bandwidths.
    """

    observation: Observation
    ranks: int
    ddp: Row
    unsynced: Row | None
    ours: tuple[Row, ...]
    coded: Row
    twice_s: float
    pays_below: float

    @property
    def best(self) -> Row:
        return self.ours[0]

    @property
    def rows(self) -> list[Row]:
        return [each for each in (self.ddp, self.unsynced, *self.ours, self.coded) if each is not None]

    @property
    def reduce_s(self) -> float:
        """All-reduces of all gradients in DDP's buckets, without compute."""
        return sum(self.ddp.simulated.base.network_s.values())


def answer(
    observation: Observation, settings: Settings, progress: Callable[[str], object] = lambda note: None
) -> list[Answer]:
    """Answer for each number of ranks, with the observation's profile in ``settings``. ValueError: as ``simulate``."""
    return [of_ranks(observation, replace(settings, ranks=(ranks,)), progress) for ranks in settings.ranks]


def of_ranks(observation: Observation, settings: Settings, progress: Callable[[str], object]) -> Answer:
    wrapped = observation.observed.wrapped
    ddp = of_ddp(settings, observation)
    unsynced = None
    if wrapped is not None and wrapped.synced and observation.profile.accumulate > 1:
        unsynced = row("DDP with no_sync", one(settings, "ddp", bucket_policy(observation)))
    progress("DDP")
    found: list[Row] = []
    tried: list[list[Simulated]] = []
    for wire in (settings.wire_name, CODE):
        asked = replace(settings, schedules=OURS, fusions=FUSIONS, wires=(wire,))
        tried.append(simulate(asked))
        for schedule in OURS:
            best = min((each for each in tried[-1] if each.row["schedule"] == schedule), key=iteration_of)
            found.append(row(schedule if wire != CODE else f"{schedule}, {CODE}", best))
            progress(f"{schedule}, {wire}")
    ours = tuple(sorted(found[: len(OURS)], key=lambda each: each.iteration_s))
    coded = min(found[len(OURS) :], key=lambda each: each.iteration_s)
    twice_s = rewired_s(ours[0], 0.5)
    progress("twice the bandwidth")
    below = pays_below(*tried)
    progress(f"where {CODE} pays")
    return Answer(observation, settings.ranks[0], ddp, unsynced, ours, coded, twice_s, below)


def iteration_of(simulated: Simulated) -> float:
    return float(simulated.row["iteration_s"])


def row(name: str, simulated: Simulated) -> Row:
    return Row(name, simulated, iteration_of(simulated))


def one(settings: Settings, schedule: str, fusion: str) -> Simulated:
    (found,) = simulate(replace(settings, schedules=(schedule,), fusions=(fusion,)))
    return found


def bucket_policy(observation: Observation) -> str:
    wrapped = observation.observed.wrapped
    return "ddp" if wrapped is None or wrapped.bucket_bytes is None else f"ddp:{wrapped.bucket_bytes}B"


def of_ddp(settings: Settings, observation: Observation) -> Row:
    """With accumulation but without ``no_sync``, each part is an iteration without an update."""
    wrapped, policy, profile = observation.observed.wrapped, bucket_policy(observation), settings.profile
    if profile is None or profile.accumulate == 1 or wrapped is None or not wrapped.synced:
        return row("DDP", one(settings, "ddp", policy))
    parts = profile.accumulate
    found = one(replace(settings, profile=part_of(profile)), "ddp", policy)
    update_s = found.prediction.update_s
    return Row("DDP, each part sent", found, parts * (found.prediction.iteration_s - update_s) + update_s)


def part_of(profile: Profile) -> Profile:
    parts = profile.accumulate
    uses = tuple(
        replace(use, forward_s=use.forward_s / parts, backward_s=use.backward_s / parts) for use in profile.uses
    )
    return replace(profile, uses=uses, rest_s=profile.rest_s / parts, accumulate=1)


def rewired_s(row: Row, factor: float) -> float:
    """Seconds of an iteration if each byte takes ``factor`` times as long."""
    scenario, case = row.simulated.scenario, case_of(row.simulated)
    return seconds_of(scenario.rewired(beta=factor), *case)


def case_of(simulated: Simulated) -> tuple[str, type[Schedule], str]:
    name = str(simulated.row["schedule"])
    return name, simulated.scenario.settings.kinds[name], str(simulated.row["fusion"])


def bandwidth(simulated: Simulated) -> float:
    """A link's bits per second, between hosts if these differ; infinity if bytes cost nothing."""
    network = simulated.scenario.machine.network
    beta = (network.between or network).beta
    return 8 / beta if beta else math.inf


def pays_below(plain: Sequence[Simulated], coded: Sequence[Simulated]) -> float:
    """Bisect the bits per second below which compression pays, each side with its best buckets there."""
    now = bandwidth(plain[0])

    def pays(bits: float) -> bool:
        return least_s(coded, now / bits) < (1 - PAYS) * least_s(plain, now / bits)

    slow, fast = SLOWEST, FASTEST
    if math.isinf(now) or not pays(slow):
        return 0.0
    if pays(fast):
        return math.inf
    for _ in range(HALVINGS):
        middle = math.sqrt(slow * fast)
        slow, fast = (middle, fast) if pays(middle) else (slow, middle)
    return math.sqrt(slow * fast)


def least_s(rows: Sequence[Simulated], factor: float) -> float:
    """Seconds of the fastest row if each byte takes ``factor`` times as long."""
    scenario = rows[0].scenario.rewired(beta=factor)
    return min(seconds_of(scenario, *case_of(each)) for each in rows)


def traced(rows: Sequence[Row]) -> list[Simulated]:
    found = []
    for each in rows:
        prediction = each.simulated.scenario.predict(*case_of(each.simulated), traced=True)
        found.append(replace(each.simulated, prediction=prediction))
    return found
