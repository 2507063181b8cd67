"""Write programs as MSCCL's XML, as GOAL (LogGOPSim) and as Chakra's execution traces.

A program's steps become actions. An action needs the last writer of each chunk that it reads, and all users of each
chunk that it writes. Nothing else orders the actions of a rank, so the files are causally complete.

Sources: GOAL, Hoefler, Siebert and Lumsdaine, ICPP 2009; Chakra, mlcommons/chakra (``et_def.proto``).
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from dear_mpi.collectives import Partition
from dear_mpi.collectives.program import Program, Receive, Send, Step

NS_PER_BYTE = 0.1  # of a sum, in GOAL and in Chakra: an assumption
SEND, RECEIVE, LOCAL = "send", "recv", "local"
# The protobuf field of an attribute's value in Chakra: int32 is 7, int64 9, uint64 13, bool 27.
ATTRIBUTES = {"comm_size": 9, "comm_src": 7, "comm_dst": 7, "comm_tag": 7, "num_ops": 9, "tensor_size": 13}
ATTRIBUTES |= {"is_cpu_op": 27}


class Action(NamedTuple):
    """``tag``: the number of earlier messages between the two ranks; ``needs``: earlier actions, by number."""

    kind: str
    peer: int
    read: range
    written: range
    combine: bool
    tag: int
    needs: tuple[int, ...]


def actions(program: Program) -> list[Action]:
    found, tags = list[Action](), Counter[tuple[str, int]]()
    writers, readers = dict[int, int](), defaultdict[int, list[int]](list)
    for number, step in enumerate(program.steps):
        for kind, peer, read, written, combine in in_order(program.rank, number, step):
            used = {writers[chunk] for chunk in (*read, *written) if chunk in writers}
            used.update(reader for chunk in written for reader in readers[chunk])
            found.append(Action(kind, peer, read, written, combine, tags[kind, peer], tuple(sorted(used))))
            tags[kind, peer] += 1
            for chunk in read:
                readers[chunk].append(len(found) - 1)
            for chunk in written:
                writers[chunk], readers[chunk] = len(found) - 1, []
    return found


def in_order(rank: int, number: int, step: Step) -> Iterator[tuple[str, int, range, range, bool]]:
    """Yield sends, then local transfers, then receives: all read the buffer before it changes."""
    for send in step.sends:
        if send.peer != rank:
            yield SEND, send.peer, send.chunks, range(0), False
    for send, receive in local_pairs(rank, number, step):
        yield LOCAL, rank, send.chunks, receive.chunks, receive.combine
    for receive in step.receives:
        if receive.peer != rank:
            yield RECEIVE, receive.peer, range(0), receive.chunks, receive.combine


def local_pairs(rank: int, number: int, step: Step) -> Iterator[tuple[Send, Receive]]:
    """Yield a rank's transfers to itself, those first whose target no other one reads."""
    own = [send for send in step.sends if send.peer == rank]
    mine = list(zip(own, [receive for receive in step.receives if receive.peer == rank], strict=True))
    while mine:
        for pair in mine:
            if not any({*pair[1].chunks} & {*other[0].chunks} for other in mine if other is not pair):
                break
        else:
            raise ValueError(f"rank {rank}, step {number}: local transfers overwrite each other's data: use two steps")
        mine.remove(pair)
        yield pair


def bytes_of(program: Program, nbytes: int) -> Callable[[range], int]:
    """Return a function of chunks, for a buffer of ``nbytes`` bytes."""
    borders = Partition.of(nbytes, program.size).chunks(program.parts)
    sizes = [stop - start for start, stop in pairwise(borders)]
    return lambda chunks: sum(sizes[chunk % program.chunks] for chunk in chunks)


def goal_lines(programs: Sequence[Program], nbytes: int) -> Iterator[str]:
    """Yield a line for each send, receive and sum (``calc``, in ns), and for each line that it requires."""
    yield f"num_ranks {len(programs)}"
    for program in programs:
        size_of = bytes_of(program, nbytes)
        yield f"\nrank {program.rank} {{"
        for number, action in enumerate(actions(program)):
            size, name = size_of(action.read or action.written), f"l{number}"
            needs = [f"l{need}" for need in action.needs]
            if action.kind != LOCAL:
                first, way = f"m{number}" if action.combine else name, "to" if action.kind == SEND else "from"
                yield f"{first}: {action.kind} {size}b {way} {action.peer} tag {action.tag}"
                yield from (f"{first} requires {need}" for need in needs)
                needs = [first]
            if action.kind == LOCAL or action.combine:
                yield f"{name}: calc {round(size * NS_PER_BYTE * action.combine)}"
                yield from (f"{name} requires {need}" for need in needs)
        yield "}"


