"""Check the arguments of a collective call; errors name the argument, its value and the allowed values."""

import sys
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from dear_mpi.collectives.lowering.messages import WHOLE, Portion
from dear_mpi.collectives.plans.tuning import SEGMENT_BYTES, Rule, alike, default_segment, pick, rules_of
from dear_mpi.collectives.program.partition import Partition
from dear_mpi.collectives.program.program import COLLECTIVES, the_owner
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.kernels.array import KERNELS, Array, array_module, library_of
from dear_mpi.kernels.dtypes import DTYPES, TYPES, is_floating
from dear_mpi.kernels.lookup import lookup
from dear_mpi.kernels.reference import BITWISE

MESSAGE_BYTES = 1 << 30  # older MPI libraries count bytes in 31 bits
MOST_SEGMENTS = 10**6  # per buffer: more take minutes to plan
OPS = ("sum", "prod", "min", "max", "average", *BITWISE)
PLAIN = (np.ndarray, np.memmap)  # other NumPy arrays redefine operators or hide elements
INSTEAD = {
    "torch.": "pass x.numpy(), which has the same memory",
    "numpy.matrix": "pass numpy.asarray(x)",
    "mpi4py.MPI.InPlaceType": "a call without out works in place",
    "list": "pass one array, such as numpy.array(x)",
}


