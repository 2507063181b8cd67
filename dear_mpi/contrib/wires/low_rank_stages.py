"""Define stages for matrices that are sent as products of two thin ones, see ``low_rank.py``.

    ACP-SGD    out: recall what was lost | P = M Q, or Q = M^T P in the next update: codes | reduce_scatter codes
               back: all_gather codes | gradients = P Q^T | update all
    PowerSGD   out: recall | P = M Q | all_reduce P | Q = M^T P: codes | reduce_scatter codes
               back: all_gather codes | gradients = P Q^T | update all

A rank's error is M - P Q^T with its payload: the part orthogonal to the common factor. Summed over ranks it is the
error of the sum. Of PowerSGD only the gather of Q overlaps the next forward pass: its second sum needs the first.
ACP-SGD sends half as much, in as many messages as an all-reduce.

Cost: r (n + m) elements of n m, half of that for ACP-SGD; 2 r multiplications an element for each product.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, ClassVar, NamedTuple

from dear_mpi.contrib.wires.low_rank import LEFT, RIGHT, LowRank, multiply, orthonormal
from dear_mpi.kernels.array import Array, array_module
from dear_mpi.kernels.dtypes import DTYPES, compute_dtype
from dear_mpi.kernels.slab import round_up
from dear_mpi.training.routes import (
    MAIN,
    ROW_BYTES,
    BucketMemory,
    Kind,
    Memory,
    Pack,
    Payload,
    Recall,
    Route,
    Shape,
    Sizes,
    Stage,
    Unpack,
    Update,
    all_gather,
    all_reduce,
    reduce_scatter,
    whole,
)

FACTORS = "factors"  # of each matrix, equal on all ranks


class Part(NamedTuple):
    tensor: int
    side: int
    code: Array  # a matrix with ``rank`` columns, or flat
    factors: tuple[Array, Array] | None  # left and right


@dataclass(frozen=True, kw_only=True)
class OfFactors(Payload):
    """Attributes:
    side: the factor that is sent; None: alternating between updates.
    others: whether other tensors are also sent, uncompressed.
    """

    adds_up: ClassVar[bool] = True
    whole: ClassVar[bool] = True
    buffers: ClassVar[Mapping[str, str]] = {FACTORS: "equal"}
    wire: LowRank
    side: int | None = None
    others: bool = True

    def has_use(self, shapes: Sequence[Shape]) -> bool:
        return any(map(self.wire.matrix, shapes))

    def turns(self, shapes: tuple[Shape, ...]) -> list[list[int]]:
        """Return each tensor's factor in even updates, and in odd ones."""
        if self.side is not None:
            return [[self.side] * len(shapes)] * 2
        first = self.wire.first_sides(shapes)
        return [first, [1 - side for side in first]]

    def payload_bytes(self, of: Sizes) -> int:
        """Return the longer turn's bytes; unknown for a bucket without shapes."""
        lengths = [sum(self.wire.lengths(of.shapes, turn, others=self.others)) for turn in self.turns(of.shapes)]
        return round_up(max(lengths) * of.itemsize, of.ranks * ROW_BYTES)

    def parts(self, bucket: BucketMemory) -> list[list[Part]]:
        codes, shapes = bucket.buffer(self.codes), tuple(x.shape for x in bucket.tensors("gradients"))
        kept = [self.factors(x, shape) for x, shape in zip(bucket.tensors(FACTORS), shapes, strict=True)]
        found = []
        for sides in self.turns(shapes):
            ends = [*accumulate(self.wire.lengths(shapes, sides, others=self.others), initial=0)]
            own = [codes[start:stop] for start, stop in pairwise(ends)]
            shaped = [code.reshape(-1, self.wire.rank) if pair else code for code, pair in zip(own, kept, strict=True)]
            found.append([Part(*part) for part in zip(range(len(shapes)), sides, shaped, kept, strict=True)])
        return found

    def factors(self, tensor: Array, shape: Shape) -> tuple[Array, Array] | None:
        matrix, flat = self.wire.matrix(shape), tensor.reshape(-1)
        if matrix is None:
            return None
        ends = self.wire.rank * matrix[0], self.wire.rank * sum(matrix)
        left, right = flat[: ends[0]], flat[ends[0] : ends[1]]
        return left.reshape(matrix[0], -1), right.reshape(matrix[1], -1)

    def is_whole(self, memory: Memory, rank: int, *buffers: str) -> bool:
        """Whether a rank has all of these buffers, as a factor needs all of a matrix."""
        before = len(memory.misread)
        for buffer in buffers:
            for shard in range(memory.size):
                memory.read(buffer, rank, shard)
        return len(memory.misread) == before


