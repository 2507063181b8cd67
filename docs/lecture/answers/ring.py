from dear_mpi.collectives.program import Program, Receive, Send, Step


def my_ring(rank, size):
    """Rank r starts with chunk r; all end with all chunks."""
    successor = (rank + 1) % size
    predecessor = (rank - 1) % size
    steps = []
    for s in range(size - 1):
        sent = (rank - s) % size
        received = (sent - 1) % size
        send = Send(successor, range(sent, sent + 1))
        taken = Receive(predecessor, range(received, received + 1))
        steps.append(Step((send,), (taken,)))
    return Program("all_gather", rank, size, tuple(steps))
