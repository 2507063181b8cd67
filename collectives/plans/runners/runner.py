"""What a runner is: one of the ways to carry a collective out, chosen by the algorithm (``runner_of``)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from dear_mpi.collectives.plans.call import Call
from dear_mpi.collectives.plans.execution import InstructionRun
from dear_mpi.collectives.plans.reach import Reach
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.kernels.array import Array
from dear_mpi.kernels.slab import Slab


@dataclass(frozen=True)
class Task:
    """What a runner is given."""

    call: Call  # checked on all ranks, its algorithm and segments chosen
    buffer: Array  # flat; the collective works on it in place
    transport: Transport
    tag: int  # marks the messages of this plan, the same on all ranks
    slab: Slab | None = None  # where the plan's own memory is taken from
    reached: Reach | None = None  # the memory of all ranks, where they can reach it

    @property
    def op(self) -> str:
        """How contributions are combined; an average is a sum that the plan scales at its end."""
        return "sum" if self.call.op == "average" else self.call.op

    def on(self, buffer: Array) -> Task:
        """The same in place on another buffer; the one before is not kept alive."""
        return replace(self, buffer=buffer, call=replace(self.call, x=buffer, out=None))


class Runner(Protocol):
    """One way to carry collectives out. A module can be one."""

    def check(self, algorithm: str, collective: str, transport: Transport) -> None:
        """See that the algorithm can carry out the collective here.

        Raises:
            ValueError: it cannot.
            ProgramError: it is a user's, and wrong.
        """

    def check_call(self, call: Call, transport: Transport) -> object:
        """See that it can carry out this very call, as ``check``; what else must be equal on all ranks."""

    def prepare(self, task: Task) -> InstructionRun:
        """Collective: a run on the task's buffer."""
