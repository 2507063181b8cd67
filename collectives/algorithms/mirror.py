"""A reduction is a distribution that runs backwards.

    all_gather          chunk 0 goes    0 --> 1 --> 3         (a tree for each chunk, away from its owner)
                                        0 --> 2
    its mirror image    chunk 0 goes    0 <-- 1 <-- 3         (the same tree, towards the owner, adding up)
                                        0 <-- 2

In an all-gather every rank gets every chunk exactly once, so the paths of a chunk form a tree whose root owns it. Take
the steps in reverse, turn every receive into a send and every send into a receive that combines: every rank then adds
its contribution exactly once, after all contributions from below it in the tree have arrived, and the root has the sum.
Steps, messages and bytes are the all-gather's. One after the other, the two are an all-reduce with the same bits on all
ranks. In the same way a broadcast gives a reduction to its root.

So an algorithm of this kind is written once, as its all-gather or its broadcast.

Source: Chan et al., Collective communication: theory, practice, and experience, CCPE 19 (2007), which calls it duality.
"""

from dataclasses import replace
from functools import wraps

from dear_mpi.collectives.program.program import Algorithm, Program, Receive, Send, Step

MIRROR = {"all_gather": "reduce_scatter", "broadcast": "reduce"}


def family(forth: Algorithm, collective: str | None = None) -> dict[str, Algorithm]:
    """The three collectives that come from what writes an ``all_gather`` or a ``broadcast``, by name; its own name says
    which one, if it is not given.

    >>> from dear_mpi.collectives.algorithms.pairwise import all_gather
    >>> print(family(all_gather)["reduce_scatter"](0, 2))
    rank 0 of 2, reduce_scatter
      step 0: send chunk 1 to rank 1; receive chunk 0 from rank 1, combined with what is there
    """
    name = collective or forth.__name__

    @wraps(forth)
    def back(*args: object, **options: object) -> Program:
        program = forth(*args, **options)
        return replace(program, collective=MIRROR[name], steps=mirrored(program))

    @wraps(forth)
    def all_reduce(*args: object, **options: object) -> Program:
        program = forth(*args, **options)
        return replace(program, collective="all_reduce", steps=mirrored(program) + program.steps)

    return {MIRROR[name]: back, name: forth, "all_reduce": all_reduce}


def mirrored(program: Program) -> tuple[Step, ...]:
    """The steps in reverse, with sends and receives swapped."""
    return tuple(
        Step(
            tuple(Send(receive.peer, receive.chunks) for receive in step.receives),
            tuple(Receive(send.peer, send.chunks, combine=True) for send in step.sends),
        )
        for step in reversed(program.steps)
    )
