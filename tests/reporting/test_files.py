"""A file is tried before the work, and is there as a whole or not at all."""

import os
from pathlib import Path

import pytest

from dear_mpi.reporting.files import check_writable, older, replacing, set_aside


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


def test_a_full_disk_is_found_before_the_work(tmp_path):
    """/dev/full takes no byte: as a link beside the file, in place of what is written on trial."""
    file = tmp_path / "rows.json"
    (tmp_path / f".{os.getpid()}-rows.json").symlink_to("/dev/full")
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
