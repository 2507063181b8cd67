"""Learning rates that change: closed forms, and what holds for all of them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dear_mpi.training.learning_rate import DECAYS, Constant, Cosine, Linear, rates_of
from dear_mpi.training.runs.config import Config

# t: of T iterations after the warm-up
CLOSED = {
    Constant: lambda lr, t, T: lr,
    Linear: lambda lr, t, T: lr - lr * t / T,
    Cosine: lambda lr, t, T: lr * (1 + math.cos(math.pi * t / T)) / 2,  # SGDR, equation 5
}
RATES = st.floats(1e-6, 10)


@st.composite
def schedules(draw):
    """A rate with any warm-up."""
    kind, lr = draw(st.sampled_from(list(CLOSED))), draw(RATES)
    iterations = draw(st.integers(1, 200))
    return kind(lr, iterations, draw(st.integers(0, iterations - 1)))


@given(schedules())
def test_they_have_the_closed_forms(rate):
    warmup, whole = rate.warmup, rate.iterations - rate.warmup
    for iteration in range(warmup):
        assert rate(iteration) == pytest.approx(rate.lr * (iteration + 1) / warmup, rel=1e-12)
    for t in range(whole):
        due = CLOSED[type(rate)](rate.lr, t, whole)
        assert rate(warmup + t) == pytest.approx(due, rel=1e-12, abs=1e-15 * rate.lr)


@given(schedules())
def test_they_rise_to_lr_and_fall_and_stay_above_zero(rate):
    values = [rate(iteration) for iteration in range(rate.iterations + 10)]
    top = rate.warmup
    assert values[top] == rate.lr
    assert values[: top + 1] == sorted(values[: top + 1])
    assert all(later <= before * (1 + 1e-12) for before, later in zip(values[top:], values[top + 1 :], strict=False))
    assert min(values) > 0
    assert set(values[rate.iterations :]) == {values[rate.iterations - 1]}, "what comes later has the last one"


@given(lr=RATES, iterations=st.integers(1, 10**9))
def test_the_last_iteration(lr, iterations):
    """Also where a cosine in fp64 would be -1."""
    assert Linear(lr, iterations)(iterations - 1) == pytest.approx(lr / iterations)
    assert Cosine(lr, iterations)(iterations - 1) == pytest.approx(lr * math.sin(math.pi / (2 * iterations)) ** 2)


WRONG = {
    "lr must be above zero, not 0": lambda: Cosine(0, 10),
    "lr must be above zero, not nan": lambda: Constant(math.nan, 10),
    "iterations must be a whole number of at least 1, not 0": lambda: Linear(0.1, 0),
    "iterations must be a whole number of at least 1, not 2.0": lambda: Linear(0.1, 2.0),
    "warmup must be a whole number from 0 to 9, as there are 10 iterations, not 10": lambda: Cosine(0.1, 10, 10),
    "warmup must be a whole number from 0 to 9, as there are 10 iterations, not -1": lambda: Constant(0.1, 10, -1),
    "learning_rate must be a function of the iteration, counted from 0, not 0.1": lambda: rates_of(0.1),
    "learning_rate must give finite numbers above zero, not 0.0 in iteration 2": lambda: rates_of(lambda i: 2.0 - i),
    "learning_rate must give finite numbers above zero, not inf in iteration 0": lambda: rates_of(lambda i: math.inf),
    "learning_rate must give finite numbers above zero, not None in iteration 0": lambda: rates_of(lambda i: None),
    "learning_rate fails in iteration 3: IndexError: list index out of range": lambda: rates_of(
        ([0.1] * 3).__getitem__
    ),
    "decay 'cosin' is unknown: did you mean 'cosine'?": lambda: Config.of({"decay": "cosin"}),
    "warmup must be a whole number from 0 to 7": lambda: Config.of({"decay": "cosine", "warmup": 8, "iterations": 8}),
    "warmup must be a whole number from 0 to 299": lambda: Config.of({"warmup": -1}),
}


@pytest.mark.parametrize("message", WRONG)
def test_what_is_wrong_is_refused(message):
    with pytest.raises(ValueError) as error:  # noqa: PT011 (the message is compared as it is, not as a pattern)
        WRONG[message]()
    assert message in str(error.value)


def test_ranks_compare_the_first_values_bit_by_bit():
    rate = Cosine(0.1, 300, 10)
    assert rates_of(rate) == rates_of(lambda iteration: rate(iteration))
    assert rates_of(rate) != rates_of(lambda i: rate(i) if i != 999 else math.nextafter(rate(i), 1))
    assert rates_of(rate) != rates_of(Linear(0.1, 300, 10))


def test_flags_choose_a_rate():
    assert Config.of({}).new_rate() is None
    for name, kind in DECAYS.items():
        config = Config.of({"decay": name, "warmup": 5, "lr": 0.2, "iterations": 20})
        assert config.new_rate() == config.options()["learning_rate"] == kind(0.2, 20, 5)
    assert Config.of({"decay": "linear"}).new_rate() == Linear(3e-3, 300)