@dataclass(frozen=True, kw_only=True)
class Project(OfFactors):
    """Multiply gradient matrices by one orthonormalised factor: the other factor is the payload.

    Attributes:
        error: the buffer for the error, or none.
        given: a payload buffer with sums of the factors to multiply by; none: use the stored factors.
    """

    error: str | None = None
    given: str | None = None

    @property
    def buffers(self) -> Mapping[str, str]:  # type: ignore[override]
        return {FACTORS: "equal"} | ({self.error: "own"} if self.error else {})

    @property
    def reads(self) -> tuple[str, ...]:
        return ("gradients", FACTORS, *([self.given] if self.given else []))

    @property
    def writes(self) -> tuple[str, ...]:
        return (self.codes, FACTORS, *([self.error] if self.error else []))

    def compute_s(self, count: int, ranks: int) -> float:
        return self.act_s("encode", count * (1 if self.error else 0.5))

    def prove(self, memory: Memory) -> None:
        """Check that ranks have equal factors; else payloads do not add up."""
        buffers = [buffer for buffer in self.reads if buffer != "gradients"]
        whole = [self.is_whole(memory, rank, *self.reads) for rank in range(memory.size)]
        of_rank_0 = [[memory.read(buffer, 0, shard) for buffer in buffers] for shard in range(memory.size)]
        for rank, shard in memory.places:
            by = [memory.read(buffer, rank, shard) for buffer in buffers]
            if not whole[rank] or by != of_rank_0[shard]:
                memory.forget(self.codes, rank, shard)
                continue
            code = memory.symbol("code", memory.read("gradients", rank, shard), *by)
            memory.write(self.codes, rank, shard, code)
            memory.write(FACTORS, rank, shard, memory.symbol("basis", *by))
            if self.error:
                memory.write(self.error, rank, shard, memory.symbol("lost", code))

    def bind(self, bucket: BucketMemory) -> Callable[[float], object]:
        turns, codes = self.parts(bucket), bucket.buffer(self.codes)
        gradients = bucket.tensors("gradients")
        errors = bucket.tensors(self.error) if self.error else [None] * len(gradients)
        sums = [part.code for part in self.of_given().parts(bucket)[0]] if self.given else [None] * len(gradients)

        def project(factor: float) -> None:
            codes[...] = 0  # one turn may be shorter
            for part in turns[bucket.own_updates % 2]:
                self.project(part, gradients[part.tensor], errors[part.tensor], sums[part.tensor])

        return project

    def of_given(self) -> OfFactors:
        assert self.given is not None
        assert self.side is not None
        return Expand(wire=self.wire, codes=self.given, side=1 - self.side, others=False)

    def project(self, part: Part, gradient: Array, error: Array | None, given: Array | None) -> None:
        if part.factors is None:
            if self.others:
                part.code[...] = gradient.reshape(-1)
                if error is not None:
                    error[...] = 0
            return
        other = part.factors[1 - part.side]
        other[...] = orthonormal(other if given is None else given)
        xp: Any = array_module(gradient)
        dtype = compute_dtype(gradient.dtype)
        flat = gradient.reshape(len(gradient), -1)
        matrix, by = (flat if part.side == LEFT else flat.T).astype(dtype, copy=False), other.astype(dtype)
        part.code[...] = matrix @ by
        if error is not None:
            lost = xp.subtract(matrix, part.code.astype(dtype) @ by.T)
            error[...] = (lost if part.side == LEFT else lost.T).reshape(error.shape)

    def __str__(self) -> str:
        what = {None: "one factor, in turn", 0: "P = M Q", 1: "Q = M^T P"}[self.side]
        return f"project gradients to {self.codes}: {what}{f', with {self.error}' if self.error else ''}"


