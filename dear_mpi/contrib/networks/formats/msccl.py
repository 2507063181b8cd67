"""Read MSCCL's XML: what each thread block of each GPU does, step by step, with buffers i, o and s (scratch).

A ``<copy>`` of a GPU goes from i to o before all steps. Order: the steps of a block; step ``deps`` of block ``depid``,
which must be over; the messages of a connection (from, to, channel). If two steps use one place, and one of them writes
it, this order must decide which comes first: else the file has a race, and is refused. The rest is data flow:
``dataflow.py`` finds steps and places for it.

Source: msccl-tools and the interpreter of microsoft/msccl; Cowan et al., MSCCLang, ASPLOS 2023.
"""

import math
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from dear_mpi.collectives.algorithms.registry import fixed
from dear_mpi.collectives.program import Program
from dear_mpi.collectives.program.program import COLLECTIVES
from dear_mpi.contrib.networks.formats.dataflow import MOST_WORK, DataFlow, Value
from dear_mpi.contrib.networks.formats.xml import Element, read_tree
from dear_mpi.reporting.units import plural

NAMES = {name.replace("_", ""): name for name in COLLECTIVES}  # in files: allreduce
INNER = {"algo": ("gpu",), "gpu": ("copy", "tb"), "tb": ("step",)}
TYPES = {
    "nop": (),  # waits only
    "s": ("read", "send"),
    "r": ("recv", "keep"),
    "rcs": ("recv", "keep", "send"),
    "rrc": ("recv", "read", "add", "keep"),
    "rrs": ("recv", "read", "add", "send"),
    "rrcs": ("recv", "read", "add", "keep", "send"),
    "cpy": ("read", "keep"),
    "re": ("read", "add", "keep"),
}
SHARDS = (("all_gather", "i"), ("reduce_scatter", "o"))  # buffers of one shard
MOST_BLOCKS = 1 << 12

Clock: TypeAlias = np.ndarray[Any, np.dtype[np.int32]]
"""The number of steps of each block that are known to be over."""
Place: TypeAlias = tuple[int, str, int]
"""Rank, buffer and chunk."""
Connection: TypeAlias = tuple[int, int, int]
"""From, to and channel."""


@dataclass(eq=False, slots=True)
class Instruction:
    """A step of a block; ``where``: for errors; ``depends``: block and step to wait for, or -1."""

    where: str
    acts: tuple[str, ...]
    source: tuple[str, int]
    target: tuple[str, int]
    count: int
    depends: tuple[int, int]
    signals: bool  # its end, which also ends the waiting for earlier steps
    needs: "Instruction | None" = None  # the one whose signal ends the waiting
    passed: tuple[int, Clock] | None = None  # floor and clock of its block after a signal


@dataclass(eq=False, slots=True)
class Block:
    """``number``: among all blocks; ``floor``: the earliest step of our program for its next message."""

    rank: int
    name: int
    number: int
    out: Connection
    into: Connection
    steps: list[Instruction] = field(default_factory=list)
    signals: list[int] = field(default_factory=list)  # steps that signal
    at: int = 0
    floor: int = 0


@dataclass(slots=True)
class Sent:
    values: list[Value]
    step: int
    clock: Clock
    where: str


def check_names(element: Element) -> None:
    for each in element.inner:
        if each.name not in INNER.get(element.name, ()):
            raise ValueError(f"{each.where}: <{each.name:.30}> is not expected in <{element.name}>")
        check_names(each)


