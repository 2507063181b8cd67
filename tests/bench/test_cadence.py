"""What docs/benchmarks/how-bench-measures.md says about its table."""

import re

from tests.cadence import PAGE, ROOT, remark


def test_the_page_counts_its_rows():
    page = (ROOT / PAGE).read_text(encoding="utf-8")
    ratios = [float(ratio) for ratio in re.findall(r"^\| \d+ \| \d+ \|.*\| ([\d.]+) \| [\d.]+ \|$", page, re.MULTILINE)]
    assert ratios
    assert page.endswith(remark(ratios))


def test_reasons_are_given_only_where_rows_miss_the_aim():
    missed, reached = remark([0.9, 1.1, 1.11]), remark([0.9, 1.0, 1.1])
    assert "2 of 3 rows" in missed
    assert "A call from Python costs" in missed
    assert "3 of 3 rows" in reached
    assert "costs" not in reached
