"""What papers print, and ours: the figures that need no minute, and a page that has them."""

import pytest

from dear_mpi.models.synthetic import load_table
from tests.rooms import DELETED, ROOT
from tests.simulate import published, published_claims

OF_WIRES = pytest.mark.skipif("wires" in DELETED, reason="an extra, which was deleted")


def test_shapes_of_weights_follow_from_flops():
    first, *_, last = load_table("resnet50")["modules"]
    assert published_claims.matrix(first) == (64, 3 * 7 * 7)
    assert published_claims.matrix(last) == (1000, 2048)
    assert published_claims.matrix(load_table("resnet50")["modules"][1]) is None


@OF_WIRES
@pytest.mark.parametrize("name", published_claims.RANK_OF)
def test_shapes_have_all_elements(name):
    whole, _, _ = published_claims.low_rank_bytes(name)
    assert whole == published_claims.ITEMSIZE * published_claims.gradient_elements(name)


def test_factors_of_resnet_50_are_three_times_its_gradient():
    """77.0 M elements, as follows from the shapes of its layers."""
    found = published_claims.factor_elements("resnet50")
    assert found == pytest.approx(77.0e6, rel=0.001)
    assert found / published_claims.gradient_elements("resnet50") == pytest.approx(3.0, abs=0.02)


@pytest.mark.skipif("algorithms" in DELETED, reason="an extra, which was deleted")
def test_orders_of_dimensions_never_lose():
    for shape in ((2, 2), (4, 4)):
        found = published_claims.themis_gains(shape)
        assert min(found) >= 1
        assert max(found) > published_claims.THEMIS[0]


@pytest.mark.parametrize(
    "row",
    [published.kfac, published.diloco, pytest.param(published.low_rank, marks=OF_WIRES)],
    ids=["kfac", "diloco", "low rank"],
)
def test_the_page_has_these_rows(row):
    """`make published` has been run since."""
    assert f"\n{row()}\n" in (ROOT / published.PAGE).read_text("utf-8")
