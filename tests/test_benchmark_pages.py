"""Pages of figures state where and how they were made, and contain no text of a launcher, a shell or a host."""

import re
import subprocess
from types import SimpleNamespace

import numpy as np
import pytest

from dear_mpi.collectives import ALGORITHMS, programs
from dear_mpi.kernels.dtypes import DTYPES
from docs.benchmarks import numerics, published, published_claims
from docs.benchmarks.attempts import attempts, quietest
from docs.benchmarks.provenance import BELOW, FIELDS, ROOT, Record, faults, header, rows_file, write_page
from tests.rooms import DELETED

INDEX = ROOT / "docs" / "benchmarks" / "README.md"  # it quotes the others
PAGES = sorted({*INDEX.parent.glob("*.md")} - {INDEX})
ROWS = [rows_file(page) for page in PAGES]
RECORD = Record(
    *("make x", "2026-01-02 10:00", "2026-01-02 10:20", "abcdef0123, unchanged", "a CPU, 2 cores"),
    *("Linux 6", "reno", "Python 3, NumPy 2, mpi4py 4, Open MPI 5"),
    stolen=0.012,
    load=0.3,
)


def said(text):
    return {field: cell for field in FIELDS for cell in re.findall(rf"^\| {field} \| (.*\S) \|$", text, re.MULTILINE)}


def lacking(text):
    """The fields of provenance that a page does not have. What is not known has to be said."""
    found = said(text)
    shapes = {
        "command": r"^(`.+`|not known)", "date": r"\d{4}-\d\d-\d\d", "commit": r"[0-9a-f]{7,}|not known",
        "processors": r"\d+ cores", "lost to others": r"\d+\.\d %|\d%|not known|does not matter",
        "versions": r"Python \d.*NumPy.*mpi4py|^not known",
    }  # fmt: skip
    return [field for field in FIELDS if not re.search(shapes.get(field, "."), found.get(field, ""))]


def test_a_quiet_attempt_is_kept(tmp_path):
    lost, files = [0.2, 0.01, 0.5], []

    def watch():
        record = Record(**{**vars(RECORD), "stolen": lost[len(files)]})
        return SimpleNamespace(record=lambda: record)

    for _ in range(2):  # the second time it is there
        assert quietest(tmp_path, "case", watch, files.append) == tmp_path / "case.1.json"
    assert files == [tmp_path / "case.0.json", tmp_path / "case.1.json"]
    assert [each.stolen for each in attempts(tmp_path, "case")] == [0.2, 0.01]


@pytest.mark.parametrize("page", [INDEX, *PAGES, *ROWS], ids=lambda page: page.name)
def test_a_page_has_no_text_of_launchers(page):
    assert faults(page.read_text("utf-8")) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_states_how_it_was_made(page):
    text, rows = page.read_text("utf-8"), rows_file(page)
    assert lacking(rows.read_text("utf-8")) == []
    known = said(rows.read_text("utf-8"))
    assert f"Made by {known['command']}" in text
    assert known["date"].partition(" ")[0] in text
    assert f"(rows/{rows.name})" in text


def test_every_file_of_rows_has_its_page():
    assert {*(INDEX.parent / "rows").glob("*")} == {*ROWS}


@pytest.mark.parametrize("text", [
    "A daemon failed to report back after being spawned.",
    "  Local host:    dear1",
    "| rank 0 on dear3 | 5 |",
    "   Process name: [prterun-vm-25860@1,2]",
    "+ timeout 600 .venv/bin/mpirun -n 2 python",
    "\x1b[1mbold\x1b[0m",
    "Traceback (most recent call last):",
    "written to /root/out.json",
])  # fmt: skip
def test_what_a_page_must_not_have_is_found(text):
    assert faults(f"# A page\n\n{text}\n")
    assert not faults("# A page\n\n`dear-mpi` under `mpirun`: `+5.0%`, see docs/benchmarks/hosts.md\n")


def test_a_header_says_all():
    text = "\n".join(header([RECORD]))
    assert lacking(text) == []
    assert "1.2%" in text
    for field in FIELDS:
        assert lacking(text.replace(f"| {field} |", "| |")) == [field]


def test_commits_of_pages_are_in_the_history():
    git = ["git", "-C", str(ROOT)]
    depth = subprocess.run([*git, "rev-list", "--count", "HEAD"], capture_output=True, text=True, check=False).stdout
    if int(depth or 0) < 100:
        pytest.skip("this is no whole clone")
    cells = {page: said(page.read_text("utf-8"))["commit"] for page in ROWS}
    named = {(page.name, commit) for page in cells for commit in re.findall(r"\b[0-9a-f]{7,40}\b", cells[page])}
    assert len(named) >= len(cells)
    is_known = [*git, "merge-base", "--is-ancestor"]
    assert not {each for each in named if subprocess.run([*is_known, each[1], "HEAD"], check=False).returncode}


def test_a_page_with_faults_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr("docs.benchmarks.provenance.ROOT", tmp_path)
    monkeypatch.setattr("platform.node", lambda: "node.x")
    page, rows = tmp_path / "page.md", tmp_path / "rows" / "page.txt"
    page.write_text("unchanged")
    with pytest.raises(SystemExit, match=r"line 5 has the name of a host: 'node\.x'"):
        write_page("page.md", "A page", [RECORD], ["from node.x"])
    with pytest.raises(SystemExit, match="line 14 has the name of a host"):
        write_page("page.md", "A page", [RECORD], ["fine", BELOW, "from dear1"])
    assert page.read_text() == "unchanged"
    assert not rows.exists()
    write_page("page.md", "A page", [RECORD], ["| 1 | 2 |", "node x"])
    assert page.read_text().endswith("| 1 | 2 |\nnode x\n")
    assert rows.read_text().endswith("| 1 | 2 |\nnode x\n")
    write_page("page.md", "A page", [RECORD], ["few", BELOW, "all"])
    assert page.read_text().endswith("(rows/page.txt).\n\nfew\n")
    assert rows.read_text().endswith("\n\nall\n")


# What papers print, and ours: the figures that need no minute, and a page that has them.

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


# The replay on numbers behind docs/benchmarks/numerics.md is what plans do, and the table says what it promises.

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