@dataclass(frozen=True)
class Call:
    """A user's request: one collective on one rank's arrays."""

    collective: str
    x: Array
    out: Array | None
    algorithm: str
    op: str
    segment_bytes: int | None
    weights: Sequence[float] | None
    root: int
    alike: bool = False
    counts: Sequence[int] | None = None
    portion: Portion = WHOLE

    @cached_property
    def rules(self) -> Sequence[Rule] | None:
        """The tuning table of ``auto``, read once because its file may change; None without ``auto``."""
        rules = rules_of(self.algorithm)
        return alike(rules) if self.alike and rules is not None else rules

    def chosen(self, transport: Transport, *, sharing: bool) -> "Call":
        """Replace ``auto`` and None by the tuning table's choice; ``sharing`` puts rules for shared memory first."""
        algorithm, segment_bytes = self.algorithm, default_segment(transport.hosts)
        if self.rules is not None:
            nbytes = self.count * self.x.dtype.itemsize
            shared = [rule for rule in self.shared_rules if sharing and nbytes <= rule.limit]
            by_messages = [rule for rule in self.rules if not rule.shared]
            rule = pick(shared or by_messages, self.collective, transport.size, nbytes)
            algorithm = rule.algorithm
            if ":" in self.algorithm:  # the built-in table's segments were not measured here
                segment_bytes = rule.segment_bytes
        given = segment_bytes if self.segment_bytes is None else self.segment_bytes
        if self.segment_bytes is None:
            given = max(given, self.x.itemsize)  # an element of a user's type may be large
        check_segment(given, self.x.dtype.itemsize)
        if self.count * self.x.dtype.itemsize > MOST_SEGMENTS * given:
            cut = f"cuts {self.count * self.x.dtype.itemsize} bytes into more than {MOST_SEGMENTS} messages"
            raise ValueError(f"segment_bytes {given} {cut}, planning them takes minutes: increase segment_bytes")
        return replace(self, algorithm=algorithm, segment_bytes=given)

    @property
    def shared_rules(self) -> list[Rule]:
        return [rule for rule in self.rules or () if rule.shared and rule.collective == self.collective]

    @property
    def segment(self) -> int:
        return (self.segment_bytes or SEGMENT_BYTES) // self.x.dtype.itemsize

    @property
    def pieces(self) -> int:
        return -(-self.count // self.segment)

    def hosts(self, transport: Transport) -> tuple[int, ...]:
        """From the root on."""
        return (*transport.hosts[self.root :], *transport.hosts[: self.root])

    def check(self, transport: Transport) -> dict[str, object]:
        lookup("collective", self.collective, COLLECTIVES)
        if not isinstance(self.algorithm, str):
            raise ValueError(f"algorithm must be a name such as 'ring', not {self.algorithm!r}")
        contract = COLLECTIVES[self.collective]
        any_order = not contract.addressed and the_owner not in (contract.begins, contract.ends)
        check_array("x", self.x, written=self.out is None, any_order=any_order)
        if self.out is not None:
            check_array("out", self.out, written=True, any_order=any_order)
        partition = self.partition(transport.size)
        if self.out is not None:
            self.check_out(self.out, transport.rank, partition)
        check_op(self.op, self.x, self.collective)
        if self.portion != WHOLE and (self.out is not None or self.op == "average"):
            raise ValueError("portion must be left out if out is given or op is 'average': both need the whole buffer")
        if type(self.root) is not int:
            raise ValueError(f"root must be a whole number, not {self.root!r}")
        rooted = COLLECTIVES[self.collective].rooted
        if not 0 <= self.root < (transport.size if rooted else 1):
            allowed = f"from 0 to {transport.size - 1}" if rooted else f"left out for {self.collective}"
            raise ValueError(f"root must be {allowed}, not {self.root}")
        return {
            "collective": self.collective,
            "count": self.count,
            "dtype": str(self.x.dtype),
            "order of the elements": order_of(self.x),
            "library of the arrays": library_of(self.x),
            "op": self.op,
            "algorithm": self.algorithm,
            "tuning table": self.rules and zlib.crc32(repr(self.rules).encode()),
            "segment_bytes": self.segment_bytes,
            "weights": None if self.weights is None else tuple(self.weights),
            "counts": None if self.counts is None else tuple(self.counts),
            "root": self.root,
            "rates of the transport": transport.rates,
            "portion": tuple(self.portion),
            "whether out is given": self.collective == "reduce_scatter" and self.out is not None,
        }

    def partition(self, size: int) -> Partition:
        """Split the full buffer over the ranks; evenly if data is addressed, because it moves."""
        if COLLECTIVES[self.collective].addressed:
            self.check_even(size)
        if self.counts is None:
            return Partition.of(self.count, size, self.weights)
        if self.weights is not None:
            raise ValueError("weights and counts exclude each other: both define the shards; leave one out")
        return Partition.exactly(self.count, size, self.counts)

    def check_even(self, size: int) -> None:
        for name, given in (("weights", self.weights), ("counts", self.counts)):
            if given is not None:
                due = f"left out for {self.collective}, whose chunks are equal"
                raise ValueError(f"{name} must be {due}, not {given!r}")
        if self.count % size:
            due = f"a multiple of {size} elements for {self.collective}, one equal chunk per rank"
            raise ValueError(f"x must have {due}, not {self.count}")

    @property
    def count(self) -> int:
        return self.out.size if self.collective == "all_gather" and self.out is not None else self.x.size

    def check_out(self, out: Array, rank: int, partition: Partition) -> None:
        if library_of(out) != library_of(self.x):
            raise ValueError(f"out must be an array of {library_of(self.x)}, as x is, not of {library_of(out)}")
        if out.dtype != self.x.dtype:
            raise ValueError(f"out must have the dtype of x, {self.x.dtype}, not {out.dtype}")
        if order_of(out) != order_of(self.x):
            raise ValueError(f"out must have its elements in the order of x, {order_of(self.x)}, not {order_of(out)}")
        own, size = partition.counts[rank], len(partition.counts)
        for name, array, shard_in in (("x", self.x, "all_gather"), ("out", out, "reduce_scatter")):
            count = own if self.collective == shard_in else self.count
            if array.size != count:
                raise ValueError(f"{name} must have {count} elements on rank {rank} of {size}, not {array.size}")
        if array_module(self.x).may_share_memory(self.x, out):
            raise ValueError("out must not share memory with x; leave it out to work in place")


def plain(value: Any) -> Any:
    if isinstance(value, np.integer):
        return int(value)
    mpi = sys.modules.get("mpi4py.MPI")  # loaded if the value can be one of its operators
    if mpi is not None and isinstance(value, mpi.Op):
        names = [name for name in OPS if name != "average"]
        return next((name for name in names if value == getattr(mpi, name.upper())), "another operator of MPI")
    return value


def check_segment(given: object, itemsize: int) -> None:
    if type(given) is not int or not itemsize <= given <= MESSAGE_BYTES:
        allowed = f"a whole number from {itemsize} (one element) to {MESSAGE_BYTES}"
        raise ValueError(f"segment_bytes must be {allowed}, not {given!r}")


def order_of(array: Array) -> str:
    return "C" if array.flags.c_contiguous else "Fortran" if array.flags.f_contiguous else ""


def flat(array: Array) -> Array:
    return (array if array.flags.c_contiguous else array.T).reshape(-1)


def check_array(name: str, array: Array, *, written: bool, any_order: bool) -> None:
    library = library_of(array)
    if library not in KERNELS or (library == "numpy" and type(array) not in PLAIN):
        given = f"{type(array).__module__}.{type(array).__qualname__}".removeprefix("builtins.")
        hints = [f": {instead}" for start, instead in INSTEAD.items() if given.startswith(start)]
        raise ValueError(f"{name} must be a plain array of NumPy or CuPy, not {given}{''.join(hints)}")
    if array.dtype.hasobject or not array.itemsize:
        raise ValueError(
            f"{name} must have elements of a fixed size, above 0, without Python objects, not {array.dtype}"
        )
    if not order_of(array):
        raise ValueError(f"{name} must be contiguous, not of strides {array.strides}: pass a copy")
    if not (any_order or array.flags.c_contiguous):
        raise ValueError(
            f"{name} must be in C order, because ranks own slices of it: pass numpy.ascontiguousarray({name})"
        )
    if written and not getattr(array.flags, "writeable", True):  # CuPy arrays always are, but lack the flag
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
        where, swapped = "" if on_host else " on a GPU", not x.dtype.isnative and kind in "biufc"
        hint = f": pass x.astype({native.name!r})" * swapped
        raise ValueError(f"x must be of {allowed} for {collective}{where}, not {x.dtype}{hint}")
    if op == "average" and not is_floating(x.dtype):
        raise ValueError(f"op 'average' needs one of {floats}, not {x.dtype}: use 'sum'")
    if op in BITWISE and (kind not in "iub" or not on_host):
        raise ValueError(f"op {op!r} needs integers or bool, in an array of NumPy, not {x.dtype} of {library_of(x)}")
    if op in ("min", "max") and kind == "c":
        raise ValueError(f"op {op!r} needs ordered numbers, not {x.dtype}")
