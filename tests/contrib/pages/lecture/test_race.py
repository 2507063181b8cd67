"""The board of a class: who is right stands first, by time; who is wrong is not run, and told why."""

import os
import time
from pathlib import Path

import pytest

from docs.lecture.race import arguments, main, run
from docs.lecture.referee import proved
from tests.rooms import ROOT

ANSWERS = ROOT / "docs" / "lecture" / "answers"
MY_RING, DOUBLING, WRONG = (
    f"{ANSWERS}/{name}" for name in ("ring.py:my_ring", "race.py:my_doubling", "break.py:my_ring")
)
FAULT = "rank 2, step 1: sends chunk 0 to rank 0 before it holds any data of it"


def test_a_race_between_threads(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    run(arguments([WRONG, MY_RING, "--threads", "3", "--sizes", "4KiB"]))
    lines = capsys.readouterr().out.splitlines()
    assert "all_reduce on 3 ranks over loopback (threads)" in lines[0]
    rows = [line.split("│")[1:4] for line in lines if "│" in line]
    places, names, right = (list(map(str.strip, column)) for column in zip(*rows, strict=True))
    assert places == ["1", "2", "-"]
    assert {names[0], names[1]} == {"ring", MY_RING}
    assert names[2] == WRONG
    assert right == ["1-8", "1-8", "refused"]
    assert lines[-1] == f"{WRONG}: {FAULT}"


def test_who_is_right_on_some_ranks_alone():
    assert proved(DOUBLING, "all_reduce", 4).right_on == [4, 1, 2, 8]
    assert proved(WRONG, "all_reduce", 2).fault == ""
    assert proved(WRONG, "all_reduce", 3).fault == FAULT


@pytest.mark.parametrize(
    ("body", "fault"),
    [("return undefined", "NameError: name 'undefined' is not defined"), ("os._exit(3)", "its process ended with 3")],
)
def test_what_raises_or_dies_is_refused(body, fault, tmp_path):
    (tmp_path / "mine.py").write_text(f"import os\ndef mine(rank, size):\n    {body}\n")
    assert proved(f"{tmp_path}/mine.py:mine", "all_reduce", 3).fault.endswith(fault)


ENDLESS = {
    "a call": "    while True:\n        pass\n",
    "a list": "    steps = []\n    while True:\n        steps.append(bytearray(1 << 24))\n",
    "a file": "    pass\nwhile True:\n    pass\n",
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_what_never_ends_is_killed(kind, tmp_path):
    wrote = f"import os\nopen({f'{tmp_path}/pid'!r}, 'w').write(str(os.getpid()))\nprint('hello')\n"
    (tmp_path / "mine.py").write_text(f"{wrote}def mine(rank, size):\n{ENDLESS[kind]}")
    runner = proved(f"{tmp_path}/mine.py:mine", "all_reduce", 3, limit_s=5.0)
    assert not runner.right_on
    ends = ("not come to an end after 5 seconds", *["MemoryError: "] * (kind == "a list"))  # a busy machine: the time
    assert runner.fault.endswith(ends)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


STARTED = {
    "a process": "import subprocess\nsubprocess.Popen(['sleep', '50'])\n",
    "a shell": "import os\nos.system('echo hello')\n",
    "a fork": "import os\nif os.fork() == 0:\n    os._exit(0)\n",
}


@pytest.mark.parametrize("kind", STARTED)
def test_a_file_that_starts_a_process_is_refused_and_the_race_goes_on(kind, tmp_path, capsys, monkeypatch):
    """It held the pipe of the verdicts, so that everybody waited; or it wrote there, and the race ended."""
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "bad.py").write_text(STARTED[kind] + (ANSWERS / "ring.py").read_text())
    run(arguments([f"{tmp_path}/bad.py:my_ring", MY_RING, "--threads", "2", "--sizes", "4KiB"]))
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith(f"{tmp_path}/bad.py:my_ring: ")
    assert "PermissionError: an algorithm must not start a process" in last


BESIDE = {  # what students write to, and what they start where nothing refuses it
    "output": "import os\nprint('hello')\nos.write(1, b'[3, ')\n",
    "a process of C": "import ctypes\nctypes.CDLL(None).system(b'echo hello; sleep 500 & echo $! > PID')\n",
}


@pytest.mark.parametrize("endless", [False, True])
@pytest.mark.parametrize("kind", BESIDE)
def test_nothing_gets_among_the_verdicts_and_nothing_stays(kind, endless, tmp_path):
    text = BESIDE[kind].replace("PID", f"{tmp_path}/pid") + (ANSWERS / "ring.py").read_text()
    (tmp_path / "mine.py").write_text(text + "while True:\n    pass\n" * endless)
    runner = proved(f"{tmp_path}/mine.py:my_ring", "all_reduce", 2, limit_s=5.0 if endless else 60.0)
    assert runner.fault == ("it has not come to an end after 5 seconds" if endless else "")
    assert endless or runner.right_on[0] == 2
    if (tmp_path / "pid").exists():
        status = Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}/stat")
        deadline = time.monotonic() + 60  # a signal takes its time on a busy machine; the process would sleep for 500 s
        while status.exists() and status.read_text().split()[2] != "Z":  # in which nobody has waited for it
            assert time.monotonic() < deadline
            time.sleep(0.05)


@pytest.mark.parametrize(("given", "said"), [
    (("ring", "--threads", "2", "--sizes", "1KX"), "error: --sizes: size '1KX' cannot be read"),
    (("ring", "--threads", "2", "--link", "fast"), "error: --link: "),
    (("ring", "--threads", "0"), "error: --threads must be from 1 to 256, not 0"),
    (("ring", "--threads", "x"), "error: argument --threads: invalid int value: 'x'"),
    (("ring", "--threads", "2", "--collective", "gather"), "error: collective 'gather' is unknown"),
])  # fmt: skip
def test_bad_input(given, said, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["race", *given])
    with pytest.raises(SystemExit) as error:
        main()
    assert error.value.code == 2
    assert capsys.readouterr().err.startswith(said)
