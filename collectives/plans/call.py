"""Check a collective call; errors name the argument, its value and the allowed values."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from dear_mpi.collectives.lowering.messages import WHOLE, Portion
from dear_mpi.collectives.plans.tuning import SEGMENT_BYTES, Rule, alike, default_segment, pick, rules_of
from dear_mpi.collectives.program.program import COLLECTIVES, Partition
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.kernels.array import KERNELS, Array, array_module, library_of
from dear_mpi.kernels.calls import copier
from dear_mpi.kernels.dtypes import DTYPES, TYPES, is_floating
from dear_mpi.kernels.lookup import lookup
from dear_mpi.kernels.reference import BITWISE
from dear_mpi.kernels.slab import Slab

MESSAGE_BYTES = 1 << 30  # older MPI libraries count bytes in 31 bits
MOST_SEGMENTS = 10**6  # per buffer: more take minutes to plan
OPS = ("sum", "prod", "min", "max", "average", *BITWISE)
PLAIN = (np.ndarray, np.memmap)  # others redefine operators or hide elements


@dataclass(frozen=True)
class Call:
    collective: str
    x: Array
    out: Array | None
    algorithm: str
    op: str
    segment_bytes: int | None
    root: int
    alike: bool = False
    counts: Sequence[int] | None = None
    portion: Portion = WHOLE

    @property
    def count(self) -> int:
        return self.out.size if self.collective == "all_gather" and self.out is not None else self.x.size

    @property
    def nbytes(self) -> int:
        return self.count * self.x.dtype.itemsize

    @property
    def segment(self) -> int:
        return (self.segment_bytes or SEGMENT_BYTES) // self.x.dtype.itemsize

    @property
    def pieces(self) -> int:
        return -(-self.count // self.segment)

    def hosts(self, transport: Transport) -> tuple[int, ...]:
        """Return the ranks' hosts from the root on."""
        return (*transport.hosts[self.root :], *transport.hosts[: self.root])

    @cached_property
    def rules(self) -> Sequence[Rule] | None:
        """The table of ``auto``, read once because its file may change, or None."""
        rules = rules_of(self.algorithm)
        return alike(rules) if self.alike and rules is not None else rules

    @property
    def shared_rules(self) -> list[Rule]:
        return [rule for rule in self.rules or () if rule.shared and rule.collective == self.collective]

    def chosen(self, transport: Transport, *, sharing: bool) -> Call:
        """Replace ``auto`` and None by the table's choice; ``sharing``: shared memory's rules first."""
        algorithm, segment_bytes = self.algorithm, default_segment(transport.hosts)
        if self.rules is not None:
            shared = [rule for rule in self.shared_rules if sharing and self.nbytes <= rule.limit]
            by_messages = [rule for rule in self.rules if not rule.shared]
            rule = pick(shared or by_messages, self.collective, transport.size, self.nbytes)
            algorithm = rule.algorithm
            if ":" in self.algorithm:  # the built-in table's were not measured here
                segment_bytes = rule.segment_bytes
        least = max(segment_bytes, self.x.itemsize)  # a user's type may be large
        segment_bytes = least if self.segment_bytes is None else self.segment_bytes
        check_segment(segment_bytes, self.x.dtype.itemsize)
        if self.nbytes > MOST_SEGMENTS * segment_bytes:
            cut = f"cuts {self.nbytes} bytes into more than {MOST_SEGMENTS} messages"
            raise ValueError(
                f"segment_bytes {segment_bytes} {cut}, planning them takes minutes: increase segment_bytes"
            )
        return replace(self, algorithm=algorithm, segment_bytes=segment_bytes)

    def scales(self, size: int) -> tuple[float, float]:
        """Return factors for contributions and result; a power of two keeps the bits."""
        if self.op != "average":
            return 1.0, 1.0
        first = 0.5 ** (size - 1).bit_length() if self.x.dtype == DTYPES["fp16"] else 1.0
        return first, 1 / (size * first)

    def check(self, transport: Transport) -> dict[str, object]:
        """Return what must be equal on all ranks, or raise a ValueError."""
        contract = lookup("collective", self.collective, COLLECTIVES)
        if not isinstance(self.algorithm, str):
            raise ValueError(f"algorithm must be a name such as 'ring', not {self.algorithm!r}")
        check_array("x", self.x, written=self.out is None)
        if self.out is not None:
            check_array("out", self.out, written=True)
        partition = self.partition(transport.size)
        if self.out is not None:
            self.check_out(self.out, transport.rank, partition)
        check_op(self.op, self.x, self.collective)
        if self.portion != WHOLE and (self.out is not None or self.op == "average"):
            raise ValueError("portion must be left out if out is given or op is 'average': both need the whole buffer")
        if type(self.root) is not int or not 0 <= self.root < (transport.size if contract.rooted else 1):
            most = f"a whole number from 0 to {transport.size - 1}"
            raise ValueError(f"root must be {most if contract.rooted else 'left out'}, not {self.root!r}")
        return {
            "collective": self.collective,
            "count": self.count,
            "dtype": str(self.x.dtype),
            "library of the arrays": library_of(self.x),
            "op": self.op,
            "algorithm": self.algorithm,
            "tuning table": self.rules and zlib.crc32(repr(self.rules).encode()),
            "segment_bytes": self.segment_bytes,
            "counts": None if self.counts is None else tuple(self.counts),
            "root": self.root,
            "rates of the transport": transport.rates,
            "portion": tuple(self.portion),
            "whether out is given": self.collective == "reduce_scatter" and self.out is not None,
        }

    def partition(self, size: int) -> Partition:
        if COLLECTIVES[self.collective].addressed:
            if self.counts is not None:
                due = f"left out for {self.collective}, whose chunks are equal"
                raise ValueError(f"counts must be {due}, not {self.counts!r}")
            if self.count % size:
                due = f"a multiple of {size} elements for {self.collective}, one equal chunk per rank"
                raise ValueError(f"x must have {due}, not {self.count}")
        if self.counts is None:
            return Partition.of(self.count, size)
        return Partition.exactly(self.count, size, self.counts)

    def check_out(self, out: Array, rank: int, partition: Partition) -> None:
        for what, kind in (("library", library_of), ("dtype", lambda array: array.dtype)):
            if kind(out) != kind(self.x):
                raise ValueError(f"out must have the {what} of x, {kind(self.x)}, not {kind(out)}")
        own, size = partition.counts[rank], len(partition.counts)
        for name, array, shard_in in (("x", self.x, "all_gather"), ("out", out, "reduce_scatter")):
            count = own if self.collective == shard_in else self.count
            if array.size != count:
                raise ValueError(f"{name} must have {count} elements on rank {rank} of {size}, not {array.size}")
        if array_module(self.x).may_share_memory(self.x, out):
            raise ValueError("out must not share memory with x; leave it out to work in place")


