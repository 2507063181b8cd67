"""What papers print, and ours: the figures that need no minute, and a page that has them."""

import pytest

from docs.benchmarks import published, published_claims
from tests.rooms import DELETED, ROOT

OF_WIRES = pytest.mark.skipif("wires" in DELETED, reason="an extra, which was deleted")


def test_factors_of_resnet_50_are_three_times_its_gradient():
    """77.0 M elements, as follows from the shapes of its layers."""
    found = published_claims.factor_elements("resnet50")
    assert found == pytest.approx(77.0e6, rel=0.001)
    assert found / published_claims.gradient_elements("resnet50") == pytest.approx(3.0, abs=0.02)


@pytest.mark.parametrize(
    "row",
    [published.kfac, *(pytest.param(row, marks=OF_WIRES) for row in (published.diloco, published.low_rank))],
    ids=["kfac", "diloco", "low rank"],
)
def test_the_page_has_these_rows(row):
    """`make published` has been run since."""
    assert f"\n{row()}\n" in (ROOT / published.PAGE).read_text("utf-8")
