"""Look up routes and wires by name, in users' files and packages."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dear_mpi.collectives.program.hosts import BETWEEN
from dear_mpi.collectives.program.user_file import WithExtras, is_in_file, load, load_place, source_of
from dear_mpi.kernels.dtypes import DTYPES
from dear_mpi.kernels.lookup import lookup
from dear_mpi.reporting.units import above_zero, named_values, parse_share
from dear_mpi.training.routes.route import Route
from dear_mpi.training.routes.stages import MAIN, Pack, Stage, Unpack, Update, all_gather, reduce_scatter

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
OURS = {"int8": "dear_mpi.training.routes.codes:INT8"}  # places of kinds; one is an example, others are extras
NAMES = (*DTYPES, *OURS)
WIRES = WithExtras[Any](dict.fromkeys(DTYPES) | OURS, "wires")  # a type has no codes


def is_code(wire: str | None) -> bool:
    return wire is not None and wire not in DTYPES


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


def kind_of(name: str) -> Kind | None:
    """Find codes by name, in core or in a package; None for a type. ValueError: unknown, or no ``Kind``."""
    found = lookup("wire", name, WIRES)
    found = load_place(found) if isinstance(found, str) else found
    if not isinstance(found, Kind | None):
        raise ValueError(f"wire {name!r} must be a Kind of dear_mpi.training.routes, not {found!r:.60}")
    return found


@dataclass(frozen=True)
class Code:
    """Hold the chosen codes; ``how``: options of the route's builder."""

    wire: Any
    route: Callable[..., Route]
    how: dict[str, Any] = field(default_factory=dict)


def find_code(text: str) -> Code:
    """Parse a wire text such as ``int8``, ``int8:error=no`` or ``topk:1%``.

    Raises:
        ValueError: unknown name, invalid argument, or repeated option.

    >>> find_code("int8:error=no")  # doctest: +ELLIPSIS
    Code(wire=Blocks(), route=<function coded at ...>, how={'error': None})
    """
    name, *rest = text.split(":")
    kind = kind_of(name)
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
    kind = kind_of(text.partition(":")[0])
    if kind and dtype not in kind.types:
        raise ValueError(f"wire {text!r} carries gradients of {', '.join(kind.types)}, not of {dtype}")
