"""The arguments of a collective call, checked. Every message names the argument, what was given, what is allowed."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from dear_mpi.collectives.algorithms.registry import runner_of
from dear_mpi.collectives.plans.tuning import SEGMENT_BYTES, Rule, alike, default_segment, pick, rules_of
from dear_mpi.collectives.program.contract import COLLECTIVES
from dear_mpi.collectives.program.partition import Partition
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.kernels.array import Array, array_module, library_of
from dear_mpi.kernels.dispatch import kernels_for
from dear_mpi.kernels.dtypes import DTYPES, is_floating
from dear_mpi.kernels.lookup import lookup

__all__ = ["Call"]

MESSAGE_BYTES = 1 << 30  # older MPI libraries count the bytes of a message in 31 bits


@dataclass(frozen=True)
class Call:
    """What a user asked for: one collective on one rank's arrays."""

    collective: str
    x: Array
    out: Array | None
    algorithm: str
    op: str
    segment_bytes: int | None
    weights: Sequence[float] | None
    root: int
    alike: bool = False

    @cached_property
    def rules(self) -> Sequence[Rule] | None:
        """The tuning table of ``auto``, read once because the file may change later; None without ``auto``."""
        rules = rules_of(self.algorithm)
        return alike(rules) if self.alike and rules is not None else rules

    def chosen(self, transport: Transport, *, sharing: bool) -> Call:
        """This call with ``auto`` and None replaced by the algorithm and the segments of the tuning table.

        There may be rules of their own for ranks that work in each other's memory (``sharing``).

        Raises:
            ValueError: no rule fits, or the segments are not allowed.
        """
        algorithm, segment_bytes = self.algorithm, default_segment(transport.hosts)
        if self.rules is not None:
            nbytes = self.count * self.x.dtype.itemsize
            shared = [rule for rule in self.shared_rules if sharing and nbytes <= rule.limit]
            others = [rule for rule in self.rules if runner_of(rule.algorithm) != "shared"]
            rule = pick(shared or others, self.collective, transport.size, nbytes)
            algorithm = rule.algorithm
            if ":" in self.algorithm:  # the segments of the table built in were not measured here
                segment_bytes = rule.segment_bytes
        itemsize, given = self.x.dtype.itemsize, segment_bytes if self.segment_bytes is None else self.segment_bytes
        if not isinstance(given, int):
            raise ValueError(f"segment_bytes must be a whole number, not {given!r}")
        if not itemsize <= given <= MESSAGE_BYTES:
            raise ValueError(f"segment_bytes must be from {itemsize} (one element) to {MESSAGE_BYTES}, not {given}")
        return replace(self, algorithm=algorithm, segment_bytes=given)

    @property
    def shared_rules(self) -> list[Rule]:
        """The rules of this collective for ranks that share memory."""
        rules = [rule for rule in self.rules or () if rule.collective == self.collective]
        return [rule for rule in rules if runner_of(rule.algorithm) == "shared"]

    @property
    def segment(self) -> int:
        """Elements of the largest message, once it is chosen."""
        return (self.segment_bytes or SEGMENT_BYTES) // self.x.dtype.itemsize

    @property
    def pieces(self) -> int:
        """Segments in the whole buffer, rounded up."""
        return -(-self.count // self.segment)

    def hosts(self, transport: Transport) -> tuple[int, ...]:
        """The hosts of the ranks, from the root on."""
        return (*transport.hosts[self.root :], *transport.hosts[: self.root])

    def check(self, transport: Transport) -> dict[str, object]:
        """See that the arguments are allowed, or raise ValueError; those that must be equal on all ranks."""
        lookup("collective", self.collective, COLLECTIVES)
        for name, array in (("x", self.x), ("out", self.out)):
            if array is not None:
                check_array(name, array, written=array is (self.x if self.out is None else self.out))
        self.check_out(transport.rank, self.partition(transport.size))
        check_op(self.op, self.x.dtype, self.collective)
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
            "library of the arrays": library_of(self.x),
            "op": self.op,
            "algorithm": self.algorithm,
            "tuning table": self.rules and zlib.crc32(repr(self.rules).encode()),
            "segment_bytes": self.segment_bytes,
            "weights": None if self.weights is None else tuple(self.weights),
            "root": self.root,
        }

    def partition(self, size: int) -> Partition:
        """How the full buffer splits over the ranks."""
        return Partition.of(self.count, size, self.weights)

    @property
    def count(self) -> int:
        """Elements of the full buffer, which is ``out`` where an all_gather is out of place."""
        return self.out.size if self.collective == "all_gather" and self.out is not None else self.x.size

    def check_out(self, rank: int, partition: Partition) -> None:
        """See that ``out`` fits, and shares no memory with ``x``."""
        if self.out is None:
            return
        if library_of(self.out) != library_of(self.x):
            raise ValueError(f"out must be an array of {library_of(self.x)}, as x is, not of {library_of(self.out)}")
        if self.out.dtype != self.x.dtype:
            raise ValueError(f"out must have the dtype of x, {self.x.dtype}, not {self.out.dtype}")
        own, size = partition.counts[rank], len(partition.counts)
        x_count = own if self.collective == "all_gather" else self.count
        out_count = own if self.collective == "reduce_scatter" else self.count
        for name, array, count in (("x", self.x, x_count), ("out", self.out, out_count)):
            if array.size != count:
                raise ValueError(f"{name} must have {count} elements on rank {rank} of {size}, not {array.size}")
        if array_module(self.x).may_share_memory(self.x, self.out):
            raise ValueError("out must not share memory with x; leave it out to work in place")


def check_array(name: str, array: Array, *, written: bool) -> None:
    """See that an array is contiguous, of a known library and type, and writable if results go into it."""
    kernels_for(array)
    known = is_floating(array.dtype) or np.issubdtype(array.dtype, np.integer)
    if not known or not array.dtype.isnative:
        raise ValueError(f"{name} must be of an integer type or one of {', '.join(DTYPES)}, not {array.dtype}")
    if not array.flags.c_contiguous:
        raise ValueError(f"{name} must be contiguous, not of strides {array.strides}: pass a copy")
    if written and not getattr(array.flags, "writeable", True):  # CuPy arrays always are, and do not say so
        raise ValueError(f"{name} must be writable, because the result is stored there; it is read-only")


def check_op(op: str, dtype: np.dtype[Any], collective: str) -> None:
    """See that the op is known and exists for this type."""
    lookup("op", op, dict.fromkeys(("sum", "prod", "min", "max", "average")))
    if not COLLECTIVES[collective].reduces and op != "sum":
        raise ValueError(f"op must be left out for {collective}, which combines nothing, not {op!r}")
    if op == "average" and not is_floating(dtype):
        raise ValueError(f"op 'average' needs one of {', '.join(DTYPES)}, not {dtype}: use 'sum'")