def msccl_lines(programs: Sequence[Program]) -> Iterator[str]:
    """Yield in-place XML: each rank has a thread block for each peer and direction, and one for local work."""
    first = programs[0]
    coll = first.collective.replace("_", "")
    yield (
        f'<algo name="dear-mpi {first.collective}" proto="Simple" nchannels="1" nchunksperloop="{first.chunks}" '
        f'ngpus="{len(programs)}" coll="{coll}" inplace="1" outofplace="0" minBytes="0" maxBytes="1099511627776">'
    )
    for program in programs:
        scratch = program.scratch * program.chunks
        sizes = [program.parts if coll == each else program.chunks for each in ("allgather", "reducescatter")]
        yield f'  <gpu id="{program.rank}" i_chunks="{sizes[0]}" o_chunks="{sizes[1]}" s_chunks="{scratch}">'
        for block, ((kind, peer), steps) in enumerate(blocks_of(program).items()):
            send, receive = (peer if kind == each else -1 for each in (SEND, RECEIVE))
            yield f'    <tb id="{block}" send="{send}" recv="{receive}" chan="0">'
            yield from (f'      <step s="{number}" {text}/>' for number, text in enumerate(steps))
            yield "    </tb>"
        yield "  </gpu>"
    yield "</algo>"


def blocks_of(program: Program) -> dict[tuple[str, int], list[str]]:
    """Return each thread block's steps. A step waits for at most one other: further ones become nops before it."""
    found = actions(program)
    blocks, places = dict[tuple[str, int], list[str]](), list[tuple[int, int]]()  # block and step of each action
    names = {key: number for number, key in enumerate(dict.fromkeys((each.kind, each.peer) for each in found))}
    known = list[dict[int, int]]()  # by action: the last step of each block that is over once it is over
    over = defaultdict[int, dict[int, int]](dict)
    awaited = {need for each in found for need in each.needs}
    for number, action in enumerate(found):
        own = names[action.kind, action.peer]
        steps, waits = blocks.setdefault((action.kind, action.peer), []), list[tuple[int, int]]()
        for need in sorted(action.needs, reverse=True):
            block, step = places[need]
            if block != own and over[own].get(block, -1) < step:
                waits.append((block, step))
                for each, last in known[need].items():
                    over[own][each] = max(last, over[own].get(each, -1))
        for wait in waits[1:]:
            steps.append(step_text("nop", ("i", -1), ("o", -1), 0, wait, has_dep=False))
        places.append((own, len(steps)))
        known.append(over[own] | {own: len(steps)})
        kind = {SEND: "s", RECEIVE: "rrc" if action.combine else "r", LOCAL: "re" if action.combine else "cpy"}
        chunks, wait = action.read or action.written, (*waits, (-1, -1))[0]
        read, written = place_of(program, chunks), place_of(program, action.written or action.read)
        steps.append(step_text(kind[action.kind], read, written, len(chunks), wait, has_dep=number in awaited))
    return blocks


def place_of(program: Program, chunks: range) -> tuple[str, int]:
    if chunks.start >= program.chunks:
        return "s", chunks.start - program.chunks
    return "o" if program.collective == "all_gather" else "i", chunks.start


def step_text(
    kind: str, read: tuple[str, int], written: tuple[str, int], count: int, wait: tuple[int, int], *, has_dep: bool
) -> str:
    return (
        f'type="{kind}" srcbuf="{read[0]}" srcoff="{read[1]}" dstbuf="{written[0]}" dstoff="{written[1]}" '
        f'cnt="{count}" depid="{wait[0]}" deps="{wait[1]}" hasdep="{int(has_dep)}"'
    )


def chakra_trace(program: Program, nbytes: int) -> bytes:
    """Return a rank's file: protobuf messages, each after its length."""
    return b"".join(varint(len(message)) + message for message in chakra_messages(program, nbytes))


def chakra_messages(program: Program, nbytes: int) -> Iterator[bytes]:
    size_of, numbers, count = bytes_of(program, nbytes), list[int](), 0
    yield field(1, "0.0.4")
    for action in actions(program):
        needs, size = [numbers[need] for need in action.needs], size_of(action.read or action.written)
        if action.kind != LOCAL:
            source, dest = (program.rank, action.peer)[:: 1 if action.kind == SEND else -1]
            ends = {"comm_size": size, "comm_src": source, "comm_dst": dest, "comm_tag": action.tag}
            yield node(count, f"{action.kind} {action.peer}", 5 if action.kind == SEND else 6, needs, ends)
            needs, count = [count], count + 1
        if action.kind == LOCAL or action.combine:
            micros = round(size * NS_PER_BYTE * action.combine / 1000)
            work = {"num_ops": size * action.combine, "tensor_size": size}
            yield node(count, "sum" if action.combine else "copy", 4, needs, work, micros=micros)
            count += 1
        numbers.append(count - 1)


def node(
    number: int, name: str, kind: int, needs: Sequence[int], attributes: Mapping[str, int], *, micros: int = 0
) -> bytes:
    needed = field(5, b"".join(map(varint, needs))) if needs else b""
    values = {**attributes, "is_cpu_op": 0}.items()
    said = b"".join(field(10, field(1, each) + field(ATTRIBUTES[each], value)) for each, value in values)
    return field(1, number) + field(2, name) + field(3, kind) + needed + field(7, micros) + said


def field(number: int, value: int | str | bytes) -> bytes:
    """Return a field of a protobuf message."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    content = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint(value: int) -> bytes:
    head = bytearray()
    while value > 0x7F:
        head.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(head) + bytes([value])
