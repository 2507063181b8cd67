"""Find codes of gradients by name. Core has one example, ``int8``; extras and packages publish others.

    elements   | 256               | 256               | the rest |
    blocks     | scale scale scale | numbers of 8 bits ...

A scale is the block's largest magnitude divided by the largest number. The rounding error is at most half a step: 1/254
of that magnitude. A block with an infinity or NaN becomes NaN; one with a scale below the smallest normal number
becomes zero. An element takes 1 + 1/64 bytes.

``encode_s`` and ``decode_s`` are seconds per element on one core, ``encode_call_s`` and ``decode_call_s`` per call.

Source: Dettmers et al., 8-bit Optimizers, ICLR 2022, section 2.1 (block-wise quantisation).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from dear_mpi.collectives.program.hosts import BETWEEN, INSIDE
from dear_mpi.collectives.program.user_file import WithExtras, load_extra
from dear_mpi.kernels.array import Array, array_module
from dear_mpi.kernels.dtypes import DTYPES
from dear_mpi.kernels.lookup import lookup
from dear_mpi.reporting.units import above_zero, named_values, parse_share
from dear_mpi.training.routes.codes import Decode, Encode, Recall, Wire
from dear_mpi.training.routes.find import SUMS_BACK, VALUES_BACK
from dear_mpi.training.routes.route import Route
from dear_mpi.training.routes.stages import Pack, Stage, all_gather, all_to_all, reduce_scatter

BLOCK = 256
PIECE = 256 * BLOCK  # elements: stays in cache
SCALE = np.dtype(np.float32)
LEAST = np.finfo(SCALE).tiny  # a smaller scale has no inverse


@dataclass(frozen=True)
class Blocks:
    """Use whole numbers from ``-largest`` to ``largest``, a byte each."""

    encode_s, decode_s = 1.5e-9, 0.8e-9
    encode_call_s, decode_call_s = 17e-6, 4e-6
    largest = 127.0
    dtype: ClassVar[Any] = np.dtype(np.int8)

    def nbytes(self, count: int) -> int:
        return SCALE.itemsize * -(-count // BLOCK) + self.number_bytes(count)

    def number_bytes(self, count: int) -> int:
        return count

    def encode(self, x: Array, out: Array) -> None:
        xp: Any = array_module(x)
        for values, scales, codes in self.pieces(x, out):
            with np.errstate(all="ignore"):
                most = xp.abs(values).max(axis=1).astype(SCALE) / SCALE.type(self.largest)
                scales[...] = xp.where(most < xp.inf, xp.where(most < LEAST, 0, most), xp.nan)
                inverse = xp.where(scales > 0, 1 / scales, 0).astype(SCALE)
                self.write(values * inverse[:, None], codes)

    def decode(self, codes: Array, x: Array) -> None:
        for values, scales, numbers in self.pieces(x, codes):
            values[...] = self.read(numbers, values.shape) * scales[:, None]

    def pieces(self, x: Array, codes: Array) -> Iterator[tuple[Array, Array, Array]]:
        border = SCALE.itemsize * -(-x.size // BLOCK)
        scales, numbers = codes[:border].view(SCALE), codes[border : self.nbytes(x.size)]
        full = x.size - x.size % BLOCK
        for start in range(0, x.size, PIECE):
            for first, last in ((start, min(start + PIECE, full)), (max(start, full), min(start + PIECE, x.size))):
                if first < last:
                    rows = x[first:last].reshape(-1, min(BLOCK, last - first))
                    at = slice(self.number_bytes(first), self.number_bytes(last))
                    yield rows, scales[first // BLOCK :][: len(rows)], numbers[at]

    def write(self, scaled: Array, codes: Array) -> None:
        array_module(scaled).rint(scaled, out=scaled)
        codes.view(self.dtype)[...] = scaled.reshape(-1)

    def read(self, codes: Array, shape: tuple[int, ...]) -> Array:
        numbers: Array = codes.view(self.dtype).reshape(shape)
        return numbers


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


OURS = {"int8": Kind(Blocks, coded, options=("error=no", "between"))}  # an example; others are extras
CODES = WithExtras[Kind](OURS, "wires", published)
WIRES = WithExtras[Kind | None](dict.fromkeys(DTYPES) | OURS, "wires", published)  # a type has no codes


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
    types = CODES[text.partition(":")[0]].types
    if dtype not in types:
        raise ValueError(f"wire {text!r} carries gradients of {', '.join(types)}, not of {dtype}")
