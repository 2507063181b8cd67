"""Times of one rank by the clock of another: between two looks, beyond them, and when it cannot be known."""

import json
from math import inf

import pytest

from dear_mpi.ranks.clock import DRIFT, WANDER, Aligned, Look, aligned_of


def test_one_clock_is_exact():
    assert (Aligned().offset_s(5.0), Aligned().uncertainty_s(5.0), Aligned().doubt()) == (0.0, 0.0, "")


def test_after_one_look_a_clock_may_drift_as_far_as_clocks_do():
    one = Aligned((Look(100.0, 3.0, 1e-5),))
    assert one.offset_s(150.0) == 3.0
    assert one.uncertainty_s(150.0) == pytest.approx(1e-5 + 50 * DRIFT)
    assert one.uncertainty_s(90.0) == pytest.approx(1e-5 + 10 * DRIFT)


def test_between_two_looks_the_offset_is_on_the_line_through_them():
    two = Aligned((Look(100.0, 3.0, 1e-5), Look(200.0, 3.001, 2e-5)))
    assert two.offset_s(150.0) == pytest.approx(3.0005)
    assert two.offset_s(210.0) == pytest.approx(3.0011)
    assert two.uncertainty_s(200.0) == pytest.approx(2e-5)
    assert two.uncertainty_s(210.0) == pytest.approx(2e-5 + 10 * (3e-5 / 100 + WANDER))
    assert two.doubt() == ""


def test_two_looks_at_once_tell_no_drift():
    two = Aligned((Look(100.0, 3.0, 1e-5), Look(100.1, 3.00001, 1e-5)))
    assert two.offset_s(200.0) == 3.00001
    assert two.uncertainty_s(200.1) == pytest.approx(1e-5 + 100 * DRIFT)


@pytest.mark.parametrize(
    ("looks", "said"),
    [
        ((Look(0.0, 0.0, inf), Look(10.0, 0.0, 1e-5)), "no message came back"),
        ((Look(0.0, 0.0, 1e-5), Look(10.0, 3.0, 1e-5)), "its clock moved by 3 s in 10 s, so it was set meanwhile"),
        ((Look(0.0, 0.0, 1e-3), Look(10.0, 0.0039, 1e-3)), ""),  # 200 ppm of ten seconds, and both uncertainties
        ((Look(0.0, 0.0, 1e-3), Look(10.0, 0.0041, 1e-3)), "its clock moved"),
    ],
)
def test_a_clock_that_was_set_is_in_doubt(looks, said):
    doubt = Aligned(looks).doubt()
    assert doubt.startswith(said)
    assert bool(doubt) == bool(said)


def test_it_can_be_kept_in_a_file():
    two = Aligned((Look(100.0, 3.0, 1e-5), Look(200.0, 3.001, 2e-5)))
    assert aligned_of(json.loads(json.dumps(two.as_dict()))) == two