class Reader:
    """Read and check the blocks. ``finer``: our chunks in one of the file's; ``parts``: of ours in a shard."""

    def __init__(self, path: Path) -> None:
        algo = read_tree(path)
        if algo.name != "algo":
            raise ValueError(f"{algo.where}: <{algo.name:.30}> is not expected here, but <algo>")
        check_names(algo)
        self.read_header(algo)
        self.scratch: dict[int, int] = {}  # chunks of each GPU
        self.blocks: dict[tuple[int, int], Block] = {}
        self.copies: list[tuple[int, Element]] = []
        self.connected = set[tuple[str, int, int, int]]()
        self.work = 0
        for gpu in algo.inner:
            rank = gpu.number("id")
            if rank in self.scratch or not 0 <= rank < self.size:
                raise ValueError(f"{gpu.where}: gpu {rank} is defined twice, or is not one of 0..{self.size - 1}")
            self.scratch[rank] = gpu.number("s_chunks", 0)
            for each in gpu.inner:
                if each.name == "tb":
                    self.add_block(rank, each)
                else:
                    self.copies.append((rank, each))
        for block in self.blocks.values():
            self.find_needs(block)

    def read_header(self, algo: Element) -> None:
        coll, total, self.size = algo.attributes.get("coll", ""), algo.number("nchunksperloop"), len(algo.inner)
        self.collective = NAMES.get(coll.replace("_", ""), "")
        self.in_place = algo.attributes.get("inplace", "1") != "0"
        if not self.collective:
            raise ValueError(f"{algo.where}: coll must be one of {', '.join(NAMES)}, not {coll!r:.30}")
        if not self.size or algo.number("ngpus", self.size) != self.size:
            raise ValueError(f"{algo.where}: there are {self.size} gpus: ngpus must be as many, and not 0")
        self.finer = self.size // math.gcd(total, self.size)
        self.parts = total * self.finer // self.size
        if self.finer > 1 and self.collective in ("all_gather", "reduce_scatter", "all_to_all"):
            raise ValueError(f"{algo.where}: nchunksperloop must be a multiple of the {self.size} gpus, not {total}")
        if total < 1 or total * self.size * self.finer > MOST_WORK:
            raise ValueError(f"{algo.where}: {self.size} gpus with {total} chunks are too many, or none")

    def add_block(self, rank: int, tb: Element) -> None:
        name, channel = tb.number("id"), tb.number("chan", 0)
        peers = {"send": tb.number("send", -1), "recv": tb.number("recv", -1)}
        place = f"gpu {rank}, tb {name}"
        if (rank, name) in self.blocks or len(self.blocks) == MOST_BLOCKS:
            raise ValueError(f"{tb.where}: {place} is defined twice, or follows {MOST_BLOCKS} others")
        for what, peer in peers.items():
            if not -1 <= peer < self.size or peer == rank:
                due = f"another gpu of 0..{self.size - 1}, or -1"
                raise ValueError(f"{tb.where}: {place}: {what} must be {due}, not {peer}")
            if peer >= 0 and (what, rank, peer, channel) in self.connected:
                raise ValueError(f"{tb.where}: {place}: another tb has {what} {peer} on channel {channel} as well")
            self.connected.add((what, rank, peer, channel))
        out, into = (rank, peers["send"], channel), (peers["recv"], rank, channel)
        block = self.blocks[rank, name] = Block(rank, name, len(self.blocks), out, into)
        for number, step in enumerate(tb.inner):
            where, kind = f"{step.where}: {place}, step {number}", step.attributes.get("type", "")
            if step.number("s") != number:
                raise ValueError(f"{where}: s is {step.number('s')}, but steps are numbered from 0 on")
            if kind not in TYPES:
                raise ValueError(f"{where}: the type must be one of {', '.join(TYPES)}, not {kind!r:.30}")
            for what, peer in peers.items():
                if what in TYPES[kind] and peer < 0:
                    raise ValueError(f"{where}: its type is {kind}, and its tb has {what} -1")
            count = step.number("cnt", 1, least=int(kind != "nop"))
            self.work += (count or 1) * self.finer
            if self.work > MOST_WORK:
                raise ValueError(f"{where}: the steps up to here have more than {MOST_WORK} chunks in all")
            source = step.attributes.get("srcbuf", ""), step.number("srcoff", -1)
            target = step.attributes.get("dstbuf", ""), step.number("dstoff", -1)
            depends = step.number("depid", -1), step.number("deps", -1)
            signals = step.number("hasdep", 0) > 0
            block.steps.append(Instruction(where, TYPES[kind], source, target, count, depends, signals))
            block.signals += [number] * signals

    def find_needs(self, block: Block) -> None:
        for step in block.steps:
            depid, deps = step.depends
            if -1 not in step.depends:
                other = self.blocks.get((block.rank, depid))
                at = bisect_left(other.signals, deps) if other else 0
                if not other or at == len(other.signals):
                    raise ValueError(f"{step.where}: never ends: no step of tb {depid} from {deps} on has hasdep 1")
                step.needs = other.steps[other.signals[at]]


