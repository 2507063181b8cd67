"""What `make startup` makes its page of. How long something takes is not judged."""

import pytest

from tests.launch import mpis_at_hand
from tests.startup import PHASES, costs, paths_asked, table

STRACE = """% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 75.73    0.003789           0      4214       279 newfstatat
 24.27    0.001214           1       842        55 openat
------ ----------- ----------- --------- --------- ----------------
100.00    0.005003           0      5056       334 total
"""
IMPORTTIME = """import time: self [us] | cumulative | imported package
import time:       200 |        200 |     numpy.version
import time:       300 |       4500 |   numpy
import time:       100 |        100 |   site
"""


def test_a_job_has_all_phases():
    if not mpis_at_hand():
        pytest.skip("no MPI at hand")
    head, _, row, *_ = table(counts=(3,), rounds=1)
    assert [cell.strip() for cell in head.strip("|").split("|")] == ["ranks", *PHASES, "all"]
    ranks, *seconds, whole = (float(cell) for cell in row.strip("|").split("|"))
    assert ranks == 3
    assert all(each >= 0 for each in seconds)
    assert whole == pytest.approx(sum(seconds), abs=0.01 * len(PHASES))


def test_the_costs_of_packages_are_their_own():
    assert [(cost.package, cost.modules, cost.own_ms) for cost in costs(IMPORTTIME)] == [
        ("numpy", 2, 0.5),
        ("site", 1, 0.1),
    ]


def test_system_calls_are_counted_in_the_last_line():
    assert paths_asked(STRACE) == (5056, 334)
