"""Read MSCCL's XML: what each thread block of each GPU does, step by step, with buffers i, o and s (scratch).

    s   send                     rrc   receive, add, keep          cpy   copy inside the GPU
    r   receive                  rrs   receive, add, send          re    add inside the GPU
    rcs receive, keep, send      rrcs  receive, add, keep, send    nop   wait for ``depid`` and ``deps`` only

A ``<copy>`` of a GPU goes from i to o before all steps. Order: the steps of a block; step ``deps`` of block ``depid``,
which must be over; the messages of a connection (from, to, channel). If two steps use one place, and one of them writes
it, this order must decide which comes first: else the file has a race, and is refused. The rest is data flow:
``dataflow.py`` finds steps and places for it.

Source: msccl-tools and the interpreter of microsoft/msccl; Cowan et al., MSCCLang, ASPLOS 2023.
"""

import math
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain, product
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from dear_mpi.collectives.algorithms.registry import fixed
from dear_mpi.collectives.program import Program
from dear_mpi.collectives.program.program import COLLECTIVES
from dear_mpi.contrib.networks.formats.dataflow import DataFlow, Value
from dear_mpi.contrib.networks.formats.xml import Attributes, read_elements, whole
from dear_mpi.reporting.units import plural

NAMES = {name.replace("_", ""): name for name in COLLECTIVES}  # in files: allreduce
SENDS, RECEIVES = ("s", "rcs", "rrs", "rrcs"), ("r", "rcs", "rrc", "rrs", "rrcs")
READS, KEEPS = ("s", "cpy", "re", "rrc", "rrs", "rrcs"), ("r", "rcs", "rrc", "rrcs", "cpy", "re")
SUMS = ("re", "rrc", "rrs", "rrcs")
SHARDS = (("all_gather", "i"), ("reduce_scatter", "o"))  # buffers of one shard
MOST_RANKS, MOST_BLOCKS, MOST_CHUNKS, MOST_WORK = 1024, 1 << 12, 1 << 16, 1 << 18

Clock: TypeAlias = np.ndarray[Any, np.dtype[np.int32]]
"""The number of steps of each block that are known to be over."""
Place: TypeAlias = tuple[int, str, int]
"""Rank, buffer and chunk."""


@dataclass(slots=True)
class Line:
    """A step; ``needs``: the block and step to wait for."""

    line: int
    kind: str
    source: tuple[str, int]
    target: tuple[str, int]
    count: int
    needs: tuple[int, int] | None


@dataclass(eq=False, slots=True)
class Block:
    """``number``: among all blocks; ``floor``: the earliest step of our program for its next message."""

    rank: int
    name: int
    number: int
    send: int
    receive: int
    channel: int
    lines: list[Line] = field(default_factory=list)
    signals: list[int] = field(default_factory=list)  # steps with hasdep 1: they also end the waiting for earlier ones
    at: int = 0
    floor: int = 0
    floors: list[int] = field(default_factory=list)  # after each step
    clocks: dict[int, Clock] = field(default_factory=dict)  # after the steps that others wait for


@dataclass(slots=True)
class Sent:
    values: list[Value]
    step: int
    clock: Clock
    where: str


