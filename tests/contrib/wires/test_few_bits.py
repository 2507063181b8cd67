"""Blocks of 4 bits and of fp8: what each loses is bounded. tests/training/test_wires.py trains all wires."""

import pytest
from hypothesis import given

from dear_mpi.contrib.wires.few_bits import Eighths, Halves
from tests.training.test_wires import DRAWN, check_bound, check_sums


@pytest.mark.parametrize(("wire", "most"), [(Halves(), 1 / 14), (Eighths(), 1 / 16)])
@given(**DRAWN)
def test_what_a_block_loses_is_bounded(wire, most, kind, count, seed):
    check_bound(wire, most, kind, count, seed)


@pytest.mark.parametrize("ranks", [2, 5, 64])
def test_the_error_of_a_sum_does_not_grow_with_ranks(ranks):
    check_sums(Halves(), ranks, 0.2)
