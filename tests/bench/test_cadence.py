"""What docs/benchmarks/cadence.md says about its table."""

from tests.cadence import PAGE, remark


def test_the_page_counts_its_rows():
    page = PAGE.read_text(encoding="utf-8")
    ratios = [float(line.split("|")[5]) for line in page.splitlines() if line.startswith("| ") and "ranks" not in line]
    assert page.endswith(remark(ratios))


def test_reasons_are_given_only_where_rows_miss_the_aim():
    missed, reached = remark([0.9, 1.1, 1.11]), remark([0.9, 1.0, 1.1])
    assert "2 of 3 rows" in missed
    assert "A call from Python costs" in missed
    assert "3 of 3 rows" in reached
    assert "costs" not in reached