class Reader:
    def __init__(self, path: Path) -> None:
        self.path, self.algo = path, dict[str, str]()
        self.gpus: dict[int, dict[int, Block]] = {}
        self.scratch: dict[int, int] = {}
        self.blocks: list[Block] = []
        self.copies: list[tuple[int, int, int, int, int]] = []  # of a rank, at the start
        self.open: list[str] = []
        self.work = 0
        read_elements(path, self.begin, lambda name: self.open.pop())

    def begin(self, name: str, attributes: Attributes, line: int) -> None:
        due = ("algo", "gpu", "tb", "step")[len(self.open)] if len(self.open) < 4 else "nothing"
        if name != due and (name, due) != ("copy", "tb"):
            raise ValueError(f"<{name:.30}> is not expected here, but <{due}>")
        self.open.append(name)
        if name == "algo":
            self.algo = dict(attributes)
        elif name == "gpu":
            rank = whole(attributes, "id", most=MOST_RANKS)
            if rank in self.gpus:
                raise ValueError(f"gpu {rank} is there twice")
            self.gpus[rank], self.scratch[rank] = {}, whole(attributes, "s_chunks", 0, most=MOST_CHUNKS)
        elif name == "copy":
            source, target = whole(attributes, "i_off"), whole(attributes, "o_off")
            self.copies.append((next(reversed(self.gpus)), source, target, whole(attributes, "cnt", 1), line))
        elif name == "tb":
            rank, blocks = next(reversed(self.gpus.items()))
            send, receive = (whole(attributes, each, -1, least=-1, most=MOST_RANKS) for each in ("send", "recv"))
            block = Block(rank, whole(attributes, "id"), len(self.blocks), send, receive, whole(attributes, "chan", 0))
            if block.name in blocks or len(self.blocks) == MOST_BLOCKS:
                raise ValueError(f"gpu {rank}, tb {block.name} is there twice, or follows {MOST_BLOCKS} others")
            blocks[block.name] = block
            self.blocks.append(block)
        else:
            self.add_step(attributes, line)

    def add_step(self, attributes: Attributes, line: int) -> None:
        block, kind = self.blocks[-1], attributes.get("type", "")
        number = whole(attributes, "s")
        if number != len(block.lines):
            raise ValueError(f"step {number} must be {len(block.lines)}: steps are numbered from 0 on")
        if kind not in ("nop", *READS, *KEEPS):
            raise ValueError(f"the type must be one of nop, {', '.join(sorted({*READS, *KEEPS}))}, not {kind!r:.30}")
        places = list[tuple[str, int]]()
        for end in ("src", "dst"):
            buffer, offset = attributes.get(f"{end}buf", ""), whole(attributes, f"{end}off", -1, least=-1)
            if buffer not in ("i", "o", "s") and kind != "nop":
                raise ValueError(f"{end}buf must be i, o or s, not {buffer!r:.30}")
            places.append((buffer, offset))
        needs = whole(attributes, "depid", -1, least=-1), whole(attributes, "deps", -1, least=-1)
        count = whole(attributes, "cnt", 1, least=int(kind != "nop"))
        self.work += count or 1
        if self.work > MOST_WORK:
            raise ValueError(f"the steps have more than {MOST_WORK} chunks in all")
        if whole(attributes, "hasdep", 0, most=1):
            block.signals.append(number)
        source, target = places
        block.lines.append(Line(line, kind, source, target, count, None if -1 in needs else needs))

    def name(self, block: Block, number: int | None = None) -> str:
        number = block.at if number is None else number
        return f"{self.path}, line {block.lines[number].line}: gpu {block.rank}, tb {block.name}, step {number}"

    def checked(self) -> tuple[str, int, int, int]:
        """Return the collective, the number of ranks, the chunks of a shard, and of our chunks in one of the file."""
        size, collective = len(self.gpus), NAMES.get(self.algo.get("coll", "").replace("_", ""))
        try:
            if collective is None:
                raise ValueError(f"coll must be one of {', '.join(NAMES)}, not {self.algo.get('coll', '')!r:.30}")
            if sorted(self.gpus) != list(range(size)) or not size or whole(self.algo, "ngpus", size) != size:
                raise ValueError(f"the gpus must be numbered 0 to ngpus - 1, not {sorted(self.gpus)!s:.60}")
            total = whole(self.algo, "nchunksperloop", least=1, most=MOST_CHUNKS)
            finer = size // math.gcd(total, size)
            if finer > 1 and collective in ("all_gather", "reduce_scatter", "all_to_all"):
                raise ValueError(f"nchunksperloop must be a multiple of the {size} gpus, not {total}")
            if max(total * size, self.work) * finer > MOST_WORK:
                raise ValueError(f"{size} gpus with {total} chunks are too many")
        except ValueError as error:
            raise ValueError(f"{self.path}, <algo>: {error}") from None
        self.check_blocks(size)
        return collective, size, total * finer // size, finer

    def check_blocks(self, size: int) -> None:
        seen = set[tuple[str, int, int, int]]()
        for block in self.blocks:
            where = f"{self.path}: gpu {block.rank}, tb {block.name}"
            for what, peer in (("send", block.send), ("recv", block.receive)):
                if not -1 <= peer < size or peer == block.rank:
                    raise ValueError(f"{where}: {what} must be another gpu of 0..{size - 1}, or -1, not {peer}")
                key = what, block.rank, peer, block.channel
                if peer >= 0 and key in seen:
                    raise ValueError(f"{where}: another tb has {what} {peer} on channel {block.channel} as well")
                seen.add(key)
            for number, line in enumerate(block.lines):
                if line.kind in SENDS and block.send < 0:
                    raise ValueError(f"{self.name(block, number)}: sends, and its tb has send -1")
                if line.kind in RECEIVES and block.receive < 0:
                    raise ValueError(f"{self.name(block, number)}: receives, and its tb has recv -1")
                if line.needs:
                    depid, deps = line.needs
                    signals = self.gpus[block.rank][depid].signals if depid in self.gpus[block.rank] else []
                    if not signals or signals[-1] < deps:
                        ends = f"waits for ever: no step of tb {depid} from {deps} on has hasdep 1"
                        raise ValueError(f"{self.name(block, number)}: {ends}")
                    line.needs = depid, signals[bisect_left(signals, deps)]