class Replay:
    """Run the blocks in an order that the file allows."""

    def __init__(self, reader: Reader) -> None:
        self.reader, self.finer = reader, reader.finer
        self.flow = DataFlow(reader.collective, reader.size, reader.parts)
        self.buffers = {"i": "i", "o": "o", "s": "s"}
        if reader.in_place:
            self.buffers |= {"i": "io", "o": "io"}  # one buffer
        self.memory: dict[Place, Value] = {}
        # The last (block, step) that wrote a place, and by block the last step that has read it since.
        self.writers, self.readers = dict[Place, tuple[Block, int]](), defaultdict[Place, dict[Block, int]](dict)
        self.sent = defaultdict[Connection, deque[Sent]](deque)
        self.next_send = defaultdict[Connection, int](int)
        self.clocks = [np.zeros(len(reader.blocks), np.int32) for _ in reader.blocks]
        for (rank, chunk), value in self.flow.given().items():
            self.keep((rank, self.buffers["i"], chunk), value)
        for rank, copy in reader.copies:
            ends, count = (("i", copy.number("i_off")), ("o", copy.number("o_off"))), copy.number("cnt", 1)
            try:
                for one, other in zip(*(self.places(rank, end, count) for end in ends), strict=True):
                    self.keep(other, self.memory[one])
            except (KeyError, ValueError):
                names = " to ".join(f"{buffer}{offset}" for buffer, offset in ends)
                raise ValueError(f"{copy.where}: gpu {rank} cannot copy {names}") from None
        self.run()

    def places(self, rank: int, where: tuple[str, int], count: int) -> list[Place]:
        """Return places by our chunks' numbers; scratch has its own."""
        buffer, offset = where
        if buffer not in self.buffers:
            raise ValueError(f"the buffer must be i, o or s, not {buffer!r:.30}")
        is_shard = (self.reader.collective, buffer) in SHARDS
        chunks = self.reader.parts * (1 if is_shard else self.reader.size)
        room = self.reader.scratch[rank] if buffer == "s" else chunks // self.finer
        if not 0 <= offset <= room - count:
            raise ValueError(f"{buffer} has {room} chunks, and {offset}..{offset + count - 1} are not all among them")
        first = offset * self.finer + (rank * self.reader.parts if is_shard else 0)
        return [(rank, self.buffers[buffer], first + number) for number in range(count * self.finer)]

    def keep(self, place: Place, value: Value) -> None:
        if place in self.memory:
            self.memory[place].names -= 1
        value.names += 1
        self.memory[place] = value

    def read(self, block: Block, places: list[Place]) -> list[Value]:
        self.check_order(block, places, write=False)
        for _, buffer, chunk in [place for place in places if place not in self.memory]:
            raise ValueError(f"reads {buffer}{chunk} before anything is written there")
        return [self.memory[place] for place in places]

    def check_order(self, block: Block, places: list[Place], *, write: bool) -> None:
        clock = self.clocks[block.number]
        for place in places:
            readers = self.readers[place]
            for other, step in (self.writers.get(place, (block, 0)), *(readers.items() if write else ())):
                if other is not block and clock[other.number] <= step:
                    uses = f"{'writes' if write else 'reads'} {place[1]}{place[2]}"
                    raise ValueError(
                        f"{uses} without waiting for step {step} of tb {other.name}, which uses it as well"
                    )
            if write:
                self.writers[place] = block, block.at
                readers.clear()
            else:
                readers[block] = block.at

    def run(self) -> None:
        waiting = defaultdict[Instruction | Connection, list[Block]](list)
        ready = deque(self.reader.blocks.values())
        while ready:
            block = ready.popleft()
            while block.at < len(block.steps):
                step = block.steps[block.at]
                if step.needs and not step.needs.passed:
                    waiting[step.needs].append(block)
                    break
                if "recv" in step.acts and not self.sent[block.into]:
                    waiting[block.into].append(block)
                    break
                try:
                    self.take(block, step)
                except ValueError as error:
                    raise ValueError(f"{step.where}: {error}") from None
                block.at += 1
                ready += [*waiting.pop(step, ()), *waiting.pop(block.out, ())]
        for event, (block, *_) in waiting.items():
            where = block.steps[block.at].where
            if isinstance(event, Instruction):
                raise ValueError(f"{where}: waits for a step that never ends: {event.where}")
            raise ValueError(f"{where}: never receives a message from gpu {event[0]} on channel {event[2]}")
        for (_, peer, channel), messages in self.sent.items():
            for sent in messages:
                raise ValueError(f"{sent.where}: gpu {peer} does not expect this message on channel {channel}")

    def send(self, block: Block, step: Instruction, values: list[Value]) -> None:
        block.floor = max([block.floor, self.next_send[block.out], *(value.made + 1 for value in values)])
        self.next_send[block.out] = block.floor + 1
        for value in values:
            value.names += 1  # the message holds it: it must not become a larger sum
        self.sent[block.out].append(Sent(values, block.floor, self.clocks[block.number].copy(), step.where))

    def take(self, block: Block, step: Instruction) -> None:
        clock, rank, sent = self.clocks[block.number], block.rank, 0
        arrived = list[Value]()
        if step.needs and step.needs.passed:
            floor, known = step.needs.passed
            np.maximum(clock, known, out=clock)
            block.floor = max(block.floor, floor)
        if "recv" in step.acts:
            message = self.sent[block.into].popleft()
            np.maximum(clock, message.clock, out=clock)
            arrived, sent = message.values, message.step
            if len(arrived) != step.count * self.finer:
                chunks = len(arrived) // self.finer
                raise ValueError(f"receives {step.count} chunks, not the {chunks} of {message.where}")
        sources = self.places(rank, step.source, step.count) if "read" in step.acts else []
        targets = self.places(rank, step.target, step.count) if "keep" in step.acts else []
        values = self.read(block, sources)
        at = max(block.floor, sent) if arrived else 0
        if "add" in step.acts:
            terms, bases = (arrived, values) if arrived else (values, self.read(block, targets))
            over = sources == targets or not arrived  # the sums replace their bases
            pairs = zip(terms, bases, strict=True)
            values = [self.flow.add(term, base, sent, at, last=over and base.names == 1) for term, base in pairs]
        elif arrived:
            values = [self.flow.move(value, rank, at) for value in arrived]
        if arrived:
            block.floor = max(value.made for value in values) + 1
        if "keep" in step.acts:
            self.check_order(block, targets, write=True)
            for place, value in zip(targets, values, strict=True):
                self.keep(place, value)
        clock[block.number] = block.at + 1
        if "send" in step.acts:
            self.send(block, step, values)
        if step.signals:
            step.passed = block.floor, clock.copy()


def read_msccl(path: Path) -> list[Program]:
    """Return all ranks' programs, unproved; ValueErrors name the line, the gpu, the thread block and the step."""
    replay = Replay(Reader(path))
    try:
        return replay.flow.programs(lambda rank, chunk: replay.memory.get((rank, replay.buffers["o"], chunk)))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def msccl(text: str) -> dict[str, Callable[..., Program]]:
    """Return the algorithm of ``--algorithm msccl:FILE.xml``, by its collective."""
    programs = read_msccl(Path(text))
    return {programs[0].collective: fixed(programs, f"Read from {text}, for {plural(len(programs), 'rank')}.")}
