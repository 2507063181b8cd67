"""gloo takes part in ``bench``."""

import pytest

from dear_mpi.collectives.program.errors import ArgumentError
from dear_mpi.collectives.program.program import COLLECTIVES
from tests.mpi.test_bench import measured

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_gloo_takes_part(comm, collective):
    pytest.importorskip("torch", reason="gloo needs torch")
    for dtype, placement in (("fp32", "in"), ("bf16", "out")):
        sizes = (4 * comm.size, 4000 * comm.size)
        settings = {"dtypes": (dtype,), "placements": (placement,), "sizes": sizes}
        report = measured(collectives=(collective,), algorithms=("naive", "gloo"), **settings)
        rows = [row for row in report.rows if row.algorithm == "gloo"]
        runs = (placement == "in") != (collective == "all_to_all") or collective in ("all_gather", "reduce_scatter")
        assert [row.wrong for row in rows] == [0, 0] * runs
        assert all(row.backend.startswith("gloo of torch") for row in rows)


def test_gloo_without_torch_is_an_error_that_says_what_to_install(monkeypatch):
    monkeypatch.setattr("dear_mpi.contrib.gloo.candidate.find_spec", lambda name: None)
    with pytest.raises(ArgumentError, match=r"pip install torch==2\.13\.0 \(our extra 'gloo'\)"):
        measured(algorithms=("ring", "gloo"))
