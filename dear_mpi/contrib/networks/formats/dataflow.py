"""Turn the data flow of a foreign schedule into programs: give each value a step and a place.

A reader of a format calls ``given``, then ``move`` and ``add`` in any order that respects the data. A **value** is the
data of one chunk on one rank: it is written once, at the end of its step, and read from the next step on. Copies inside
a rank cost nothing: two names of one value. At the end each value gets a place:

    the buffer's chunk    data given at the start, and results
    a scratch copy        other values that are needed meanwhile

Places of a chunk are its **slots**: slot 0 is in the buffer, slot k in scratch copy k. Addressed data (``Contract``)
may also change shards: its slots are the shards of the buffer and of its copies.

    step       0    1    2    3
    given      ======            read last in step 1
    result          ==========   written at the end of step 1: takes over the place
    arrival         =====        its place is taken: goes to scratch 1

A sum takes over the place of its base if nothing reads the base later. Otherwise a local copy precedes the sum.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple

from dear_mpi.collectives.program import Program, Receive, Send, Step
from dear_mpi.collectives.program.program import COLLECTIVES

FOREVER = 1 << 60
MOST_COPIES = 64
MOST_WORK = 1 << 18  # chunks of all ranks, or of all steps, that readers accept


@dataclass(eq=False, slots=True)
class Value:
    """``column``: its chunk's place in a slot; ``made``: its step, -1 for data given at the start."""

    rank: int
    column: int
    made: int = -1
    home: int = -1  # slot of data given at the start
    base: "Value | None" = None
    terms: list["Value"] = field(default_factory=list)
    reads: list[int] = field(default_factory=list)
    names: int = 0  # places of the foreign schedule that hold it


class Transfer(NamedTuple):
    """One chunk; twice its step, as copies take place between steps."""

    time: int
    source: int
    target: int
    combine: bool
    sent: int
    received: int


class LiveRange(NamedTuple):
    """Values that follow each other in one slot, each made from the one before; ``is_free``: any slot will do."""

    is_new: bool  # not given at the start
    is_free: bool
    start: int  # twice the step, as in ``Transfer``
    end: int
    values: list[Value]


