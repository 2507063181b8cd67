"""The wires of ``--wire``, by name: types of floating point, and codes with what may be chosen about them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dear_mpi.kernels.dtypes import DTYPES
from dear_mpi.kernels.lookup import lookup
from dear_mpi.reporting.units import parse_share
from dear_mpi.training.wires.blocks import Blocks, Eighths, Halves
from dear_mpi.training.wires.noise import Noise
from dear_mpi.training.wires.selections import RandomBlocks, RandomK
from dear_mpi.training.wires.top_k import TopK


def share(text: str) -> float:
    """A share above zero, as ``1%``; ValueError if it is none."""
    found = parse_share("the share of a wire", text, 1.0)
    if not found:
        raise ValueError(f"the share of a wire must be above 0%, and at most 100%, not {text}")
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
        options: what may stand behind that.
    """

    make: Callable[..., Any]
    legs: str = "coded"
    read: Callable[[str], Any] | None = None
    example: str = ""
    types: tuple[str, ...] = ("fp32", "fp16", "bf16")
    options: tuple[str, ...] = ("error=no",)


CODES: Mapping[str, Kind] = {
    "int8": Kind(Blocks),
    "int4": Kind(Halves),
    "fp8": Kind(Eighths),
    "topk": Kind(TopK, read=share, example="topk:1%"),
    "randomk": Kind(RandomK, "selected", share, "randomk:10%"),
    "blocks": Kind(RandomBlocks, "selected", share, "blocks:10%"),
    "noise": Kind(Noise, "noisy", share, "noise:1%", types=tuple(DTYPES), options=()),
}
EXAMPLES = {name: kind.example or name for name, kind in CODES.items()}
NAMES = (*DTYPES, *EXAMPLES.values())
FORGET = "error=no"


@dataclass(frozen=True)
class Code:
    """Codes that were chosen.

    Attributes:
        feedback: whether what they lose is sent later.
    """

    wire: Any
    legs: str
    feedback: bool


def is_code(wire: str | None) -> bool:
    """Whether this is no type of floating point."""
    return wire is not None and wire not in DTYPES


def find_code(text: str) -> Code:
    """The codes of a text, such as ``int8``, ``topk:1%`` or ``topk:1%:error=no``.

    Raises:
        ValueError: there are none of this name, or what stands after the colon has no meaning.

    >>> find_code("topk:1%:error=no")
    Code(wire=TopK(share=0.01, encode_s=6e-09, decode_s=5e-10), legs='coded', feedback=False)
    """
    name, *given = text.split(":")
    kind = lookup("wire", name, {**dict.fromkeys(DTYPES), **CODES})
    options = kind.options if kind else ()
    feedback = not (given[-1:] == [FORGET] and FORGET in options)
    given = given if feedback else given[:-1]
    if kind is None or len(given) != (kind.read is not None):
        example = EXAMPLES.get(name, name)
        also = "".join(f", or {example}:{option}" for option in options)
        raise ValueError(f"wire {text!r} must be written like {example!r}{also}")
    return Code(kind.make(*map(kind.read, given)) if kind.read else kind.make(), kind.legs, feedback)


def check_carries(text: str, dtype: str) -> None:
    """Raise a ValueError if a wire cannot carry gradients of parameters of this type."""
    types = CODES[text.partition(":")[0]].types if is_code(text) else (dtype,)
    if dtype not in types:
        raise ValueError(f"wire {text!r} carries gradients of {', '.join(types)}, not of {dtype}")
