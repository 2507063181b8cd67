"""Observe a run of messages: the content of each message and the buffer after each step."""

from collections.abc import Callable, Iterator, Sequence

from dear_mpi.collectives.plans.execution import Action, BoundInstruction
from dear_mpi.collectives.plans.runners.messages import MessagesRun
from dear_mpi.collectives.transports.transport import Request, Wrapper
from dear_mpi.kernels.array import Array

SENT, ARRIVED, MERGED = range(3)
Look = Callable[[int, int, Array], object]
"""Called with the point, a number into ``MessagesRun.listing.messages``, and the message's elements: as sent, as
received, and, if it went through a side buffer, after the merge."""


class CheckedRun(MessagesRun):
    """A run on another's memory whose blocking runs (``whole``) call ``look``; free it after use."""

    def __init__(self, run: MessagesRun, look: Look) -> None:
        vars(self).update(vars(run))
        self.look = look
        self.bind_all()

    def bound(self, requests: Sequence[Request]) -> Iterator[BoundInstruction]:
        return super().bound([CheckedRequest(self, number, request) for number, request in enumerate(requests)])

    def merge(self, group: Sequence[int]) -> Action:
        action, target, look = super().merge(group), self.elements(group[0]), self.look

        def merged() -> None:
            action()
            look(MERGED, group[0], target)

        return merged


class CheckedRequest(Wrapper[Request]):
    """Shows a message when it is sent or received."""

    def __init__(self, run: CheckedRun, number: int, request: Request) -> None:
        super().__init__(request)
        self.look, self.number = run.look, number
        self.incoming = run.listing.messages[number].incoming
        self.array = run.beside.get(number, run.elements(number))

    def Start(self) -> None:
        if not self.incoming:
            self.look(SENT, self.number, self.array)
        self.below.Start()

    def Wait(self) -> None:
        self.below.Wait()
        if self.incoming:
            self.look(ARRIVED, self.number, self.array)
