"""Files of timelines are refused early."""

import pytest

from tests.cli_checks import assert_one_line, invoke

COMMANDS = (("train", "--threads", 1), ("compare", "--threads", 1), ("simulate",))


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(("files", "said"), [
    ("x.txt", "--timeline 'x.txt' must end in .json"),
    ("x", "--timeline 'x' must end in"),
    ("x.json,", "--timeline takes one or several with commas between them, not 'x.json,'"),
    ("x.json,x.json", "--timeline must be different files, not both 'x.json'"),
    ("nowhere/x.json", "--timeline 'nowhere/x.json' cannot be written: there is no folder 'nowhere'"),
])  # fmt: skip
def test_files_that_cannot_be_written_are_refused_before_the_work(command, files, said):
    assert_one_line(invoke(*command, "--timeline", files), said)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_file_of_another_flag_is_refused(command, tmp_path):
    file = tmp_path / "mine.json"
    said = f"--json and --timeline must be different files, not both '{file}'"
    assert_one_line(invoke(*command, "--json", file, "--timeline", file), said)


@pytest.mark.parametrize(("command", "flags", "said"), [
    ("train", ["--model", "synthetic:mine.json", "--json", "mine.json"], "--json 'mine.json' {} --model"),
    ("train", ["--schedule", "s.py:Lazy", "--profile", "s.py"], "--profile 's.py' {} --schedule"),
    ("train", ["--data", "d.npz", "--timeline", "d.json,e.json", "--save", "d.npz"], "--save 'd.npz' {} --data"),
    ("compare", ["--model", "synthetic:mine.json", "--timeline", "mine.json"], "--timeline 'mine.json' {} --model"),
    ("compare", ["--schedules", "wfbp,s.py:Lazy", "--json", "s.py"], "--json 's.py' {} --schedules"),
    ("compare", ["--algorithm", "auto:mine.json", "--json", "mine.json"], "--json 'mine.json' {} --algorithm"),
])  # fmt: skip
def test_what_a_run_reads_is_not_written_over(command, flags, said, tmp_path, here):
    """The table of a model was moved to mine.json.old, and then it was not there."""
    for name in ("mine.json", "s.py", "d.npz"):
        (tmp_path / name).write_text("{}")
    assert_one_line(invoke(command, "--threads", 1, *flags), said.format("would write over the file of"))
    assert {path.name for path in tmp_path.iterdir()} == {"mine.json", "s.py", "d.npz"}
