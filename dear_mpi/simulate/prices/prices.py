"""Cache prices of collectives by query."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from dear_mpi.collectives.algorithms.registry import find_algorithm, lacks_rates, runner_of
from dear_mpi.collectives.program.network import Network
from dear_mpi.collectives.program.program import Algorithm, Program, asks_for, write_program
from dear_mpi.kernels.array import Array
from dear_mpi.simulate.prices.lockstep import Columns, find_lockstep, find_stand_ins
from dear_mpi.simulate.topology import ShapedNetwork, Topology

Key = tuple[str, str, int]
"""Algorithm, collective, and into how many pieces the buffer is cut."""


class Replay(Protocol):
    """Replay the programs of a collective on all ranks."""

    def seconds(self, network: Network, counts: Array, itemsize: int) -> Array:
        """Return the time until the last rank is done, for each buffer size.

        Args:
            network: of any costs, with the hosts that the programs were written for.
            counts: elements of the buffers, int64, shape (sizes,), each divisible by the number of ranks.
            itemsize: bytes of an element.

        Returns:
            Seconds, float64, shape (sizes,).

        Raises:
            ProgramError: the programs deadlock (``verify`` shows the place).
        """


@dataclass(frozen=True)
class Prices:
    """Price collectives on a network among a number of ranks.

    Attributes:
        segment_bytes: approximate segment size of segmented algorithms.
        itemsize: bytes of an element: chunks are cut between elements.
        found: (algorithm, collective, bytes): seconds, of all queries so far.
        alike: by the first and the last rank's programs, the first number of pieces with these.
        replays: the programs to replay for it: in lockstep if no two of their messages meet.
    """

    network: Network
    ranks: int
    segment_bytes: int
    itemsize: int = 4
    found: dict[tuple[str, str, int], float] = field(default_factory=dict, repr=False)
    alike: dict[tuple[Program, ...], int] = field(default_factory=dict, repr=False)
    replays: dict[Key, Replay] = field(default_factory=dict, repr=False)

    def seconds(self, algorithm: str, collective: str, nbytes: Sequence[int] | Array) -> Array:
        """Return the time until the last rank is done, as ``cost`` does for equal shards.

        Beyond 64 ranks, a few represent all if they look alike at some places (``find_stand_ins``).

        Args:
            nbytes: of whole buffers, shape (sizes,), each divisible by ranks x itemsize.

        Returns:
            float64, shape (sizes,), in seconds.

        Raises:
            ValueError: as for ``check_algorithm``; bytes that cannot be cut into equal shards; or too much to replay.

        >>> prices = Prices(Network(beta=1e-9), ranks=4096, segment_bytes=1 << 20)
        >>> prices.seconds("ring", "all_gather", [4096 * 1000, 4096 * 2000]).round(6)
        array([0.004095, 0.00819 ])
        """
        asked = [int(each) for each in nbytes]
        self.check_algorithm(algorithm, [collective])
        wrong = [each for each in asked if each < 0 or each % (self.ranks * self.itemsize)]
        if wrong:
            grain = f"{self.ranks} ranks x {self.itemsize} bytes"
            raise ValueError(f"nbytes must be >= 0 and divisible by {grain}, not {wrong[0]}")
        groups = defaultdict[Key, list[int]](list)
        function = find_algorithm(algorithm, collective)
        for each in sorted({each for each in asked if (algorithm, collective, each) not in self.found}):
            groups[algorithm, collective, self.pieces(function, each)].append(each)
        for key, group in groups.items():
            times = self.replayed(key, group)
            self.found.update({(algorithm, collective, each): float(s) for each, s in zip(group, times, strict=True)})
        return np.array([self.found[algorithm, collective, each] for each in asked])

    def pieces(self, function: Algorithm, nbytes: int) -> int:
        """Return the number of pieces passed to an algorithm.

        It is an earlier number if the first and the last rank then have the same programs.
        """
        if not asks_for(function, "pieces"):
            return 1
        pieces, hosts, rates = -(-nbytes // self.segment_bytes), self.hosts, self.plain.rates
        ends = tuple(
            write_program(function, rank, self.ranks, hosts=hosts, rates=rates, pieces=pieces)
            for rank in (0, self.ranks - 1)
        )
        return self.alike.setdefault(ends, pieces)

    def one_s(self, algorithm: str, collective: str, nbytes: int) -> float:
        """Return the seconds for one buffer."""
        return float(self.seconds(algorithm, collective, [nbytes])[0])

    def check_algorithm(self, algorithm: str, collectives: Iterable[str]) -> None:
        """Raise ValueError if there is no such algorithm of these collectives, or none that sends messages."""
        if runner_of(algorithm) != "messages":
            raise ValueError(f"algorithm {algorithm!r} sends no messages, so it has no price on a network")
        for collective in collectives:
            find_algorithm(algorithm, collective)

    def replayed(self, key: Key, nbytes: Sequence[int]) -> Array:
        """Return the times of buffers that are cut into equally many pieces."""
        if key not in self.replays:
            self.replays[key] = self.replay(*key)
        return self.replays[key].seconds(self.plain, np.array(nbytes) // self.itemsize, self.itemsize)

    def replay(self, algorithm: str, collective: str, pieces: int) -> Replay:
        function, network, even = find_algorithm(algorithm, collective), self.plain, self.topology is None
        ranks = find_stand_ins(function, self.ranks, self.hosts, pieces, rates=network.rates, even=even)
        return find_lockstep(ranks, network) or Columns(ranks)

    def lacks_rates(self, algorithm: str) -> bool:
        """Return whether an algorithm needs rates inside and between hosts, which a topology does not have."""
        return lacks_rates(algorithm, self.hosts or (), self.plain.rates)

    @property
    def topology(self) -> Topology | None:
        return self.network.topology if isinstance(self.network, ShapedNetwork) else None

    @property
    def hosts(self) -> Sequence[int] | None:
        """Return the hosts that programs are written for."""
        return self.plain.hosts if self.topology is None else self.topology.neighbourhoods(self.ranks)

    @property
    def plain(self) -> Network:
        """Return the network, without hosts if there is only one: then no port is shared."""
        return replace(self.network, hosts=None) if len(set(self.network.hosts or ())) < 2 else self.network