@dataclass(frozen=True, kw_only=True)
class Expand(OfFactors):
    """Write into the gradients the product of the payload's factor and the stored one."""

    act: ClassVar[str] = "decode"
    writes: ClassVar[tuple[str, ...]] = ("gradients", FACTORS)

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.codes, FACTORS)

    def prove(self, memory: Memory) -> None:
        whole = [self.is_whole(memory, rank, *self.reads) for rank in range(memory.size)]
        for rank, shard in memory.places:
            code, factor = (memory.read(buffer, rank, shard) for buffer in self.reads)
            memory.write(FACTORS, rank, shard, memory.symbol("factor", code, factor))
            if whole[rank]:
                memory.write("gradients", rank, shard, memory.symbol("code", code, factor))
            else:
                memory.forget("gradients", rank, shard)

    def bind(self, bucket: BucketMemory) -> Callable[[float], object]:
        turns, gradients = self.parts(bucket), bucket.tensors("gradients")

        def expand(factor: float) -> None:
            for part in turns[bucket.own_updates % 2]:
                gradient = gradients[part.tensor]
                if part.factors is None:
                    gradient[...] = part.code.reshape(gradient.shape)
                else:
                    part.factors[part.side][...] = part.code
                    multiply(part.factors[0], part.factors[1], gradient.reshape(len(gradient), -1))

        return expand

    def __str__(self) -> str:
        return f"expand {self.codes}: gradients = P Q^T"


def acp(name: str, wire: LowRank, *, error: str | None = "residual", **how: Any) -> Route:
    """Each matrix sends one factor per update, alternating."""
    codes: dict[str, Any] = {"wire": wire, "codes": "codes"}
    return expanded(name, (Project(**codes, error=error),), Expand(**codes), error=error, **how)


def powersgd(name: str, wire: LowRank, *, error: str | None = "residual", **how: Any) -> Route:
    """One factor is sent, then the other, made with the sum of the first."""
    first: dict[str, Any] = {"wire": wire, "codes": "first codes", "side": LEFT, "others": False}
    codes: dict[str, Any] = {"wire": wire, "codes": "codes", "side": RIGHT}
    project = Project(**first), all_reduce("first codes"), Project(**codes, given="first codes", error=error)
    return expanded(name, project, Expand(**codes), error=error, **how)


def expanded(
    name: str, project: tuple[Stage, ...], expand: Expand, *, error: str | None, sharded: bool = False, after: int = 0
) -> Route:
    """Return a route; gradients travel uncompressed before iteration ``after``. ValueError: sharded updates."""
    if sharded:
        raise ValueError(f"update must be full: {name.partition(' over ')[2]} gives all gradients to each rank")
    recall = (Recall(error=error),) if error else ()
    sent = *recall, *project, reduce_scatter("codes")
    found = all_gather("codes"), expand
    dense: tuple[Stage, ...] = ()
    gathered: tuple[Stage, ...] = ()
    if after:
        sent, found = (tuple(replace(stage, first=after) for stage in stages) for stages in (sent, found))
        dense, gathered = (reduce_scatter("gradients", until=after),), (all_gather("gradients", until=after),)
    return Route(name, (Pack(), *dense, *sent), (*gathered, *found, Update(on=MAIN), Unpack()))


HOW: dict[str, Any] = {"read": partial(whole, "the rank"), "types": tuple(DTYPES), "options": ("error=no", "after=50")}
ACP = Kind(LowRank, acp, example="acp:4", **HOW)
POWERSGD = Kind(LowRank, powersgd, example="powersgd:4", **HOW)
