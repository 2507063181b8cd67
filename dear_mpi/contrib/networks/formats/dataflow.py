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
from collections.abc import Callable, Collection, Iterator, Mapping
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


@dataclass(eq=False, slots=True)
class Place:
    """Values that follow each other in one slot, each made from the one before."""

    start: int
    end: int
    values: list[Value]
    slot: int = -1

    @property
    def is_free(self) -> bool:
        """Whether any slot will do: it holds neither given data nor results."""
        return self.values[0].home < 0 and self.end < FOREVER


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
        last = 2 * max((value.made for value in self.values), default=0) + 1
        slots, transfers = dict[Value, int](), list[Transfer]()
        for (rank, column), values in columns.items():
            for place in self.placed(values, ends):
                slots.update(dict.fromkeys(place.values, place.slot))
                for slot in (slot for value in place.values for slot in ends.get(value, ()) if slot != place.slot):
                    sent, received = (each * self.period + column for each in (place.slot, slot))
                    transfers.append(Transfer(last, rank, rank, False, sent, received))
        transfers += (each for value in self.values for each in self.arrivals(value, slots))
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

    def placed(self, values: list[Value], ends: Mapping[Value, list[int]]) -> list[Place]:
        """Share slots out: first to given data, then to results, then to all others, which take the first that fits."""
        follows, last = dict[Value, Value](), {value: max(value.reads, default=0) for value in values}
        for value in values:
            if value.base and value.base not in ends and last[value.base] == value.made:
                follows[value.base] = value
        places, later = list[Place](), set(follows.values())
        for value in (value for value in values if value not in later):
            chain = [value]
            while chain[-1] in follows:
                chain.append(follows[chain[-1]])
            used = max(chain[-1].made, *(last[each] for each in chain))
            end = FOREVER if any(each in ends for each in chain) else 2 * used
            places.append(Place(2 * value.made - (value.base is not None), end, chain))
        places.sort(key=lambda place: (place.values[0].home < 0, place.is_free, place.start, place.end))
        taken = defaultdict[int, list[Place]](list)
        first_copy = self.chunks // self.period
        for place in places:
            first, finals = place.values[0], [slot for each in place.values for slot in ends.get(each, ())]
            others = range(first_copy if finals else 0, first_copy * (1 + MOST_COPIES))  # a result waits in scratch
            for place.slot in [first.home] if first.home >= 0 else [*finals, *others]:
                slot = taken[place.slot]
                # The later one may be written in the step that reads the earlier one for the last time.
                if all(
                    place.start != each.start and (place.end <= each.start or each.end <= place.start) for each in slot
                ):
                    break
            else:
                needs = f"needs more than {MOST_COPIES} scratch copies of chunk {first.column}"
                raise ValueError(f"rank {first.rank}, step {first.made}: {needs}")
            if slot and slot[-1].is_free:  # of free ones, which are in order of time, the last is enough
                slot.pop()
            slot.append(place)
        return places

    def arrivals(self, value: Value, slots: Mapping[Value, int]) -> Iterator[Transfer]:
        rank, to = value.rank, slots[value] * self.period + value.column
        if value.base and slots[value.base] != slots[value]:
            sent = slots[value.base] * self.period + value.column
            yield Transfer(2 * value.made - 1, rank, rank, False, sent, to)
        for term in value.terms:
            sent = slots[term] * self.period + value.column
            yield Transfer(2 * value.made, term.rank, rank, value.base is not None, sent, to)

    def written(self, transfers: list[Transfer], copies: int) -> list[Program]:
        numbers = {time: number for number, time in enumerate(sorted({each.time for each in transfers}))}
        sends = defaultdict[tuple[int, int], list[Send]](list)
        receives = defaultdict[tuple[int, int], list[Receive]](list)
        for first, count in self.merged(transfers):
            step, sent, received = numbers[first.time], first.sent, first.received
            sends[first.source, step].append(Send(first.target, range(sent, sent + count)))
            receive = Receive(first.source, range(received, received + count), first.combine)
            receives[first.target, step].append(receive)
        return [
            Program(
                self.collective,
                rank,
                self.size,
                tuple(Step(tuple(sends[rank, step]), tuple(receives[rank, step])) for step in numbers.values()),
                self.parts,
                copies,
            )
            for rank in range(self.size)
        ]

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
