"""Look up routes and wires by name, in users' files and packages."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dear_mpi.collectives.program.hosts import BETWEEN, INSIDE
from dear_mpi.collectives.program.user_file import WithExtras, is_in_file, load, load_extra, source_of
from dear_mpi.kernels.dtypes import DTYPES
from dear_mpi.kernels.lookup import lookup
from dear_mpi.reporting.units import above_zero, named_values, parse_share
from dear_mpi.training.routes.codes import Decode, Encode, Recall, Select, UpdateSelected, Wire
from dear_mpi.training.routes.route import Route
from dear_mpi.training.routes.stages import MAIN, Pack, Stage, Unpack, Update, all_gather, all_to_all, reduce_scatter
from dear_mpi.training.routes.wires import Blocks, Eighths, Halves, RandomBlocks, RandomK, TopK

AUTO = "auto"
UPDATES = ("full", "sharded", AUTO)
MINE = "my_route"
SUMS_BACK = all_gather("gradients"), Update(on=MAIN), Unpack()
VALUES_BACK = Update(shard=True), all_gather("values"), Unpack()
FULL = Route("full", out=(Pack(), reduce_scatter("gradients")), back=SUMS_BACK)
# Each rank keeps only its shard's optimiser state. Values travel in their own type. Source:
# Rajbhandari et al., ZeRO, SC 2020, section 5.1; Xu et al., arXiv 2004.13336.
SHARDED = Route("sharded", out=(Pack(), reduce_scatter("gradients")), back=VALUES_BACK)
ROUTES = {route.name: route for route in (FULL, SHARDED)}


def coded(name: str, wire: Wire, *, sharded: bool = False, error: str | None = "residual", level: str = "") -> Route:
    """Send gradients as codes and keep each rank's rounding error.

    Args:
        sharded: gather updated values in their own type; otherwise sums also travel as codes.
        error: the flat buffer for the rounding error; None to drop it.
        level: ``between hosts`` to send gradients and sums uncoded inside a host. Each rank then first adds its error
            to its gradients: after a change of buckets or hosts, it may no longer serve the error's shards.
    """
    codes: dict[str, Any] = {"wire": wire, "codes": "codes"}
    of_level = codes | {"level": level}
    out = Encode(**of_level, error=error), all_to_all("codes", level=level), Decode(**of_level, summed=True)
    first: tuple[Stage, ...] = (reduce_scatter("gradients", level=INSIDE),) if level else ()
    first = (Recall(error=error), *first) if level and error else first
    back: tuple[Stage, ...] = VALUES_BACK
    if not sharded:
        gathered = (all_gather("gradients", level=INSIDE),) if level else ()
        sums = Encode(**codes, error=error, shard=True), all_gather("codes", level=level), Decode(**of_level)
        back = (*sums, *gathered, *SUMS_BACK[1:])
    return Route(name, (Pack(), *first, *out), back)


def selected(name: str, wire: RandomK, *, sharded: bool = False, error: str | None = "residual") -> Route:
    """Send selected gradients and keep the rest for later; ValueError if ``sharded``."""
    if sharded:
        raise ValueError(f"update must be full: {name.partition(' over ')[2]} changes elements of all shards")
    codes: dict[str, Any] = {"wire": wire, "codes": "codes"}
    out = Pack(), Select(**codes, error=error), reduce_scatter("codes")
    return Route(name, out, (all_gather("codes"), UpdateSelected(**codes, on=MAIN), Unpack()))


@dataclass(frozen=True)
class Kind:
    """Describe a kind of codes.

    Attributes:
        make: builds the wire from the parsed argument.
        route: builds the route from name, wire, ``sharded`` and the chosen ``options``; see ``coded``.
        read: parses the text after the colon; None if none is allowed.
        example: a text with such an argument.
        types: parameter types.
        options: examples of what may follow the argument: ``error=no``, ``between``, ``after=50``.
    """

    make: Callable[..., Any]
    route: Callable[..., Route]
    read: Callable[[str], Any] | None = None
    example: str = ""
    types: tuple[str, ...] = ("fp32", "fp16", "bf16")
    options: tuple[str, ...] = ("error=no",)


def share(text: str) -> float:
    """Parse a share above zero, such as ``1%``; ValueError otherwise."""
    found = parse_share("the share of a wire", text, 1.0)
    if not found:
        raise ValueError(f"the share of a wire must be above 0%, and at most 100%, not {text}")
    return found


def whole(what: str, text: str) -> int:
    return above_zero(f"{what} of a wire", text)


def published(name: str) -> Kind:
    """Load a package's codes by name; ValueError if the object is no ``Kind``."""
    found = load_extra("wires", name)
    if not isinstance(found, Kind):
        raise ValueError(f"wire {name!r} must be a Kind of dear_mpi.training.routes, not {found!r:.60}")
    return found