class Replay:
    """Run the blocks in an order that the file allows."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.collective, self.size, self.parts, self.finer = reader.checked()
        self.flow = DataFlow(self.collective, self.size, self.parts)
        self.in_place = reader.algo.get("inplace", "1") != "0"
        self.memory: dict[Place, Value] = {}
        # The last (block, step) that wrote a place, and by block the last step that has read it since.
        self.writers, self.readers = dict[Place, tuple[int, int]](), defaultdict[Place, dict[int, int]](dict)
        self.sent = defaultdict[tuple[int, int, int], deque[Sent]](deque)
        self.next_send = defaultdict[tuple[int, int, int], int](int)
        self.clocks = [np.zeros(len(reader.blocks), np.int32) for _ in reader.blocks]
        self.awaited = {(block.rank, *line.needs) for block in reader.blocks for line in block.lines if line.needs}
        contract = COLLECTIVES[self.collective]
        for place, rank, chunk in self.owned(contract.begins, "i"):
            self.keep(place, self.flow.given(rank, chunk))
        for rank, source, target, count, line in reader.copies:
            try:
                pairs = self.places(rank, ("i", source), count), self.places(rank, ("o", target), count)
                for one, other in zip(*pairs, strict=True):
                    self.keep(other, self.memory[one])
            except (KeyError, ValueError):
                fault = f"line {line}: gpu {rank} cannot copy i{source} to o{target}"
                raise ValueError(f"{reader.path}, {fault}") from None
        self.run()
        ends = self.owned(contract.ends, "o")
        self.results = {(rank, chunk): self.result(place, rank, chunk) for place, rank, chunk in ends}

    def owned(self, holds: Callable[[int, int], bool], buffer: str) -> Iterator[tuple[Place, int, int]]:
        for rank, chunk in product(range(self.size), range(self.size * self.parts)):
            if holds(rank, chunk // self.parts):
                yield self.canonical(rank, buffer, chunk - self.first(rank, buffer)), rank, chunk

    def first(self, rank: int, buffer: str) -> int:
        return rank * self.parts if (self.collective, buffer) in SHARDS else 0

    def canonical(self, rank: int, buffer: str, offset: int) -> Place:
        """In place, i and o are one buffer."""
        if buffer == "s" or not self.in_place:
            return rank, buffer, offset
        return rank, "io", offset + self.first(rank, buffer)

    def places(self, rank: int, where: tuple[str, int], count: int) -> list[Place]:
        buffer, offset = where
        chunks = self.parts if (self.collective, buffer) in SHARDS else self.parts * self.size
        room = self.reader.scratch[rank] if buffer == "s" else chunks // self.finer
        if offset < 0 or offset + count > room:
            raise ValueError(f"{buffer} has {room} chunks, and {offset}..{offset + count - 1} are not all among them")
        numbers = range(offset * self.finer, (offset + count) * self.finer)
        return [self.canonical(rank, buffer, number) for number in numbers]

    def result(self, place: Place, rank: int, chunk: int) -> Value:
        value = self.memory.get(place)
        if value is None or value.column != self.flow.column(chunk):
            found = f"ends with {f'data of chunk {value.column}' if value else 'nothing'} in {place[1]}{place[2]}"
            raise ValueError(f"{self.reader.path}: gpu {rank} {found}, not chunk {chunk}")
        return value

    def keep(self, place: Place, value: Value) -> None:
        if place in self.memory:
            self.memory[place].names -= 1
        value.names += 1
        self.memory[place] = value

    def read(self, block: Block, places: list[Place]) -> list[Value]:
        self.check_order(block, places, write=False)
        for _, buffer, offset in [place for place in places if place not in self.memory]:
            raise ValueError(f"reads {buffer}{offset} before anything is written there")
        return [self.memory[place] for place in places]

    def check_order(self, block: Block, places: list[Place], *, write: bool) -> None:
        clock = self.clocks[block.number]
        for place in places:
            readers = self.readers[place]
            for number, step in (self.writers.get(place, (block.number, 0)), *(readers.items() if write else ())):
                if number != block.number and clock[number] <= step:
                    uses = f"{'writes' if write else 'reads'} {place[1]}{place[2]}"
                    other = f"step {step} of tb {self.reader.blocks[number].name}, which uses it as well"
                    raise ValueError(f"{uses} without waiting for {other}")
            if write:
                self.writers[place] = block.number, block.at
                readers.clear()
            else:
                readers[block.number] = block.at

    def run(self) -> None:
        waiting, ready = defaultdict[tuple[Any, ...], list[Block]](list), deque(self.reader.blocks)
        while ready:
            block = ready.popleft()
            while block.at < len(block.lines):
                awaited = self.awaits(block)
                if awaited:
                    waiting[awaited].append(block)
                    break
                try:
                    self.take(block, block.lines[block.at])
                except ValueError as error:
                    raise ValueError(f"{self.reader.name(block)}: {error}") from None
                block.at += 1
                ready += waiting.pop(("step", block.rank, block.name, block.at - 1), ())
                ready += waiting.pop(("message", block.rank, block.send, block.channel), ())
        for (what, rank, one, other), blocks in waiting.items():
            event = f"step {other} of tb {one}" if what == "step" else f"a message from gpu {rank} on channel {other}"
            raise ValueError(f"{self.reader.name(blocks[0])}: waits for ever for {event}")
        for sent in chain.from_iterable(self.sent.values()):
            raise ValueError(f"{sent.where}: the receiver does not expect this message")

    def awaits(self, block: Block) -> tuple[Any, ...] | None:
        line = block.lines[block.at]
        if line.needs and self.reader.gpus[block.rank][line.needs[0]].at <= line.needs[1]:
            return "step", block.rank, *line.needs
        connection = block.receive, block.rank, block.channel
        return ("message", *connection) if line.kind in RECEIVES and not self.sent[connection] else None

    def sums(self, values: list[Value], bases: list[Value], sent: int, at: int, *, over: bool) -> list[Value]:
        """Return the sums; ``over``: they replace their bases."""
        pairs = zip(values, bases, strict=True)
        return [self.flow.add(value, base, sent, at, last=over and base.names == 1) for value, base in pairs]

    def send(self, block: Block, values: list[Value]) -> None:
        connection = block.rank, block.send, block.channel
        block.floor = max([block.floor, self.next_send[connection], *(value.made + 1 for value in values)])
        self.next_send[connection] = block.floor + 1
        for value in values:
            value.names += 1  # the message holds it: it must not become a larger sum
        clock = self.clocks[block.number].copy()
        self.sent[connection].append(Sent(values, block.floor, clock, self.reader.name(block)))

    def take(self, block: Block, line: Line) -> None:
        clock, rank, sent = self.clocks[block.number], block.rank, 0
        arrived = list[Value]()
        if line.needs:
            other = self.reader.gpus[rank][line.needs[0]]
            np.maximum(clock, other.clocks[line.needs[1]], out=clock)
            block.floor = max(block.floor, other.floors[line.needs[1]])
        if line.kind in RECEIVES:
            message = self.sent[block.receive, rank, block.channel].popleft()
            np.maximum(clock, message.clock, out=clock)
            arrived, sent = message.values, message.step
            if len(arrived) != line.count * self.finer:
                raise ValueError(
                    f"receives {line.count} chunks, not the {len(arrived) // self.finer} of {message.where}"
                )
        sources = self.places(rank, line.source, line.count) if line.kind in READS else []
        targets = self.places(rank, line.target, line.count) if line.kind in KEEPS else []
        values = self.read(block, sources)
        if line.kind == "re":
            values = self.sums(values, self.read(block, targets), 0, 0, over=True)
        elif line.kind in SUMS:
            values = self.sums(arrived, values, sent, max(block.floor, sent), over=sources == targets)
        elif arrived:
            values = [self.flow.move(value, rank, max(block.floor, sent)) for value in arrived]
        if line.kind in RECEIVES:
            block.floor = max(value.made for value in values) + 1
        if line.kind in KEEPS:
            self.check_order(block, targets, write=True)
            for place, value in zip(targets, values, strict=True):
                self.keep(place, value)
        clock[block.number] = block.at + 1
        if line.kind in SENDS:
            self.send(block, values)
        block.floors.append(block.floor)
        if (rank, block.name, block.at) in self.awaited:
            block.clocks[block.at] = clock.copy()


def read_msccl(path: Path) -> list[Program]:
    """Return all ranks' programs, unproved; ValueErrors name the line, the gpu, the thread block and the step."""
    replay = Replay(Reader(path))
    try:
        return replay.flow.programs(replay.results)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def msccl(text: str) -> dict[str, Callable[..., Program]]:
    """Return the algorithm of ``--algorithm msccl:FILE.xml``, by its collective."""
    programs = read_msccl(Path(text))
    return {programs[0].collective: fixed(programs, f"Read from {text}, for {plural(len(programs), 'rank')}.")}
