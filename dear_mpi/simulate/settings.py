"""Declare the settings of a simulation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product
from pathlib import Path

from dear_mpi.kernels.optimizers import OPTIMIZERS, Optimizer
from dear_mpi.reporting.declared import BETWEEN, BETWEEN_ALGORITHMS, BETWEEN_FUSIONS, again, listed, option, several
from dear_mpi.reporting.units import check_distinct, check_seconds, parse_straggler, whole_number
from dear_mpi.simulate.network import MOST_RANKS, PRESETS
from dear_mpi.training.buckets.owners import MEASURED, Ownership, measured
from dear_mpi.training.choice import outliving, serve_halves, summed_as_asked
from dear_mpi.training.events.profile import Profile, read_profile
from dear_mpi.training.options import (
    ALL_OPTIMIZERS,
    FUSION_AS_GIVEN,
    FUSION_BY_SIZE,
    NAMES,
    SEVERAL,
    TABLES,
    Exchange,
    Training,
    Wire,
    check_wires,
    pairs,
)
from dear_mpi.training.routes.find import is_code
from dear_mpi.training.routes.route import Route
from dear_mpi.training.schedules import NAMES as NAMES_OF_SCHEDULES
from dear_mpi.training.schedules import Schedule, find_schedules

MOST_PARTS = 10**4
MODEL = "synthetic:resnet50"
NETWORK = (
    "Network: 10gbit,50us (bandwidth and latency of each rank's link), also with o=1us (processor time for a message) "
    "and gamma=0.1ns (for a byte that is summed); INSIDE/BETWEEN,hosts=N (or per_host=N), for links inside and between "
    f"hosts; FILE.json of dear-mpi bench or doctor; {', '.join(PRESETS)}; or one that an extra publishes, such as "
    "fattree:8x8,2,10gbit,50us."
)


def ranks_of(text: str) -> tuple[int, ...]:
    """Parse numbers of ranks; a range goes up by powers of 2. Raises ValueError.

    >>> ranks_of("4"), ranks_of("8:64,3:16")
    ((4,), (8, 16, 32, 64, 3, 6, 12, 16))
    """
    found: list[int] = []
    for item in listed("--ranks", text):
        low, colon, high = item.partition(":")
        first, last = whole_number(low), whole_number(high if colon else low)
        if not first or not last or last < first:
            allowed = "whole numbers of at least 1, or ranges that go up, as 8:64"
            raise ValueError(f"--ranks must be {allowed}, not {item!r}")
        if last > MOST_RANKS:
            raise ValueError(f"--ranks must be from 1 to {MOST_RANKS}, not {item:.40}")
        powers = (first << power for power in range((last // first).bit_length()))
        found += [*(each for each in powers if each < last), last]
    return tuple(found)


@dataclass(frozen=True, kw_only=True)
class Settings(Exchange):
    models: tuple[str, ...] = several(
        f"Model: synthetic:TABLE; TABLE is {TABLES}", (), flag="--model", shown=f"{MODEL}, or as in the profile"
    )
    ranks: tuple[int, ...] = option(
        "Number of ranks; several with commas; 8:64 doubles from 8 to 64.", (64,), typed=str, parse=ranks_of
    )
    network: str = option(NETWORK, "10gbit,50us", may_be_file=True)
    schedules: tuple[str, ...] = several(
        f"Schedules: {', '.join(NAMES_OF_SCHEDULES)}, or FILE.py:NAME", ("wfbp", "dear"), flag="--schedules"
    )
    fusions: tuple[str, ...] = several(
        f"{FUSION_BY_SIZE}; {FUSION_AS_GIVEN}", ("25MB",), flag="--fusion", between=BETWEEN_FUSIONS
    )
    algorithms: tuple[str, ...] = several(
        f"Collective algorithm: {NAMES}, or FILE.py:FUNCTION", ("ring",), flag="--algorithm", between=BETWEEN_ALGORITHMS
    )
    forward_s: float | None = option(
        "Seconds of the forward pass; a profile is scaled to it.",
        None,
        shown="0.1, or as in the profile",
        flag="--forward-time",
    )
    backward_s: float | None = option(
        "Seconds of the backward pass; a profile is scaled to it.",
        None,
        shown="twice the forward time, or in the ratio of the profile",
        flag="--backward-time",
    )
    profile: Profile | None = option(
        "FILE with measured seconds of layers, from dear-mpi train --profile FILE.",
        None,
        shown="none",
        metavar="FILE",
        typed=Path,
        parse=read_profile,
        may_be_file=True,
    )
    update_s: float | None = option(
        "Seconds of the optimiser for a million parameters.",
        None,
        shown="0, or as in the profile",
        flag="--update-time",
        parse=lambda seconds: check_seconds("update_time", seconds) * 1e-6,
    )
    wire: str | None = None  # of a single ``wires``
    wires: tuple[str, ...] = option(
        SEVERAL,
        (),
        shown="fp32, or as in the profile",
        flag="--wire",
        typed=str,
        parse=partial(listed, "--wire"),
        between=BETWEEN,
    )
    optimizer: str | None = option(
        f"Optimiser: {', '.join(OPTIMIZERS)}. If it looks at whole tensors, each has one owner, and updates take time "
        "in proportion to its costs.",
        None,
        shown="one that works by element",
        allowed=ALL_OPTIMIZERS,
    )
    accumulate: int | None = again(Training, "accumulate", None, shown="1, or as in the profile", most=MOST_PARTS)
    elastic: bool = option(
        "Train with --elastic: with sharded updates each rank also sends its shard's new optimizer state to the next.",
        False,
    )
    ranks_per_core: float = option(
        "Ranks that share a core: updates, codes, and layers that do not sleep take as many times as long.", 1.0
    )
    straggler: str | None = option(
        "A slow rank, and how many times as long it computes, e.g. 7:1.5.", None, shown="none"
    )

    @cached_property
    def chosen_route(self) -> Route:
        dtype, wire = self.types
        halves = dtype == (self.wire or wire) and max(self.ranks) > 1 and all(map(serve_halves, self.algorithms))
        return self.as_asked(self.find_route(halves=halves))

    @cached_property
    def kinds(self) -> dict[str, type[Schedule]]:
        return find_schedules(self.schedules)

    @cached_property
    def pairs(self) -> list[tuple[Wire, str]]:
        return pairs(self.asked_wires, self.kinds, implied=not (self.wires or self.wire))

    @property
    def asked_wires(self) -> tuple[Wire, ...]:
        """Return the wire formats, the baseline's first; default: the profile's compression."""
        code = self.profile.wire if self.profile and is_code(self.profile.wire) else None
        return self.wires or (self.wire or code,)

    def route_of(self, schedule: type[Schedule]) -> Route:
        own = schedule.own_route()
        return self.chosen_route if own is None else self.as_asked(own)

    def as_asked(self, route: Route) -> Route:
        dtype, _ = self.types
        route = outliving(route, dtype, self.chosen_optimizer) if self.elastic else route
        return summed_as_asked(self, route, dtype)

    @property
    def types(self) -> tuple[str, str]:
        dtype, wire = (self.profile.dtype, self.profile.wire) if self.profile else ("fp32", "fp32")
        return dtype, dtype if is_code(wire) else wire

    @property
    def wire_name(self) -> str:
        """Return the wire format of gradients: the chosen one, the route's, or the default."""
        return self.wire or self.chosen_route.wire or self.types[1]

    def ownership(self, ranks: int) -> Ownership:
        """Return who updates what; rank speeds are measured as the straggler implies."""
        weights = self.weights
        if weights == MEASURED:
            weights = measured(parse_straggler(self.straggler, ranks), [1] * ranks)
        return Ownership(self.chosen_optimizer, weights)

    @property
    def chosen_optimizer(self) -> Optimizer | None:
        return None if self.optimizer is None else ALL_OPTIMIZERS[self.optimizer]()  # type: ignore[call-arg]

    @property
    def scaled(self) -> Profile | None:
        given = (self.forward_s, self.backward_s)
        return self.profile if self.profile is None or given == (None, None) else self.profile.scaled(*given)

    def check(self) -> None:
        super().check()
        for name, seconds in (("forward_time", self.forward_s), ("backward_time", self.backward_s)):
            if seconds is not None:
                check_seconds(name, seconds)
        if not 1 <= self.ranks_per_core <= min(self.ranks):
            raise ValueError(f"--ranks-per-core must be from 1 to {min(self.ranks)} ranks, not {self.ranks_per_core:g}")
        for ranks in self.ranks:
            parse_straggler(self.straggler, ranks)
        for name in ("models", "ranks", "fusions", "algorithms"):
            check_distinct(name, getattr(self, name))
        check_wires(self.wires)

    def cases(self) -> Iterator[tuple[str, int, str, str, tuple[Wire, str]]]:
        """Yield model, ranks, algorithm, fusion, and wire format with schedule of each row."""
        return product(self.models, self.ranks, self.algorithms, self.fusions, self.pairs)
