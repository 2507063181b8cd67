"""What is simulated: what a user chooses, as far as it is text and numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product

from dear_mpi.reporting.units import check_distinct
from dear_mpi.simulate.compute import Compute, compute_of
from dear_mpi.simulate.contention import Contention
from dear_mpi.simulate.uneven import parse_jitter
from dear_mpi.training.fabric.loss_scale import is_judged
from dear_mpi.training.fusion.policies import in_bytes
from dear_mpi.training.profiles.profile import Profile
from dear_mpi.training.rehearse import serve_halves
from dear_mpi.training.routes.find import find_route, route_name
from dear_mpi.training.routes.route import Route

NOISY_ITERATIONS = 20


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is simulated.

    Attributes:
        models: ``synthetic:NAME`` each, or the model of the profile.
        network: see ``read_network``.
        fusions: policies of ``borders``.
        forward_s, backward_s, flops_per_s, batch, profile: where the seconds of compute come from, see ``compute_of``.
        update, route_name: see ``Options``.
        clip, loss_scale: whether all gradients are looked at before any of them is used; see ``Options``.
        accumulate: into how many parts a batch is split; the profile's, or 1, if it is not given.
        wire: the type in which gradients travel; the profile's, or fp32, if it is not given.
        update_s: seconds of an update for each element; the profile's, or none, if they are not given.
        contention: what messages and updates do to each other; what the network's file says, if it is not given.
        straggler, jitter: see ``uneven.py``, as text.
        iterations: how many count; 1, or 20 where there is jitter, if it is not given.
    """

    models: tuple[str, ...]
    ranks: tuple[int, ...]
    network: str
    schedules: tuple[str, ...]
    fusions: tuple[str, ...]
    algorithms: tuple[str, ...] = ("ring",)
    forward_s: float | None = None
    backward_s: float | None = None
    flops_per_s: float | None = None
    batch: int | None = None
    profile: Profile | None = None
    wire: str | None = None
    update: str | None = None
    route_name: str | None = None
    clip: float | None = None
    loss_scale: str = "none"
    accumulate: int | None = None
    update_s: float | None = None
    contention: Contention | None = None
    straggler: str | None = None
    jitter: str = "0%"
    iterations: int | None = None
    seed: int = 0

    @property
    def compute(self) -> Compute:
        """Where the seconds of compute come from; ValueError if several sources were chosen."""
        names = ("forward_s", "backward_s", "flops_per_s", "batch", "profile")
        return compute_of(**{name: getattr(self, name) for name in names})

    @cached_property
    def route(self) -> Route:
        """What buckets go through.

        Raises:
            ValueError: there is no such route, or it does not train.
        """
        usual = ("fp32", "fp32") if self.profile is None else (self.profile.dtype, self.profile.wire)
        dtype, wire = usual[0], self.wire or usual[1]
        halves = dtype == wire and max(self.ranks) > 1 and all(map(serve_halves, self.algorithms))
        return find_route(route_name(self.update, self.route_name), halves=halves)

    @property
    def judged(self) -> bool:
        """Whether all gradients are looked at before any of them is used."""
        return is_judged(self.clip, self.loss_scale)

    @property
    def counted(self) -> int:
        """How many iterations count: without jitter all are alike."""
        usual = NOISY_ITERATIONS if parse_jitter(self.jitter) else 1
        return usual if self.iterations is None else self.iterations

    def check(self) -> None:
        """See that no row would be there twice, and that some iteration counts.

        Raises:
            ValueError: it is not so.
        """
        check_distinct("models", self.models)
        check_distinct("ranks", self.ranks)
        check_distinct("fusions", self.fusions, in_bytes)
        check_distinct("algorithms", self.algorithms)
        if self.counted < 1:
            raise ValueError(f"iterations must be at least 1, not {self.iterations}")

    def cases(self) -> Iterator[tuple[str, int, str, str, str]]:
        """Model, ranks, algorithm, fusion and schedule of each row."""
        return product(self.models, self.ranks, self.algorithms, self.fusions, self.schedules)