class DataFlow:
    def __init__(self, collective: str, size: int, parts: int) -> None:
        self.collective, self.size, self.parts = collective, size, parts
        self.contract = COLLECTIVES[collective]
        self.chunks = size * parts
        self.period = parts if self.contract.addressed else self.chunks
        self.values: list[Value] = []

    def given(self) -> dict[tuple[int, int], Value]:
        """Return the data that ranks have at the start, by rank and chunk."""
        held = self.pairs(self.contract.begins)
        found = {(rank, chunk): Value(rank, chunk % self.period, home=chunk // self.period) for rank, chunk in held}
        self.values += found.values()
        return found

    def pairs(self, holds: Callable[[int, int], bool]) -> list[tuple[int, int]]:
        """Return ranks and the chunks that they hold."""
        every = product(range(self.size), range(self.chunks))
        return [(rank, chunk) for rank, chunk in every if holds(rank, chunk // self.parts)]

    def move(self, source: Value, rank: int, at: int) -> Value:
        """Send a value to another rank, in step ``at`` or later."""
        step = max(at, source.made + 1)
        source.reads.append(step)
        self.values.append(Value(rank, source.column, step, terms=[source]))
        return self.values[-1]

    def add(self, source: Value, base: Value, sent: int, at: int, *, last: bool) -> Value:
        """Combine a value, sent in step ``sent``, with another rank's, or its own, in step ``at`` or later.

        ``last``: no other place holds the base. Sums that nothing has read yet take further terms in their own step.
        """
        if source.column != base.column:
            raise ValueError(f"combines data of chunk {source.column} with data of chunk {base.column}")
        total = base
        if not (last and base.base and not base.reads and base.made >= max(sent, source.made + 1)):
            step = max(at, source.made + 1, base.made + 1)
            base.reads.append(step)
            total = Value(base.rank, base.column, step, base=base)
            self.values.append(total)
        total.terms.append(source)
        source.reads.append(total.made)
        return total

    def programs(self, held: Callable[[int, int], Value | None]) -> list[Program]:
        """Return all ranks' programs; ``held(rank, chunk)`` is the value that the rank ends with in this chunk.

        ValueErrors name the rank and the chunk.
        """
        ends = defaultdict[Value, list[int]](list)  # the slots in which values end
        for rank, chunk in self.pairs(self.contract.ends):
            value, (slot, column) = held(rank, chunk), divmod(chunk, self.period)
            if value is None or value.column != column:
                found = f"data of chunk {value.column}" if value else "nothing"
                raise ValueError(f"rank {rank} ends with {found} in chunk {chunk}")
            ends[value].append(slot)
        self.combine_on_arrival(ends)
        columns = defaultdict[tuple[int, int], list[Value]](list)
        for value in self.values:
            columns[value.rank, value.column].append(value)
        slots = dict[Value, int]()
        for values in columns.values():
            slots |= self.placed(values, ends)

        def transfer(time: int, source: Value, rank: int, slot: int, *, combine: bool = False) -> Transfer:
            sent, received = (each * self.period + source.column for each in (slots[source], slot))
            return Transfer(time, source.rank, rank, combine, sent, received)

        transfers = list[Transfer]()
        for value in self.values:
            rank, slot, base = value.rank, slots[value], value.base
            if base and slots[base] != slot:
                transfers.append(transfer(2 * value.made - 1, base, rank, slot))
            combine = base is not None
            transfers += (transfer(2 * value.made, term, rank, slot, combine=combine) for term in value.terms)
        last = 2 * max((value.made for value in self.values), default=0) + 1
        for value, finals in ends.items():
            transfers += (transfer(last, value, value.rank, slot) for slot in finals if slot != slots[value])
        local = any(each.source == each.target for each in transfers)  # programs without scratch have no local work
        return self.written(transfers, max([each.received // self.chunks for each in transfers] + [int(local)]))

    def combine_on_arrival(self, ends: Collection[Value]) -> None:
        """Delay messages whose data is only added later, so that it needs no place in between."""
        bases = defaultdict[Value, int](lambda: FOREVER)  # the first steps that may replace a value
        for value in self.values:
            if value.base:
                bases[value.base] = min(bases[value.base], value.made)
        gone = set[Value]()
        for total in (value for value in self.values if value.base):
            for number, term in enumerate(total.terms):
                source = term.terms[0] if term.terms and not term.base else total
                once = source.rank != total.rank and term.reads == [total.made] and term not in ends
                if once and bases[source] >= total.made:
                    total.terms[number] = source
                    source.reads.append(total.made)
                    gone.add(term)
        self.values = [value for value in self.values if value not in gone]

    def placed(self, values: list[Value], ends: Mapping[Value, list[int]]) -> dict[Value, int]:
        """Share slots out: first to given data, then to results, then to all others, which take the first that fits."""
        chains, chain_of = list[list[Value]](), dict[Value, list[Value]]()
        for value in values:
            base = value.base
            if base and base not in ends and max(base.reads) == value.made and chain_of[base][-1] is base:
                chain_of[value] = chain_of[base]
            else:
                chain_of[value] = []
                chains.append(chain_of[value])
            chain_of[value].append(value)
        ranges = list[LiveRange]()
        for chain in chains:
            first, last = chain[0], chain[-1]
            end = FOREVER if last in ends else 2 * max(last.made, *last.reads, 0)
            is_new, start = first.home < 0, 2 * first.made - (first.base is not None)
            ranges.append(LiveRange(is_new, is_new and last not in ends, start, end, chain))
        slots, taken = dict[Value, int](), defaultdict[int, list[LiveRange]](list)
        first_copy = self.chunks // self.period
        for live in sorted(ranges, key=lambda live: live[:4]):
            first, finals = live.values[0], ends.get(live.values[-1], [])
            others = range(first_copy if finals else 0, first_copy * (1 + MOST_COPIES))  # a result waits in scratch
            for slot in [*finals, *others] if live.is_new else [first.home]:
                # The later one may be written in the step that reads the earlier one for the last time.
                pairs = [(each, live) if each.start < live.start else (live, each) for each in taken[slot]]
                if all(one.start < other.start and one.end <= other.start for one, other in pairs):
                    break
            else:
                needs = f"needs more than {MOST_COPIES} scratch copies of chunk {first.column}"
                raise ValueError(f"rank {first.rank}, step {first.made}: {needs}")
            if taken[slot] and taken[slot][-1].is_free:  # of free ones, which are in order of time, the last is enough
                taken[slot].pop()
            taken[slot].append(live)
            slots.update(dict.fromkeys(live.values, slot))
        return slots

    def written(self, transfers: list[Transfer], copies: int) -> list[Program]:
        numbers = {time: number for number, time in enumerate(sorted({each.time for each in transfers}))}
        sends = defaultdict[tuple[int, int], list[Send]](list)
        receives = defaultdict[tuple[int, int], list[Receive]](list)
        for first, count in self.merged(transfers):
            step, sent, received = numbers[first.time], first.sent, first.received
            sends[first.source, step].append(Send(first.target, range(sent, sent + count)))
            receive = Receive(first.source, range(received, received + count), first.combine)
            receives[first.target, step].append(receive)

        def steps(rank: int) -> tuple[Step, ...]:
            keys = [(rank, step) for step in numbers.values()]
            return tuple(Step(tuple(sends[key]), tuple(receives[key])) for key in keys)

        return [Program(self.collective, rank, self.size, steps(rank), self.parts, copies) for rank in range(self.size)]

    def merged(self, transfers: list[Transfer]) -> list[tuple[Transfer, int]]:
        """Return runs of neighbouring chunks that travel together, and their lengths. Several sums stay single."""
        terms = Counter((each.time, each.target, each.received) for each in transfers)
        runs = list[tuple[Transfer, int]]()
        for each in sorted(transfers):
            first, count = runs[-1] if runs else (each, 0)
            follows = each == first._replace(sent=first.sent + count, received=first.received + count)
            alone = all(terms[each.time, each.target, each.received - back] == 1 for back in (0, 1))
            if count and follows and alone and each.sent % self.chunks and each.received % self.chunks:
                runs[-1] = first, count + 1
            else:
                runs.append((each, 1))
        return runs