@dataclass(frozen=True)
class Task:
    call: Call
    transport: Transport
    tag: int  # equal on all ranks
    slab: Slab | None  # for side buffers
    buffer: Array  # flat; updated in place
    result: Array
    before: Sequence[Callable[[], object]]  # copies around a run
    after: Sequence[Callable[[], object]]
    reached: Any = None  # all ranks' (``Reach``), if reachable

    @classmethod
    def of(cls, call: Call, transport: Transport, tag: int, slab: Slab | None = None) -> Task:
        """Work in ``x``, in ``out``, or (reduce_scatter with ``out``) in a new buffer."""
        own, scatters = call.partition(transport.size).shard(transport.rank), call.collective == "reduce_scatter"
        first, last = call.scales(transport.size)
        x = call.x.reshape(-1)
        if call.out is None:
            scaled = x[own] if scatters else x
            buffer, result = x, scaled if scatters else call.x
            before, after = scaling(x, first), scaling(scaled, last)
        elif scatters:
            buffer, result = array_module(x).empty_like(x), call.out
            before, after = [copier(buffer, x, first)], [copier(result.reshape(-1), buffer[own], last)]
        else:
            buffer, result = call.out.reshape(-1), call.out
            arriving = buffer[own] if call.collective == "all_gather" else buffer
            before, after = [copier(arriving, x, first)], scaling(buffer, last)
        return cls(call, transport, tag, slab, buffer, result, before, after)

    def on(self, buffer: Array) -> Task:
        call = replace(self.call, x=buffer, out=None)
        return replace(Task.of(call, self.transport, self.tag, self.slab), reached=self.reached)

    @property
    def op(self) -> str:
        return "sum" if self.call.op == "average" else self.call.op  # the plan scales the sum


def scaling(array: Array, factor: float) -> list[Callable[[], object]]:
    return [copier(array, array, factor)] if factor != 1 else []


def plain(value: Any) -> Any:
    return int(value) if isinstance(value, np.integer) else value


def check_segment(given: object, itemsize: int) -> None:
    if type(given) is not int or not itemsize <= given <= MESSAGE_BYTES:
        allowed = f"a whole number from {itemsize} (one element) to {MESSAGE_BYTES}"
        raise ValueError(f"segment_bytes must be {allowed}, not {given!r}")


def check_array(name: str, array: Array, *, written: bool) -> None:
    library = library_of(array)
    if library not in KERNELS or (library == "numpy" and type(array) not in PLAIN):
        given = f"{type(array).__module__}.{type(array).__qualname__}".removeprefix("builtins.")
        hint = ": pass x.numpy(), which has the same memory" if library == "torch" else ""
        raise ValueError(f"{name} must be a plain array of NumPy or CuPy, not {given}{hint}")
    if array.dtype.hasobject or not array.itemsize:
        due = "elements of a fixed size, above 0, without Python objects"
        raise ValueError(f"{name} must have {due}, not {array.dtype}")
    if not array.flags.c_contiguous:
        raise ValueError(f"{name} must be contiguous, in C order, not of strides {array.strides}: pass a copy")
    if written and not getattr(array.flags, "writeable", True):  # CuPy arrays lack the flag
        raise ValueError(f"{name} must be writable, because the result is stored there; it is read-only")


def check_op(op: str, x: Array, collective: str) -> None:
    lookup("op", op, dict.fromkeys(OPS))
    if not COLLECTIVES[collective].reduces:
        if op != "sum":
            raise ValueError(f"op must be left out for {collective}, which combines nothing, not {op!r}")
        return
    kind, floats, on_host = x.dtype.kind, ", ".join(DTYPES), library_of(x) == "numpy"
    if x.dtype not in TYPES.values() and not (on_host and kind in "bfc" and x.dtype.isnative):
        allowed = f"an integer type{', bool, complex' * on_host} or one of {floats}"
        native = x.dtype.newbyteorder("=")
        hint = f": pass x.astype({native.name!r})" * (not x.dtype.isnative and kind in "biufc")
        raise ValueError(f"x must be of {allowed} for {collective}{' on a GPU' * (not on_host)}, not {x.dtype}{hint}")
    if op == "average" and not is_floating(x.dtype):
        raise ValueError(f"op 'average' needs one of {floats}, not {x.dtype}: use 'sum'")
    if op in BITWISE and (kind not in "iub" or not on_host):
        raise ValueError(f"op {op!r} needs integers or bool, in an array of NumPy, not {x.dtype} of {library_of(x)}")
    if op in ("min", "max") and kind == "c":
        raise ValueError(f"op {op!r} needs ordered numbers, not {x.dtype}")
