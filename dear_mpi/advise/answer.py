"""What a script would take on so many ranks and a network: under DDP as it is, and under our schedules.

The predictor is that of ``simulate``. Of each of our schedules the fusion counts that is predicted to be fastest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dear_mpi.advise.observation import Observation
from dear_mpi.simulate.gains import FUSIONS, seconds_of
from dear_mpi.simulate.settings import Settings
from dear_mpi.simulate.sweep import Simulated, simulate
from dear_mpi.training.profiles.profile import Profile
from dear_mpi.training.schedules import Schedule

OURS = ("dear", "dear-eager")
CODE = "int8"
PAYS = 0.01  # of an iteration: a code that gains less does not pay
SLOWEST, FASTEST, HALVINGS = 1e6, 1e13, 9  # bits per second, between which it is looked for where a code pays


@dataclass(frozen=True)
class Row:
    """A line of the answer.

    Attributes:
        iteration_s: of DDP where each part of a batch is sent, the sum over the parts.
    """

    name: str
    simulated: Simulated
    iteration_s: float


@dataclass(frozen=True)
class Answer:
    """On one number of ranks.

    Attributes:
        ddp: as the script has it, or as PyTorch's defaults would be.
        unsynced: DDP with ``no_sync``, where the script does without.
        ours: the fastest of each of our schedules, the fastest first.
        coded: the fastest of ours with the code on the wire.
        twice_s: the fastest of ours, with twice the bandwidth.
        pays_below: bits per second below which the code pays, whatever the bandwidth of the network is; 0 where it
            never does, infinity where it does so up to all that was tried.
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
        """Of an all-reduce of all gradients by itself, in DDP's buckets."""
        return sum(self.ddp.simulated.base.network_s.values())


def answer(
    observation: Observation, settings: Settings, progress: Callable[[str], object] = lambda note: None
) -> list[Answer]:
    """For each number of ranks of the settings, whose profile is the observation's.

    Raises:
        ValueError: as for ``simulate``.
    """
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
    """DDP's buckets, as the script asks for them."""
    wrapped = observation.observed.wrapped
    return "ddp" if wrapped is None or wrapped.bucket_bytes is None else f"ddp:{wrapped.bucket_bytes}B"


def of_ddp(settings: Settings, observation: Observation) -> Row:
    """As the script has it: where it accumulates without ``no_sync``, each part is an iteration without an update."""
    wrapped, policy, profile = observation.observed.wrapped, bucket_policy(observation), settings.profile
    if profile is None or profile.accumulate == 1 or wrapped is None or not wrapped.synced:
        return row("DDP", one(settings, "ddp", policy))
    parts = profile.accumulate
    found = one(replace(settings, profile=part_of(profile)), "ddp", policy)
    update_s = found.prediction.update_s
    return Row("DDP, each part sent", found, parts * (found.prediction.iteration_s - update_s) + update_s)


def part_of(profile: Profile) -> Profile:
    """One part of a batch that is accumulated."""
    parts = profile.accumulate
    uses = tuple(
        replace(use, forward_s=use.forward_s / parts, backward_s=use.backward_s / parts) for use in profile.uses
    )
    return replace(profile, uses=uses, rest_s=profile.rest_s / parts, accumulate=1)


def rewired_s(row: Row, factor: float) -> float:
    """Seconds of an iteration where each byte takes so many times as long."""
    scenario, case = row.simulated.scenario, case_of(row.simulated)
    return seconds_of(scenario.rewired(beta=factor), *case)


def case_of(simulated: Simulated) -> tuple[str, type[Schedule], str]:
    """Its schedule, by name and as a class, and its fusion."""
    name = str(simulated.row["schedule"])
    return name, simulated.scenario.settings.kinds[name], str(simulated.row["fusion"])


def bandwidth(simulated: Simulated) -> float:
    """Bits per second of a link, between hosts where there are two kinds; infinity where bytes cost nothing."""
    network = simulated.scenario.machine.network
    beta = (network.between or network).beta
    return 8 / beta if beta else math.inf


def pays_below(plain: Sequence[Simulated], coded: Sequence[Simulated]) -> float:
    """The bandwidth in bits per second below which the code pays, each with the buckets that are best there: by
    halving, from a slow network, where it pays, to a fast one."""
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
    """Seconds of the fastest of these rows of one scenario, where each byte takes so many times as long."""
    scenario = rows[0].scenario.rewired(beta=factor)
    return min(seconds_of(scenario, *case_of(each)) for each in rows)


def traced(rows: Sequence[Row]) -> list[Simulated]:
    """The same with the log of the last iterations, for a picture."""
    found = []
    for each in rows:
        prediction = each.simulated.scenario.predict(*case_of(each.simulated), traced=True)
        found.append(replace(each.simulated, prediction=prediction))
    return found
