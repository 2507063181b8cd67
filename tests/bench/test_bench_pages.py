"""Pages of the benchmark, made from rows that are there."""

import json
from dataclasses import asdict
from types import SimpleNamespace

import pytest

from dear_mpi.bench.run import against_peers
from docs.benchmarks import bench_pages
from docs.benchmarks.attempts import Runs
from docs.benchmarks.bench_pages import FAULTY, NO_SIZE, NOISE, NOT_COMMON, OUR_BEST, against_mpi
from tests.bench.test_bench import row
from tests.test_benchmark_pages import RECORD

SIZES = [1 << 20, 4 << 20, 16 << 20, 64 << 20]


def keep(folder, name, rows):
    """As if they were measured before, in a quiet moment."""
    (folder / f"{name}.records").write_text(json.dumps([asdict(RECORD)]))
    (folder / f"{name}.0.json").write_text(json.dumps({"rows": [asdict(each) for each in against_peers(rows)]}))


def test_the_page_of_hosts_has_the_best_call_of_the_library_at_each_size(tmp_path):
    rows = [
        each
        for size in SIZES
        for each in (
            row("native", size, 9e4),
            row("native-persistent", size, 8e4 if size == SIZES[0] else 1e5),
            row("ring", size, 2e4, segment_bytes=60 << 10),
            row("ring", size, 4e4, segment_bytes=256 << 10),
        )
    ]
    keep(tmp_path, "bench-hosts", rows)
    (tmp_path / "bench-hosts.0.tcp").write_text(json.dumps({3 * size // 2: [0.0125] * 11 for size in SIZES}))
    runs = Runs(tmp_path)
    lines = bench_pages.hosts(runs)
    assert runs.records == [RECORD]
    table = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("|")]
    found = {name: cells for name, *cells in table}
    assert list(found) == ["ms", "---", "the bound", "plain TCP", "native-best", "ring, 60 KiB", "ring, 256 KiB"]
    assert [cell.split(", ")[-1] for cell in found["native-best"]] == ["native-persistent)"] + 3 * ["native)"]
    assert found["plain TCP"][0] == "12.5 (1.05)"  # the bound, 13.2 ms, over it
    assert found["ring, 60 KiB"][0] == "20.0 ±0.0 (0.66)"


def test_the_page_of_collectives_joins_the_jobs_of_both_libraries(tmp_path, monkeypatch):
    mpis = [SimpleNamespace(name="Open MPI", mpirun=("a",)), SimpleNamespace(name="MPICH", mpirun=("b",))]
    monkeypatch.setattr(bench_pages, "mpis_at_hand", lambda: mpis)
    for ranks in (2, 4):
        first = [
            *(row("native", 4, 2.0), row("auto", 4, 6.0, chosen="ring"), row("function", 4, 8.0)),
            *(row("native", 64, 2.0), row("auto", 64, 3.0), row("function", 64, 3.0)),
        ]
        second = [row("native", 4, 5.0), row("native-persistent", 4, 4.0), row("native", 64, 1.0)]
        keep(tmp_path, f"bench-{ranks}-OpenMPI", first)
        keep(tmp_path, f"bench-{ranks}-MPICH", second)
    keep(tmp_path, "bench-streaming", [row("native", 4, 2.0), row("auto", 4, 3.0), row("auto", 64, 1.0)])
    runs = Runs(tmp_path)
    text = "\n".join(bench_pages.collectives(runs))
    assert len(runs.records) == 5
    assert "| all_reduce, auto | 1.50 (3.0) |" in text
    assert text.count("|  | Open MPI, best | MPICH, best | auto | function |") == 2
    cells = "2.0 ±0.0 (1.00, native) | 4.0 ±0.0 (2.00, native-persistent) | 6.0 ±0.0 (3.00, ring) | 8.0 ±0.0 (4.00)"
    assert text.count(f"| 4 B | {cells} |") == 2
    assert text.count("| 64 B | 2.0 ±0.0 (2.00, native) | 1.0 ±0.0 (1.00, native) | 3.0 ±0.0 (3.00) |") == 2
    assert "| auto | 3.00 | no size | no size |" in text
    assert "| function | 3.46 | no size | no size |" in text


def test_means_of_ratios_are_to_the_faster_call():
    rows = [
        *(
            row("native", 4, 8.0),
            row("native-persistent", 4, 2.0),
            row("ring", 4, 4.0),
            row("bruck", 4, 1.0),
            row("host copies", 4, 0.1),
        ),
        *(row("native", 64, 2.0), row("native-persistent", 64, 4.0), row("ring", 64, 4.0), row("bruck", 64, 8.0)),
        *(row("native", 2**22, 1.0), row("ring", 2**22, 3.0)),
    ]
    means = against_mpi(against_peers(rows))
    found = {name: [mean if mean == NO_SIZE else round(mean, 3) for mean in row] for name, row in means.items()}
    assert found == {"ring": [2, NO_SIZE, 3], "bruck": [1.414, NO_SIZE, NO_SIZE], OUR_BEST: [1, NO_SIZE, 3]}
    assert list(against_mpi(against_peers([row("native", 4), row("ring", 4)]))) == ["ring"]
    assert against_mpi(against_peers([row("ring", 4)])) == {}


def test_a_group_without_a_mean_says_why():
    noisy = {"ci_low_us": 0.1, "ci_high_us": 9.0}
    rows = [
        *(row("native", 4), row("ring", 4, **noisy), row("auto", 4, 2.0)),
        *(row("native", 1 << 22), row("ring", 1 << 22), row("native", 1 << 23), row("auto", 1 << 23)),
    ]
    found = against_mpi(against_peers(rows))
    assert found["ring"] == [NOISE, NO_SIZE, NOT_COMMON]
    assert found["auto"] == [pytest.approx(2.0), NO_SIZE, NOT_COMMON]


def test_wrong_results_are_nobodys_best():
    """However fast they are, of ours and of a library."""
    wrong = {"wrong": 3}
    rows = [row("native", 4, 2.0), row("ring", 4, 1.0, **wrong), row("auto", 4, 4.0)]
    found = against_mpi(against_peers(rows))
    assert {name: means[0] for name, means in found.items()} == {"ring": FAULTY, "auto": 2.0, OUR_BEST: 2.0}
    of_peer = [row("native", 4, 2.0, **wrong), row("auto", 4, 4.0), row("native", 8, 2.0), row("auto", 8, 6.0)]
    assert against_mpi(against_peers(of_peer))["auto"][0] == pytest.approx(3.0)
