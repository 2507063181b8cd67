"""Passes that others run: whatever they call, and in whatever order, a schedule sees what the loop would call."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dear_mpi.models.layer import NoLoss
from dear_mpi.training.buckets.layout import Layout, cut
from dear_mpi.training.fabric.rules import Rules
from dear_mpi.training.fabric.virtual import Costs, VirtualFabric
from dear_mpi.training.schedules import SCHEDULES
from dear_mpi.training.schedules.schedule import Schedule
from dear_mpi.training.trainer import Trainer
from dear_mpi.training.virtual_trainer import VirtualCall, VirtualMeter

USES = 5
LAYOUT = Layout.of([[(use, (40,))] for use in range(USES)], itemsize=4, ranks=2)
BUCKETS = cut(LAYOUT, LAYOUT.offsets)
HOOKS = ("before_forward", "after_forward", "before_backward", "after_backward", "end_backward")


class Told(Trainer):
    """Begins some uses, perhaps several times, and writes all gradients in some order, as PyTorch's hooks do."""

    begun = completed = ()

    def forward(self, x):
        for use in self.begun:
            self.before_forward(use)
        return x

    def backward(self, dy):
        self.before_backward(USES - 1)
        for use in self.completed:
            self.wrote(use)


def calls_of(schedule, kind=Trainer, *, accumulate=1, iterations=3):
    """The hooks that are called, with their uses; by the trainer's loop, or as the kind of trainer runs passes."""
    called = []

    class Spy(schedule):
        pass

    def spy(name):
        def hook(self, *use):
            called.append((name, *use))
            return getattr(schedule, name)(self, *use)

        return hook

    for name in HOOKS:
        setattr(Spy, name, spy(name))
    rules = Rules("spy", BUCKETS, schedule)
    fabric = VirtualFabric(rules, Costs(forward_s=[0.0] * USES, backward_s=[0.0] * USES))
    uses = [VirtualCall(fabric, number) for number in range(USES)]
    trainer = kind(uses, NoLoss(), VirtualMeter(fabric), Spy(fabric), rules, accumulate=accumulate)
    trainer.first = False
    for _ in range(iterations):
        trainer.iteration(np.zeros(2), np.zeros(2), 2)
        found = [[event for event in fabric.log.last.within if event.kind == kind] for kind in ("forward", "backward")]
        assert [len(each) for each in found] == [USES * accumulate] * 2
    trainer.flush()
    return called


@given(
    begun=st.lists(st.integers(0, USES - 1)),
    written=st.permutations(range(USES)),
    schedule=st.sampled_from(sorted(SCHEDULES)),
    accumulate=st.integers(1, 2),
)
def test_hooks_are_called_in_the_order_of_a_loop(begun, written, schedule, accumulate):
    kind = type("Hooked", (Told,), {"begun": begun, "completed": written})
    hooked = calls_of(SCHEDULES[schedule], kind, accumulate=accumulate)
    assert hooked == calls_of(SCHEDULES[schedule], accumulate=accumulate)


def test_gradients_are_handed_on_as_soon_as_their_predecessors_have_been():
    """Not before, and not later: what the schedule hears while the backward pass still runs."""
    heard = []

    class Listens(Schedule):
        def after_backward(self, use):
            heard.append(use)

        def end_backward(self):
            heard.append("end")

    class Partly(Told):
        def backward(self, dy):
            for use, then in ((3, []), (4, [4, 3]), (1, []), (0, []), (2, [2, 1, 0])):
                heard.clear()
                self.wrote(use)
                assert heard == then

    rules = Rules("listens", BUCKETS, Schedule)
    rules.end_backward = rules.before_layer = lambda *_: None  # it starts nothing
    fabric = VirtualFabric(rules, Costs(forward_s=[0.0] * USES, backward_s=[0.0] * USES))
    uses = [VirtualCall(fabric, number) for number in range(USES)]
    trainer = Partly(uses, NoLoss(), VirtualMeter(fabric), Listens(fabric), rules)
    trainer.first = False
    trainer.iteration(np.zeros(2), np.zeros(2), 2)
    assert heard == [2, 1, 0, "end"]
