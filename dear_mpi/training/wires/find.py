"""The wires of ``--wire``, by name: types of floating point, and codes with what may be chosen about them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from dear_mpi.collectives.program.extras import WithExtras, load_extra
from dear_mpi.kernels.dtypes import DTYPES
from dear_mpi.kernels.lookup import lookup
from dear_mpi.reporting.units import above_zero, named_values, parse_share
from dear_mpi.training.wires.blocks import Blocks, Eighths, Halves
from dear_mpi.training.wires.low_rank import LowRank
from dear_mpi.training.wires.noise import Noise
from dear_mpi.training.wires.selections import RandomBlocks, RandomK, TopK
from dear_mpi.training.wires.sketch import Sketch

FORGET, LATE, OF_HOSTS = "error=no", "after=50", "between"


def share(text: str) -> float:
    """A share above zero, as ``1%``; ValueError if it is none."""
    found = parse_share("the share of a wire", text, 1.0)
    if not found:
        raise ValueError(f"the share of a wire must be above 0%, and at most 100%, not {text}")
    return found


def whole(what: str, text: str) -> int:
    return above_zero(f"{what} of a wire", text)


def ratio(text: str) -> float:
    """How many elements share a counter, as ``10``; ValueError if it is no number from 2 to 1000."""
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 2 <= found <= 1000:
        raise ValueError(f"the ratio of a sketch must be a number from 2 to 1000, not {text!r}")
    return found


@dataclass(frozen=True)
class Kind:
    """A kind of codes.

    Attributes:
        make: the wire, from what was read.
        legs: what it goes through: a name in ``LEGS`` of ``routes/find.py``.
        read: what stands after the colon, from its text; None if nothing may stand there.
        example: a text with it.
        types: of parameters whose gradients it can carry.
        options: what may stand behind that, with an example.
    """

    make: Callable[..., Any]
    legs: str = "coded"
    read: Callable[[str], Any] | None = None
    example: str = ""
    types: tuple[str, ...] = ("fp32", "fp16", "bf16")
    options: tuple[str, ...] = (FORGET,)


CODES: Mapping[str, Kind] = {
    "int8": Kind(Blocks, options=(FORGET, OF_HOSTS)),
    "int4": Kind(Halves, options=(FORGET, OF_HOSTS)),
    "fp8": Kind(Eighths, options=(FORGET, OF_HOSTS)),
    "topk": Kind(TopK, read=share, example="topk:1%", options=(FORGET, OF_HOSTS)),
    "randomk": Kind(RandomK, "selected", share, "randomk:10%"),
    "blocks": Kind(RandomBlocks, "selected", share, "blocks:10%"),
    "acp": Kind(LowRank, "acp", partial(whole, "the rank"), "acp:4", tuple(DTYPES), (FORGET, LATE)),
    "powersgd": Kind(LowRank, "powersgd", partial(whole, "the rank"), "powersgd:4", tuple(DTYPES), (FORGET, LATE)),
    "noise": Kind(Noise, "noisy", share, "noise:1%", types=tuple(DTYPES), options=()),
    "sketch": Kind(Sketch, "sketched", ratio, "sketch:10", ("fp32", "fp64"), ()),
}
EXAMPLES = {name: kind.example or name for name, kind in CODES.items()}
NAMES = (*DTYPES, *EXAMPLES.values())


def published(name: str) -> Kind:
    """The codes that a package publishes under a name."""
    found = load_extra("wires", name)
    if not isinstance(found, Kind):
        raise ValueError(f"wire {name!r} must be a Kind of dear_mpi.training.wires.find, not {found!r:.60}")
    return found


@dataclass(frozen=True)
class Code:
    """Codes that were chosen.

    Attributes:
        feedback: whether what they lose is sent later.
        after: how many iterations go without them first.
    """

    wire: Any
    legs: str
    feedback: bool
    after: int = 0


def is_code(wire: str | None) -> bool:
    """Whether this is no type of floating point."""
    return wire is not None and wire not in DTYPES


def find_code(text: str) -> Code:
    """The codes of a text, such as ``int8``, ``topk:1%`` or ``topk:1%:error=no``.

    Raises:
        ValueError: there are none of this name, what stands after the colon has no meaning, or it has an option twice.

    >>> find_code("topk:1%:error=no")
    Code(wire=TopK(share=0.01), legs='coded', feedback=False, after=0)
    """
    name, *rest = text.split(":")
    kind = lookup("wire", name, WithExtras({**dict.fromkeys(DTYPES), **CODES}, "wires", published))
    given, options = named_values(f"wire {text!r}", [f"{each}=" if each == OF_HOSTS else each for each in rest])
    allowed = {each.partition("=")[0] for each in (kind.options if kind else ())}
    unknown = options.keys() - allowed or allowed.intersection(given)
    wrong = options.get("error", "no") != "no" or any(each.startswith(f"{OF_HOSTS}=") for each in rest)
    if kind is None or unknown or wrong or len(given) != (kind.read is not None):
        example = (kind and kind.example) or name
        also = "".join(f", or {example}:{option}" for option in (kind.options if kind else ()))
        raise ValueError(f"wire {text!r} must be written like {example!r}{also}")
    after = whole("after", options["after"]) if "after" in options else 0
    wire = kind.make(*map(kind.read, given)) if kind.read else kind.make()
    return Code(wire, OF_HOSTS if OF_HOSTS in options else kind.legs, feedback="error" not in options, after=after)


def check_carries(text: str, dtype: str) -> None:
    """Raise a ValueError if a wire cannot carry gradients of parameters of this type."""
    types = WithExtras(CODES, "wires", published)[text.partition(":")[0]].types if is_code(text) else (dtype,)
    if dtype not in types:
        raise ValueError(f"wire {text!r} carries gradients of {', '.join(types)}, not of {dtype}")
