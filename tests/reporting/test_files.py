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


def test_a_name_that_is_too_long_is_refused(tmp_path):
    with pytest.raises(ValueError, match="cannot be written: File name too long"):
        check_writable("--json", tmp_path / ("x" * 300))


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


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664])
def test_a_file_keeps_its_mode(tmp_path, mode):
    """Also that of --json, whose older file is set aside; and nobody else can read what is not finished."""
    file = tmp_path / "rows.json"
    file.write_text("old")
    file.chmod(mode)
    for aside in (False, True):
        with replacing("--json", file) as partial:
            assert partial.stat().st_mode & 0o777 == mode
            partial.write_text("new")
            if aside:
                set_aside(file)
        assert file.stat().st_mode & 0o777 == mode


@pytest.mark.parametrize("linked", [False, True])
def test_a_file_that_was_set_aside_before_the_work_keeps_its_mode(tmp_path, linked):
    """As train and simulate do with that of --json."""
    file = tmp_path / "rows.json"
    file.write_text("old")
    file.chmod(0o600)
    path = tmp_path / "link" if linked else file
    if linked:
        path.symlink_to(file)
    set_aside(path)
    with replacing("--json", path) as partial:
        assert partial.stat().st_mode & 0o777 == 0o600
        partial.write_text("new")
    assert (file.stat().st_mode & 0o777, file.read_text(), path.is_symlink()) == (0o600, "new", linked)


@pytest.mark.parametrize("write", [check_writable, lambda *named: replacing(*named).__enter__()])
def test_a_link_to_itself_cannot_be_written(tmp_path, write):
    (tmp_path / "loop.json").symlink_to("loop.json")
    with pytest.raises(ValueError, match=r"^--json .*loop.json' cannot be written: Too many levels of symbolic links$"):
        write("--json", tmp_path / "loop.json")
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


def test_a_folder_that_is_gone_is_named(tmp_path):
    file = tmp_path / "gone" / "rows.json"
    for write in (lambda: check_writable("--json", file), replacing("--json", file).__enter__):
        with pytest.raises(ValueError, match=r"--json .* cannot be written: there is no folder '.*gone'"):
            write()
