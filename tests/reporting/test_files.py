"""A file is tried before the work, and is there as a whole or not at all."""

import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from dear_mpi.reporting import files
from dear_mpi.reporting.files import check_writable, older, replacing, set_aside, tidy

GONE = (1 << 22) + 1  # a process number that Linux never gives


def test_a_file_is_replaced_as_a_whole(tmp_path):
    file = tmp_path / "rows.json"
    file.write_text("old")
    check_writable("--json", file)
    assert file.read_text() == "old"
    with pytest.raises(TypeError), replacing("--json", file) as partial, partial.open("w") as half:
        half.write(None)
    assert file.read_text() == "old"
    with replacing("--json", file) as partial:
        partial.write_text("new")
        assert (partial.suffix, file.read_text()) == (".json", "old")
    assert file.read_text() == "new"
    assert list(tmp_path.iterdir()) == [file]


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "file")
    check_writable("--json", tmp_path / "link")
    with replacing("--json", tmp_path / "link") as partial:
        partial.write_text("new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "new"


@pytest.mark.parametrize("device", ["/dev/null", "/dev/stdout"])
def test_devices_are_written_to_and_never_replaced(device):
    before = os.lstat(device).st_ino
    check_writable("--json", Path(device))
    with replacing("--json", Path(device)) as path:
        path.write_text("")
    assert os.lstat(device).st_ino == before


def test_a_standard_stream_that_ends_in_a_file_is_never_replaced(tmp_path):
    """What is shown goes on there, so a new file in its place would not have it."""
    wrote = (
        "from pathlib import Path; from dear_mpi.reporting.files import *; path = Path('/dev/stdout')\n"
        "with aside(path) as move:\n    check_writable('--json', path), move()\n"
        "    with replacing('--json', path) as file:\n        file.write_text('all')\n"
    )
    with open(tmp_path / "out", "w") as out:
        subprocess.run([sys.executable, "-c", wrote], stdout=out, check=True)
    assert [file.name for file in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out").read_text() == "all"


def test_a_full_disk_is_found_before_the_work(tmp_path, monkeypatch):
    """/dev/full takes no byte: in place of the file that is written on trial."""
    file = tmp_path / "rows.json"
    monkeypatch.setattr(files, "unfinished", lambda path: nullcontext(Path("/dev/full")))
    with pytest.raises(ValueError, match=r"--json .*rows.json' cannot be written: No space left on device"):
        check_writable("--json", file)
    assert list(tmp_path.iterdir()) == []


def test_an_older_file_is_set_aside_where_a_link_leads(tmp_path):
    (tmp_path / "there").mkdir()
    link, file = tmp_path / "link", tmp_path / "there" / "file"
    link.symlink_to(file)
    set_aside(link)
    assert link.is_symlink(), "there was nothing to set aside"
    for content in ("one", "two"):
        file.write_text(content)
        set_aside(link)
    assert link.is_symlink()
    assert older(link) == tmp_path / "there" / "file.old"
    assert older(link).read_text() == "two"


@pytest.mark.parametrize("mode", [0o600, 0o664])
@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("aside", ["not", "before", "meanwhile"])
def test_a_file_keeps_its_mode(tmp_path, mode, linked, aside):
    """Also that of --json, whose older file is set aside; and nobody else can read what is not finished."""
    file, path = tmp_path / "rows.json", tmp_path / ("link" if linked else "rows.json")
    file.write_text("old")
    file.chmod(mode)
    if linked:
        path.symlink_to(file)
    if aside == "before":
        set_aside(path)
    with replacing("--json", path) as partial:
        assert partial.stat().st_mode & 0o777 == mode
        partial.write_text("new")
        if aside == "meanwhile":
            set_aside(path)
    assert (file.stat().st_mode & 0o777, file.read_text(), path.is_symlink()) == (mode, "new", linked)


@pytest.mark.parametrize("write", [check_writable, lambda *named: replacing(*named).__enter__()])
@pytest.mark.parametrize(("name", "said"), [
    ("loop.json", "Too many levels of symbolic links$"),
    ("gone/rows.json", "there is no folder '.*gone'"),
    ("x" * 300, "File name too long"),
], ids=["loop", "folder", "name"])  # fmt: skip
def test_what_cannot_be_written_is_refused(tmp_path, write, name, said):
    (tmp_path / "loop.json").symlink_to("loop.json")
    with pytest.raises(ValueError, match=f"^--json .*{name}' cannot be written: {said}"):
        write("--json", tmp_path / name)
    assert [file.name for file in tmp_path.iterdir()] == ["loop.json"]


def test_what_another_run_is_writing_stays(tmp_path):
    """And it comes to its end; what a killed one left goes, and the files of users stay."""
    file = tmp_path / "run.npz"
    (tmp_path / ".2024-run.npz").write_text("mine")
    left = tmp_path / files.named(file, GONE)
    left.write_text("half")
    with replacing("checkpoint", file) as first, replacing("checkpoint", file) as second:
        tidy(file)
        assert not left.exists()
        first.write_text("first")
        second.write_text("second")
    assert file.read_text() == "first"
    assert {path.name for path in tmp_path.iterdir()} == {"run.npz", ".2024-run.npz"}
