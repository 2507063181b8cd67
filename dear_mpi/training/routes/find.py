"""Our routes and wires by name; a user's route from a file, an extra's wire from its entry point."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from dear_mpi.collectives.program.extras import WithExtras, load_extra
from dear_mpi.collectives.program.hosts import BETWEEN, INSIDE
from dear_mpi.collectives.program.user_file import is_in_file, load, source_of
from dear_mpi.kernels.dtypes import DTYPES
from dear_mpi.kernels.lookup import lookup
from dear_mpi.reporting.units import above_zero, named_values, parse_share
from dear_mpi.training.routes.codes import Decode, Encode, Recall, Wire
from dear_mpi.training.routes.legs import MAIN, Leg, Pack, Unpack, Update, all_gather, all_to_all, reduce_scatter
from dear_mpi.training.routes.route import Route
from dear_mpi.training.routes.selected import Select, Selection, UpdateSelected
from dear_mpi.training.wires.blocks import Blocks, Eighths, Halves
from dear_mpi.training.wires.selections import RandomBlocks, RandomK, TopK

FORGET, LATE, OF_HOSTS = "error=no", "after=50", "between"
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


def late(route: Route, after: int) -> Route:
    """A route whose codes begin in iteration ``after``, counted from 0: before that gradients travel as they are."""

    def begun(legs: tuple[Leg, ...]) -> tuple[Leg, ...]:
        kept = Pack, Update, Unpack
        return tuple(leg if isinstance(leg, kept) else replace(leg, first=after) for leg in legs)

    pack, *project = begun(route.out)
    out = (pack, reduce_scatter("gradients", until=after), *project)
    return replace(route, out=out, back=(all_gather("gradients", until=after), *begun(route.back)))


@dataclass(frozen=True)
class Kind:
    """A kind of codes.

    Attributes:
        make: the wire, from what was read.
        route: makes the route of these codes, from its name and the wire; see ``coded``.
        read: what stands after the colon, from its text; None if nothing may stand there.
        example: a text with it.
        types: of parameters whose gradients it can carry.
        options: what may stand behind that, with an example.
    """

    make: Callable[..., Any]
    route: Callable[..., Route]
    read: Callable[[str], Any] | None = None
    example: str = ""
    types: tuple[str, ...] = ("fp32", "fp16", "bf16")
    options: tuple[str, ...] = (FORGET,)


def share(text: str) -> float:
    """A share above zero, as ``1%``; ValueError if it is none."""
    found = parse_share("the share of a wire", text, 1.0)
    if not found:
        raise ValueError(f"the share of a wire must be above 0%, and at most 100%, not {text}")
    return found


def whole(what: str, text: str) -> int:
    return above_zero(f"{what} of a wire", text)


def published(name: str) -> Kind:
    """The codes that a package publishes under a name; ValueError if that is something else."""
    found = load_extra("wires", name)
    if not isinstance(found, Kind):
        raise ValueError(f"wire {name!r} must be a Kind of dear_mpi.training.routes, not {found!r:.60}")
    return found


HOSTS_TOO = (FORGET, OF_HOSTS)
OURS = {
    "int8": Kind(Blocks, coded, options=HOSTS_TOO),
    "int4": Kind(Halves, coded, options=HOSTS_TOO),
    "fp8": Kind(Eighths, coded, options=HOSTS_TOO),
    "topk": Kind(TopK, coded, share, "topk:1%", options=HOSTS_TOO),
    "randomk": Kind(RandomK, selected, share, "randomk:10%"),
    "blocks": Kind(RandomBlocks, selected, share, "blocks:10%"),
}
CODES = WithExtras[Kind](OURS, "wires", published)
EXAMPLES = {name: kind.example or name for name, kind in OURS.items()}  # without those of extras
NAMES = (*DTYPES, *EXAMPLES.values())


@dataclass(frozen=True)
class Code:
    """Codes that were chosen.

    Attributes:
        feedback: whether what they lose is sent later.
        after: how many iterations go without them first.
    """

    wire: Any
    route: Callable[..., Route]
    feedback: bool
    after: int = 0


def is_code(wire: str | None) -> bool:
    """Whether this is no type of floating point."""
    return wire is not None and wire not in DTYPES


def find_code(text: str) -> Code:
    """The codes of a text, such as ``int8``, ``topk:1%`` or ``topk:1%:error=no``.

    Raises:
        ValueError: there are none of this name, what stands after the colon has no meaning, or it has an option twice.

    >>> find_code("topk:1%:error=no")  # doctest: +ELLIPSIS
    Code(wire=TopK(share=0.01), route=<function coded at ...>, feedback=False, after=0)
    """
    name, *rest = text.split(":")
    kind = lookup("wire", name, WithExtras[Any](dict.fromkeys(DTYPES) | OURS, "wires", published))
    given, options = named_values(f"wire {text!r}", [f"{each}=" if each == OF_HOSTS else each for each in rest])
    allowed = {each.partition("=")[0] for each in (kind.options if kind else ())}
    unknown = options.keys() - allowed or allowed.intersection(given)
    wrong = options.get("error", "no") != "no" or any(each.startswith(f"{OF_HOSTS}=") for each in rest)
    if kind is None or unknown or wrong or len(given) != (kind.read is not None):
        example = (kind.example if kind else "") or name
        also = "".join(f", or {example}:{option}" for option in (kind.options if kind else ()))
        raise ValueError(f"wire {text!r} must be written like {example!r}{also}")
    after = whole("after", options["after"]) if "after" in options else 0
    wire = kind.make(*map(kind.read, given)) if kind.read else kind.make()
    return Code(wire, between if OF_HOSTS in options else kind.route, feedback="error" not in options, after=after)


def check_carries(text: str, dtype: str) -> None:
    """Raise a ValueError if a wire cannot carry gradients of parameters of this type."""
    types = CODES[text.partition(":")[0]].types if is_code(text) else (dtype,)
    if dtype not in types:
        raise ValueError(f"wire {text!r} carries gradients of {', '.join(types)}, not of {dtype}")


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
        route = code.route(title, code.wire, sharded=sharded, error=error)
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
