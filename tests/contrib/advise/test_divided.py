"""Iterations that were watched are divided without a gap."""

import pytest

from dear_mpi.contrib.advise.assembled import assemble
from dear_mpi.contrib.advise.divided import divide, means, usual
from dear_mpi.contrib.advise.observed import Mark, Seen, Watched

# kind, key, and the seconds until the next moment
FORWARD = [("inside", 0, 0.5), ("use", 0, 1.0), ("use", 1, 2.0), ("outside", 0, 0.25)]
BACKWARD = [("back", 1, 3.0), ("ready", 1, 0.5), ("back", 0, 1.5), ("ready", 0, 0.125), ("end", 0, 0.25)]
STEP = [("step", 0, 4.0), ("stepped", 0, 0.0)]
ITERATION = [("begin", 0, 0.75), *FORWARD, *BACKWARD, *STEP]


def moments(events, at_s=100.0):
    found = []
    for kind, key, seconds in events:
        found.append(Mark(kind, key, at_s))
        at_s += seconds
    return found


def watched(*iterations, plain_s=(13.875, 13.875), tensors=None, **given):
    tensors = tensors or (Seen("a", (4, 2), "fp32", (0,)), Seen("b", (8,), "fp32", (1,)))
    given = {"model": "Net", "device": "cpu", "names": ("first", "second", "third")} | given
    return Watched(tensors=tensors, watched=list(map(moments, iterations)), plain_s=plain_s, **given)


def test_each_part_has_what_lies_behind_its_moments():
    found = divide(moments(ITERATION))
    assert dict(found.seconds) == {
        ("before", 0): 0.75,
        ("forward", 0): 1.5,  # with what the module did before its first layer
        ("forward", 1): 2.0,
        ("loss", 0): 0.25,
        ("backward", 1): 3.5,
        ("backward", 0): 1.625,
        ("after", 0): 0.25,
        ("update", 0): 4.0,
    }
    assert (found.order, found.parts, found.came) == ([0, 1], 1, {1: 1, 0: 0})
    assert found.length_s == sum(seconds for *_, seconds in ITERATION)


def test_parts_of_a_batch_are_added_up():
    profile = assemble(
        watched([("begin", 0, 0.75), *FORWARD, *BACKWARD, *FORWARD, *BACKWARD, *STEP], plain_s=[99.0])
    ).profile
    assert profile.accumulate == 2
    uses = [(use.name, use.forward_s, use.backward_s) for use in profile.uses]
    assert uses == [("first", 3.0, 3.25), ("second", 4.0, 7.0)]
    assert profile.update_s_per_element == 4.0 / 16


def test_the_sum_is_that_of_an_iteration_nobody_watched():
    """Each of the moments took 5 us longer than it would have."""
    slow = [(kind, key, seconds + 5e-6) for kind, key, seconds in ITERATION]
    plain_s = sum(seconds for *_, seconds in ITERATION)
    found = assemble(watched(slow, slow, slow, slow, plain_s=[plain_s] * 3))
    assert found.sum_s == pytest.approx(plain_s, abs=1e-9)
    assert found.observed.watched_s > found.observed.iteration_s == plain_s
    assert assemble(watched(ITERATION, plain_s=[1.0])).sum_s == pytest.approx(plain_s, abs=1e-3)  # that is no hook's


def test_iterations_that_ran_other_layers_do_not_count():
    other = [("begin", 0, 0.75), ("inside", 0, 0.0), ("use", 2, 9.0), *FORWARD[1:], *BACKWARD, *STEP]
    found = assemble(watched(ITERATION, other, ITERATION))
    assert [use.name for use in found.profile.uses] == ["first", "second"]
    assert found.observed.notes == ("1 of 3 iterations ran other layers, and do not count",)


def test_half_of_the_iterations_count_those_of_middle_length():
    lengths = [1.0, 2.0, 3.0, 100.0]
    iterations = usual([moments([("begin", 0, length), *ITERATION[1:]]) for length in lengths])
    assert means(iterations, 0.0)["before", 0] == 2.5


def test_a_tensor_of_no_module_stands_where_its_gradient_came():
    tensors = (Seen("a", (4, 2), "fp32", ()), Seen("b", (2,), "bf16", (1, 5)))
    found = assemble(watched(ITERATION, tensors=tensors, notes=("seen",)))
    assert [[tensor.key for tensor in use.tensors] for use in found.profile.uses] == [[0], [1]]
    assert found.observed.notes == ("seen", "parameters of bf16 are taken for fp32")


def test_a_layer_may_have_run_before_the_iteration_began():
    profile = assemble(watched([("begin", 0, 0.75), *BACKWARD, *FORWARD, *STEP])).profile
    assert [(use.name, len(use.tensors)) for use in profile.uses] == [("first", 1), ("second", 1)]
    assert sum(profile.passes_s) == pytest.approx(3.5 + 5.125, abs=1e-3)
    alone = assemble(watched([("begin", 0, 0.75), *BACKWARD, *STEP])).profile
    assert [(use.name, use.forward_s) for use in alone.uses] == [("first", 0.0), ("second", 0.0)]


def test_without_gradients_there_is_nothing_to_say():
    silent = [event for event in ITERATION if event[0] != "ready"]
    with pytest.raises(ValueError, match="Net: no gradient came to a layer"):
        assemble(watched(silent))
