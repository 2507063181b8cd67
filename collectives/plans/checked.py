"""A run of messages that is looked at: what each message carries, and what each step leaves in the buffer.

As a recorded run it is bound anew, and the run that it is made of stays as it is.
"""

from collections.abc import Callable, Iterator, Sequence

from dear_mpi.collectives.plans.execution import Action, BoundInstruction
from dear_mpi.collectives.plans.runners.messages import MessagesRun
from dear_mpi.collectives.transports.transport import Request, Wrapper
from dear_mpi.kernels.array import Array

SENT, ARRIVED, MERGED = range(3)  # points of a step, in the order in which data goes through them
Look = Callable[[int, int, Array], object]
"""Is given the point, a number into ``MessagesRun.listing.messages``, and the elements of that message: as it leaves,
as it has arrived, and (where it came beside the buffer) after it was combined with what was there or copied there."""


class CheckedRun(MessagesRun):
    """The same run, on the same memory, whose blocking runs (``whole``) call ``look``; free it after use.

    The two share side buffers, so a run of one must be over when a run of the other begins.
    """

    def __init__(self, run: MessagesRun, look: Look) -> None:
        vars(self).update(vars(run))
        self.look = look
        self.bind_all()

    def bound(self, requests: Sequence[Request]) -> Iterator[BoundInstruction]:
        return super().bound([CheckedRequest(self, number, request) for number, request in enumerate(requests)])

    def merge(self, group: Sequence[int]) -> Action:
        action, target, look = super().merge(group), self.carried(group[0]), self.look

        def merged() -> None:
            action()
            look(MERGED, group[0], target)

        return merged


class CheckedRequest(Wrapper[Request]):
    """A request that is looked at when it is over, if it receives, or before it starts."""

    def __init__(self, run: CheckedRun, number: int, request: Request) -> None:
        super().__init__(request)
        self.look, self.number = run.look, number
        self.incoming = run.listing.messages[number].incoming
        self.array = run.beside.get(number, run.carried(number))

    def Start(self) -> None:
        if not self.incoming:
            self.look(SENT, self.number, self.array)
        self.below.Start()

    def Wait(self) -> None:
        self.below.Wait()
        if self.incoming:
            self.look(ARRIVED, self.number, self.array)
