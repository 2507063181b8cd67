"""A reduce-scatter is an all-gather that runs backwards.

    all_gather          chunk 0 goes    0 --> 1 --> 3         (a tree for each chunk, away from its owner)
                                        0 --> 2
    its mirror image    chunk 0 goes    0 <-- 1 <-- 3         (the same tree, towards the owner, adding up)
                                        0 <-- 2

In an all-gather every rank gets every chunk exactly once, so the ways of a chunk form a tree whose root owns it. Take
the steps in reverse, let every receive be a send and every send a receive that combines: every rank then adds its
contribution exactly once, after all of those behind it have arrived, and the root has the sum. Steps, messages and
bytes are those of the all-gather. Both after one another are an all-reduce, with the same bits on all ranks.

So an algorithm of this kind is written once, as its all-gather.

Source: Chan et al., Collective communication: theory, practice, and experience, CCPE 19 (2007), which calls it duality.
"""

from __future__ import annotations

from dear_mpi.collectives.program import Algorithm, Program, Receive, Send, Step

__all__ = ["family"]


def family(all_gather: Algorithm) -> dict[str, Algorithm]:
    """The three collectives that come from one all-gather, by name.

    >>> from dear_mpi.collectives.pairwise import all_gather
    >>> print(family(all_gather)["reduce_scatter"](0, 2))
    rank 0 of 2, reduce_scatter
      step 0: send chunk 1 to rank 1; receive chunk 0 from rank 1, combined with what is there
    """

    def reduce_scatter(rank: int, size: int) -> Program:
        return Program("reduce_scatter", rank, size, mirrored(all_gather(rank, size)))

    def all_reduce(rank: int, size: int) -> Program:
        gather = all_gather(rank, size)
        return Program("all_reduce", rank, size, mirrored(gather) + gather.steps)

    return {"reduce_scatter": reduce_scatter, "all_gather": all_gather, "all_reduce": all_reduce}


def mirrored(program: Program) -> tuple[Step, ...]:
    """The steps in reverse, with sends and receives swapped."""
    return tuple(
        Step(
            tuple(Send(receive.peer, receive.chunks) for receive in step.receives),
            tuple(Receive(send.peer, send.chunks, combine=True) for send in step.sends),
        )
        for step in reversed(program.steps)
    )