HOSTS_TOO = ("error=no", "between")
OURS = {
    "int8": Kind(Blocks, coded, options=HOSTS_TOO),
    "int4": Kind(Halves, coded, options=HOSTS_TOO),
    "fp8": Kind(Eighths, coded, options=HOSTS_TOO),
    "topk": Kind(TopK, coded, share, "topk:1%", options=HOSTS_TOO),
    "randomk": Kind(RandomK, selected, share, "randomk:10%"),
    "blocks": Kind(RandomBlocks, selected, share, "blocks:10%"),
}
CODES = WithExtras[Kind](OURS, "wires", published)
WIRES = WithExtras[Kind | None](dict.fromkeys(DTYPES) | OURS, "wires", published)  # a type has no codes
EXAMPLES = {name: kind.example or name for name, kind in OURS.items()}  # without wires of packages
NAMES = (*DTYPES, *EXAMPLES.values())


@dataclass(frozen=True)
class Code:
    """Hold the chosen codes; ``how``: options of the route's builder."""

    wire: Any
    route: Callable[..., Route]
    how: dict[str, Any] = field(default_factory=dict)


def is_code(wire: str | None) -> bool:
    return wire is not None and wire not in DTYPES


def find_code(text: str) -> Code:
    """Parse a wire text such as ``int8``, ``topk:1%`` or ``topk:1%:error=no``.

    Raises:
        ValueError: unknown name, invalid argument, or repeated option.

    >>> find_code("topk:1%:error=no")  # doctest: +ELLIPSIS
    Code(wire=TopK(share=0.01), route=<function coded at ...>, how={'error': None})
    """
    name, *rest = text.split(":")
    kind = lookup("wire", name, WIRES)
    options, count = (kind.options, int(kind.read is not None)) if kind else ((), 0)
    arguments, allowed = rest[:count], {each.partition("=")[0] for each in options}
    _, named = named_values(f"wire {text!r}", (each if "=" in each else f"{each}=" for each in rest[count:]))
    wrong = len(arguments) < count or "between=" in rest or any("=" in each or each in allowed for each in arguments)
    how: dict[str, Any] = {}
    for option, value in sorted(named.items()):
        match option, value:
            case "error", "no":
                how["error"] = None
            case "between", "":
                how["level"] = BETWEEN
            case "after", _:
                how["after"] = whole("after", value)
            case _:
                wrong = True
        wrong |= option not in allowed
    if kind is None or wrong:
        example = (kind.example if kind else "") or name
        also = "".join(f", or {example}:{option}" for option in options)
        raise ValueError(f"wire {text!r} must be written like {example!r}{also}")
    return Code(kind.make(*map(kind.read, arguments)) if kind.read else kind.make(), kind.route, how)


def check_carries(text: str, dtype: str) -> None:
    types = CODES[text.partition(":")[0]].types if is_code(text) else (dtype,)
    if dtype not in types:
        raise ValueError(f"wire {text!r} carries gradients of {', '.join(types)}, not of {dtype}")


def find_route(name: str, *, wire: str | None = None, halves: bool = False) -> Route:
    """Find a route in ``ROUTES``, or in a user's file.

    Args:
        wire: the type or codes of travelling gradients; codes bring their own route.
        halves: ``sharded`` gives the bits of ``full``, so ``auto`` takes it: several ranks, gradients in the
            parameters' type, and an algorithm with both halves of an all-reduce.

    Raises:
        ValueError: no such route, no ``Route``, or codes with a user's route.
    """
    if wire is not None and is_code(wire):
        if name not in UPDATES:
            raise ValueError(f"wire {wire!r} sets the route: leave out route {name!r}, or the wire")
        sharded, code = name == SHARDED.name, find_code(wire)
        title = f"{SHARDED.name if sharded else FULL.name} over {wire}"
        return code.route(title, code.wire, sharded=sharded, **code.how)
    if name == AUTO:
        return SHARDED if halves else FULL
    if not is_in_file(name):
        return lookup("route", name, ROUTES)
    found = load(source_of(name, "route", MINE))
    if not isinstance(found, Route):
        raise ValueError(f"route {name!r} must be a Route of dear_mpi.training.routes, not {found!r:.99}")
    for what, stages in (("out", found.out), ("back", found.back)):
        if not isinstance(stages, tuple) or not all(isinstance(stage, Stage) for stage in stages):
            raise ValueError(f"route {name!r} must have a tuple of stages in {what}, not {stages!r:.99}")
    return found
