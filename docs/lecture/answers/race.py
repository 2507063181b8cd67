from dear_mpi.collectives.program import Program, Receive, Send, Step


def my_doubling(rank, size):
    """Partners exchange all that they have; size: a power of 2."""
    steps, width = [], 1
    while width < size:
        peer = rank ^ width
        mine = rank // width * width
        theirs = peer // width * width
        send = Send(peer, range(mine, mine + width))
        receive = Receive(peer, range(theirs, theirs + width))
        steps.append(Step((send,), (receive,)))
        width *= 2
    return Program("all_gather", rank, size, tuple(steps))
