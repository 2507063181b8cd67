"""The replay on numbers behind docs/benchmarks/numerics.md is what plans do, and the table says what it promises."""

import numpy as np
import pytest

from dear_mpi.collectives import ALGORITHMS, programs
from dear_mpi.kernels.dtypes import DTYPES
from docs.benchmarks import numerics
from tests.rooms import ROOT

REDUCING = [name for name, row in ALGORITHMS.items() if "all_reduce" in row and name != "shared"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", REDUCING)
@pytest.mark.parametrize("size", [1, 2, 5, 8])
def test_the_replay_has_the_bits_of_loopback(name, dtype, size):
    data, _ = numerics.contributions(size, 103, dtype)
    replayed = numerics.replayed(programs(name, "all_reduce", size), data)
    results = {result.tobytes() for result in [*replayed, *numerics.over_threads(name, data)]}
    assert len(results) == 1


def test_an_error_is_measured_exactly():
    """Also where it is far below what fp64 resolves in the sum."""
    terms = np.array([[1.0, 3.0], [2.0**-60, 1.0]])
    assert numerics.relative_error(np.array([1.0, 4.0]), terms) == pytest.approx(2.0**-60 / 17**0.5)
    assert numerics.relative_error(np.array([1.0, 5.0]), terms) == pytest.approx(1 / 17**0.5)


def test_two_byte_sums_in_rank_order_are_rounded_once_on_any_number_of_ranks(monkeypatch):
    monkeypatch.setattr(numerics, "COUNT", 512)
    errors = {name: [numerics.error_of(name, "bf16", size) for size in (2, 32)] for name in ("ring", "ordered")}
    assert errors["ring"][0] == errors["ordered"][0] < 2e-3
    assert errors["ordered"][1] < 2e-3 < 5e-3 < errors["ring"][1]


def test_the_page_has_the_table_that_the_command_makes():
    """Its shape, not its digits: those of another machine may differ in the last one."""
    rows = (ROOT / "docs/benchmarks/rows/numerics.txt").read_text().splitlines()
    lines = [line for line in rows if line.startswith("|")]
    first = next(number for number, line in enumerate(lines) if line.startswith("| type"))  # below that of provenance
    rows = [line.split("|")[1:-1] for line in lines[first:]]
    assert [cell.strip() for cell in rows[0][2:]] == [f"{size} ranks" for size in numerics.RANKS]
    assert len(rows) == 2 + len(DTYPES) * (len(numerics.ALGORITHMS) + 1) - 1
    assert all(0 < float(cell) < 0.1 for row in rows[2:] for cell in row[2:])
