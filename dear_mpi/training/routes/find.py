"""Our routes by name, and a user's from a file."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from dear_mpi.collectives.program.hosts import BETWEEN, INSIDE
from dear_mpi.collectives.program.user_file import is_in_file, load, source_of
from dear_mpi.kernels.lookup import lookup
from dear_mpi.training.routes.codes import Decode, Encode, Recall, Wire
from dear_mpi.training.routes.legs import (
    MAIN,
    Leg,
    Pack,
    Unpack,
    Update,
    all_gather,
    all_reduce,
    all_to_all,
    reduce_scatter,
)
from dear_mpi.training.routes.low_rank import Expand, Project
from dear_mpi.training.routes.noisy import AddNoise
from dear_mpi.training.routes.route import Route
from dear_mpi.training.routes.selected import Select, Selection, UpdateSelected
from dear_mpi.training.routes.sketched import INDEX, Fill, Join, Peel
from dear_mpi.training.wires.find import find_code, is_code
from dear_mpi.training.wires.low_rank import LEFT, RIGHT, LowRank
from dear_mpi.training.wires.noise import Noise
from dear_mpi.training.wires.sketch import Bits, Sketch

AUTO = "auto"
UPDATES = ("full", "sharded", AUTO)
MINE = "my_route"  # what messages call a user's
FULL = Route(
    "full",
    out=(Pack(), reduce_scatter("gradients")),
    back=(all_gather("gradients"), Update(on=MAIN), Unpack()),
)
# Each rank updates its shard, and keeps the optimiser's state of that alone. Values travel in their own type.
# Source: Rajbhandari et al., ZeRO, SC 2020, section 5.1; Xu et al., arXiv 2004.13336.
SHARDED = Route(
    "sharded",
    out=(Pack(), reduce_scatter("gradients")),
    back=(Update(shard=True), all_gather("values"), Unpack()),
)
ROUTES = {route.name: route for route in (FULL, SHARDED)}


def coded(name: str, wire: Wire, *, sharded: bool = False, error: str | None = "residual") -> Route:
    """A route on which gradients travel as codes, and each rank keeps what these have lost.

    Args:
        sharded: whether each rank updates its shard, and values are gathered in their own type; otherwise sums travel
            as codes, too.
        error: the line of what codes have lost; None to forget it.
    """
    codes: dict[str, Any] = {"wire": wire, "codes": "codes"}
    out = (Pack(), Encode(**codes, error=error), all_to_all("codes"), Decode(**codes, summed=True))
    back: tuple[Leg, ...] = (Update(shard=True), all_gather("values"), Unpack())
    if not sharded:
        sums = Encode(**codes, error=error, shard=True), all_gather("codes"), Decode(**codes)
        back = (*sums, Update(on=MAIN), Unpack())
    return Route(name, out, back)


def between(name: str, wire: Wire, *, sharded: bool = False, error: str | None = "residual") -> Route:
    """The same between hosts alone: inside them, gradients and sums travel as they are.

    First each rank adds its residual to its gradients: since buckets or hosts changed, the residual may lie in shards
    that the rank no longer serves.
    """
    codes: dict[str, Any] = {"wire": wire, "codes": "codes"}
    recall = (Recall(error=error),) if error else ()
    encode, decode = Encode(**codes, error=error, level=BETWEEN), Decode(**codes, summed=True, level=BETWEEN)
    exchange = reduce_scatter("gradients", level=INSIDE), encode, all_to_all("codes", level=BETWEEN), decode
    back: tuple[Leg, ...] = (Update(shard=True), all_gather("values"), Unpack())
    if not sharded:
        sums = Encode(**codes, error=error, shard=True), all_gather("codes", level=BETWEEN)
        gathered = Decode(**codes, level=BETWEEN), all_gather("gradients", level=INSIDE)
        back = (*sums, *gathered, Update(on=MAIN), Unpack())
    return Route(name, (Pack(), *recall, *exchange), back)


def selected(name: str, wire: Selection, *, sharded: bool = False, error: str | None = "residual") -> Route:
    """A route on which some gradients travel, and the others wait; ValueError for sharded updates."""
    if sharded:
        raise ValueError(f"update must be full: {name.partition(' over ')[2]} changes elements of all shards")
    codes: dict[str, Any] = {"wire": wire, "codes": "codes"}
    out = (Pack(), Select(**codes, error=error), reduce_scatter("codes"))
    return Route(name, out, (all_gather("codes"), UpdateSelected(**codes, on=MAIN), Unpack()))


def sketched(name: str, wire: Sketch, *, sharded: bool = False, error: str | None = "residual") -> Route:
    """A route on which counters travel where few elements are not zero, and elsewhere all gradients; nothing is left
    out, whatever ``error`` says. ValueError for sharded updates."""
    if sharded:
        raise ValueError(f"update must be full: {name.partition(' over ')[2]} has counters of elements of all shards")
    bits = Bits()
    index = Encode(wire=bits, codes=INDEX), all_to_all(INDEX), Join(wire=bits), all_gather(INDEX)
    sums = reduce_scatter("counters", fits=True), reduce_scatter("gradients", fits=False)
    gathered = all_gather("gradients", fits=False), all_gather("counters", fits=True), Peel(wire=wire, fits=True)
    return Route(name, (Pack(), *index, Fill(wire=wire), *sums), (*gathered, Update(on=MAIN), Unpack()))


def noisy(name: str, wire: Noise, *, sharded: bool = False, error: str | None = None) -> Route:
    """One of ours, on which sums are not exact; nothing is kept of that, whatever ``error`` says."""
    route = SHARDED if sharded else FULL
    return replace(route, name=name, out=(*route.out, AddNoise(wire=wire)))


def acp(name: str, wire: LowRank, *, sharded: bool = False, error: str | None = "residual") -> Route:
    """ACP-SGD: of each matrix one factor travels, and the other one in the next update."""
    codes: dict[str, Any] = {"wire": wire, "codes": "codes"}
    return expanded(name, (Project(**codes, error=error),), Expand(**codes), sharded=sharded, error=error)


def powersgd(name: str, wire: LowRank, *, sharded: bool = False, error: str | None = "residual") -> Route:
    """PowerSGD: one factor travels, and then the other one, which is made with the sum of the first."""
    first: dict[str, Any] = {"wire": wire, "codes": "first codes", "side": LEFT, "others": False}
    codes: dict[str, Any] = {"wire": wire, "codes": "codes", "side": RIGHT}
    project = Project(**first), all_reduce("first codes"), Project(**codes, given="first codes", error=error)
    return expanded(name, project, Expand(**codes), sharded=sharded, error=error)


def expanded(name: str, project: tuple[Leg, ...], expand: Expand, *, sharded: bool, error: str | None) -> Route:
    """A route on which matrices travel as factors; ValueError for sharded updates."""
    if sharded:
        raise ValueError(f"update must be full: {name.partition(' over ')[2]} gives all gradients to each rank")
    recall = (Recall(error=error),) if error else ()
    out = (Pack(), *recall, *project, reduce_scatter("codes"))
    return Route(name, out, (all_gather("codes"), expand, Update(on=MAIN), Unpack()))


def late(route: Route, after: int) -> Route:
    """A route whose codes begin in iteration ``after``, counted from 0: before that gradients travel as they are."""

    def begun(legs: tuple[Leg, ...]) -> tuple[Leg, ...]:
        kept = Pack, Update, Unpack
        return tuple(leg if isinstance(leg, kept) else replace(leg, first=after) for leg in legs)

    pack, *project = begun(route.out)
    out = (pack, reduce_scatter("gradients", until=after), *project)
    return replace(route, out=out, back=(all_gather("gradients", until=after), *begun(route.back)))


# By the ``legs`` of a wire.
LEGS: dict[str, Callable[..., Route]] = {
    "coded": coded,
    "between": between,
    "selected": selected,
    "acp": acp,
    "powersgd": powersgd,
    "noisy": noisy,
    "sketched": sketched,
}


def find_route(name: str, *, wire: str | None = None, halves: bool = False) -> Route:
    """The route of a name in ``ROUTES``, or of a user's file.

    Args:
        wire: in what gradients travel; codes have a route of their own, with full or with sharded updates.
        halves: whether there are several ranks, gradients travel in the parameters' type, and the algorithm has both
            halves of an all-reduce: then ``sharded`` has the bits of ``full``, and ``auto`` takes it.

    Raises:
        ValueError: there is none, or it is no ``Route``, or codes were chosen for a user's.
    """
    if is_code(wire):
        assert wire is not None
        if name not in UPDATES:
            raise ValueError(f"wire {wire!r} has a route of its own: leave out route {name!r}, or the wire")
        sharded, code = name == SHARDED.name, find_code(wire)
        error = "residual" if code.feedback else None
        title = f"{SHARDED.name if sharded else FULL.name} over {wire}"
        route = LEGS[code.legs](title, code.wire, sharded=sharded, error=error)
        return late(route, code.after) if code.after else route
    if name == AUTO:
        return SHARDED if halves else FULL
    if not is_in_file(name):
        return lookup("route", name, ROUTES)
    found = load(source_of(name, "route", MINE))
    if not isinstance(found, Route):
        raise ValueError(f"route {name!r} must be a Route of dear_mpi.training.routes, not {found!r:.99}")
    for what, legs in (("out", found.out), ("back", found.back)):
        if not isinstance(legs, tuple) or not all(isinstance(leg, Leg) for leg in legs):
            raise ValueError(f"route {name!r} must have a tuple of legs in {what}, not {legs!r:.99}")
    return found
