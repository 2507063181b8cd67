"""Exchange bytes between all ranks, in sizes that may differ, without a kept plan."""

from collections.abc import Sequence

import numpy as np

from dear_mpi.collectives.plans.call import MESSAGE_BYTES
from dear_mpi.collectives.plans.notes import Part
from dear_mpi.collectives.plans.plan import Act, InstructionRun, RunningOperation, waiting
from dear_mpi.collectives.program.errors import MismatchError
from dear_mpi.collectives.transports.agree import agree
from dear_mpi.collectives.transports.transport import Request, Transport
from dear_mpi.kernels.array import Array


def exchange(transport: Transport, what: str, outgoing: Sequence[Array], incoming: Sequence[Array]) -> None:
    """Collective: send ``outgoing[r]`` to each rank r and receive ``incoming[r]`` from it, in any sizes.

    ``what`` names the call in messages; arrays are flat, of bytes. No plan is kept. MismatchError on all ranks: sizes
    of two ranks differ.
    """
    transport.one_thread.run(exchange_alone, transport, what, outgoing, incoming)


def exchange_alone(transport: Transport, what: str, outgoing: Sequence[Array], incoming: Sequence[Array]) -> None:
    tag = transport.next_tag()
    agree(transport, what, dict)
    sizes = transport.gather_values(([each.size for each in outgoing], [each.size for each in incoming]))
    for sender, (sent, _) in enumerate(sizes):
        for receiver, (_, expected) in enumerate(sizes):
            if sent[receiver] != expected[sender]:
                said = f"rank {sender} sends {sent[receiver]} bytes to rank {receiver}"
                raise MismatchError(f"{what}: {said}, which expects {expected[sender]}")
    np.copyto(incoming[transport.rank], outgoing[transport.rank])
    requests, ends = list[Request](), list[Part]()
    for is_incoming, prepare, arrays in ((True, transport.recv_init, incoming), (False, transport.send_init, outgoing)):
        for peer, array in enumerate(arrays):
            for start in range(0, array.size * (peer != transport.rank), MESSAGE_BYTES):
                requests.append(prepare(array[start : start + MESSAGE_BYTES], peer, tag))
                ends.append(Part("ending", peer=peer, incoming=is_incoming))
    begins = [Act(end._replace(kind="starting"), request.Start) for end, request in zip(ends, requests, strict=True)]
    messages = InstructionRun(transport.rank, [*begins, *map(waiting, ends, requests)], requests)
    operation = RunningOperation(messages, what, transport)
    operation.whole()
    messages.free()
