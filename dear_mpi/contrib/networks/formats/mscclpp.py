"""Write programs as MSCCL++'s execution plans: JSON with one thread block per GPU.

In each step a rank signals its sources that its mailboxes are free. Then it puts its data into its targets' mailboxes,
and reads its own mailboxes when their data is there. Mailboxes are scratch after the program's copies, so that nothing
is overwritten before it is sent. A pair of ranks has two channels: one for mailboxes, one for data.

Source: microsoft/mscclpp, the reader of plans and the examples of its tests.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from dear_mpi.collectives.program import Program, Receive
from dear_mpi.contrib.networks.formats.exports import local_pairs, place_of
from dear_mpi.reporting.units import grouped

MEMORY = {"channel_type": "memory"}
Op = dict[str, Any]


def mscclpp_plan(programs: Sequence[Program]) -> str:
    first = programs[0]
    mail = (sum(len(receive.chunks) for receive in step.receives) for each in programs for step in each.steps)
    scratch = first.scratch * first.chunks + max(mail, default=0)
    plan = {
        "name": f"dear-mpi {first.collective}",
        "collective": first.collective.replace("_", ""),
        "protocol": "Simple",
        "inplace": True,
        "reuse_resources": False,
        "gpus": [gpu_of(programs, program.rank, scratch) for program in programs],
        "num_threads_per_block": 1024,
        "use_double_scratch_buffer": False,
        "buffer_alignment": 16,
    }
    return json.dumps(plan, indent=1) + "\n"


def gpu_of(programs: Sequence[Program], rank: int, scratch: int) -> dict[str, Any]:
    program = programs[rank]
    peers = sorted({each.peer for step in program.steps for each in step.sends + step.receives} - {rank})
    ids, shards = list(range(2 * len(peers))), {"all_gather": "input", "reduce_scatter": "output"}
    sizes = {f"{end}_chunks": program.chunks for end in ("input", "output")}
    if program.collective in shards:
        sizes[f"{shards[program.collective]}_chunks"] = program.parts
    block = {
        "id": 0,
        "ops": [op for number in range(len(program.steps)) for op in ops_of(programs, rank, number, peers)],
        "channels": [MEMORY | {"channel_ids": ids}],
        "remote_buffer_refs": [{"access_channel_type": "memory", "remote_buffer_ids": ids[: len(peers)]}],
    }
    return {
        "id": rank,
        **sizes,
        "scratch_chunks": scratch,
        "threadblocks": [block],
        "channels": [MEMORY | {"connected_to": [peer for peer in peers for _ in range(2)]}],
        "remote_buffers": [{"rank": peer, "type": "s", "access_channel_types": ["memory"]} for peer in peers],
        "semaphores": [],
    }


def ops_of(programs: Sequence[Program], rank: int, number: int, peers: list[int]) -> Iterator[Op]:
    program, step = programs[rank], programs[rank].steps[number]

    def channel(name: str, peer: int, which: int) -> Op:
        return MEMORY | {"name": name, "channel_ids": [2 * peers.index(peer) + which]}

    def buffer(chunks: range) -> Op:
        kind, index = place_of(program, chunks)
        return {"type": kind, "index": index, "size": len(chunks)}

    def take(source: Op, receive: Receive) -> Iterator[Op]:
        target = buffer(receive.chunks)
        if receive.combine:
            yield {"name": "re", "src_buff": [target, source], "dst_buff": [target], "reduce_op": "sum"}
        else:
            yield {"name": "copy", "src_buff": [source], "dst_buff": [target]}
        yield {"name": "nop"}

    own = list(mailboxes(program, number))
    sources = dict.fromkeys(receive.peer for receive, _ in own)
    yield from (channel("signal", peer, 0) for peer in sources)
    for peer, sends in grouped((send for send in step.sends if send.peer != rank), lambda send: send.peer).items():
        yield channel("wait", peer, 0)
        places = [place for receive, place in mailboxes(programs[peer], number) if receive.peer == rank]
        for send, place in zip(sends, places, strict=True):
            target = {"buffer_id": peers.index(peer), "index": place, "size": len(send.chunks)}
            yield MEMORY | {"name": "put", "src_buff": [buffer(send.chunks)], "dst_buff": [target]}
        yield {"name": "nop"}
        yield channel("signal", peer, 1)
    for send, receive in local_pairs(rank, number, step):
        yield from take(buffer(send.chunks), receive)
    yield from (channel("wait", peer, 1) for peer in sources)
    yield {"name": "nop"}
    for receive, place in own:
        yield from take({"type": "s", "index": place, "size": len(receive.chunks)}, receive)


def mailboxes(program: Program, number: int) -> Iterator[tuple[Receive, int]]:
    """Yield a step's receives from other ranks, each with the place in scratch where its data arrives."""
    place = program.scratch * program.chunks
    for receive in program.steps[number].receives:
        if receive.peer != program.rank:
            yield receive, place
            place += len(receive.chunks)
