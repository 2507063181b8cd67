"""Derive reductions from distributions that run backwards.

    all_gather          chunk 0 goes    0 --> 1 --> 3         (a tree for each chunk, away from its owner)
                                        0 --> 2
    its mirror image    chunk 0 goes    0 <-- 1 <-- 3         (the same tree, towards the owner, adding up)
                                        0 <-- 2

In an all-gather every rank gets every chunk once, so a chunk's paths form a tree rooted at its owner. Reverse the
steps, turn receives into sends, and sends into receives that combine: every rank adds its contribution once, after all
from below it have arrived. Both in turn are an all-reduce with equal bits on all ranks. A broadcast gives a reduction
to its root.

Source: Chan et al., Collective communication: theory, practice, and experience, CCPE 19 (2007): duality.
"""

from dataclasses import replace
from functools import wraps

from dear_mpi.collectives.program.program import Algorithm, Program, Receive, Send, Step

MIRROR = {"all_gather": "reduce_scatter", "broadcast": "reduce"}


def family(forth: Algorithm, collective: str | None = None) -> dict[str, Algorithm]:
    """Return the three collectives of an ``all_gather`` or ``broadcast`` by name.

    >>> from dear_mpi.collectives.algorithms.pairwise import all_gather
    >>> print(family(all_gather)["reduce_scatter"](0, 2))
    rank 0 of 2, reduce_scatter
      step 0: send chunk 1 to rank 1; receive chunk 0 from rank 1, combined with local data
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
    return tuple(
        Step(
            tuple(Send(receive.peer, receive.chunks) for receive in step.receives),
            tuple(Receive(send.peer, send.chunks, combine=True) for send in step.sends),
        )
        for step in reversed(program.steps)
    )
