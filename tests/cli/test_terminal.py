"""What ends up on a terminal and in files when ranks are started by a launcher, which shows neither to the ranks."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading

import pytest
from rich.text import Text

from dear_mpi.reporting import terminal
from tests.launch import mpis_at_hand

TRAIN = ("-m", "dear_mpi", "train", "--model", "mlp", "--iterations", "3", "--schedule", "dear")
COLUMNS = 100


class Pty:
    """A terminal, and what was shown on it."""

    def __init__(self):
        self.reader, self.writer = pty.openpty()
        fcntl.ioctl(self.writer, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
        self.shown = b""
        self.thread = threading.Thread(target=self.read)
        self.thread.start()

    def read(self):
        while True:
            try:
                data = os.read(self.reader, 65536)
            except OSError:  # nobody has the other side open
                return
            self.shown += data

    def text(self):
        os.close(self.writer)
        self.thread.join(60)
        os.close(self.reader)
        return self.shown.decode()


def launched(mpi, stdout, stderr, arguments=TRAIN):
    """The exit status of 2 ranks, with these standard streams of the launcher's."""
    environment = mpi.environment(2)
    for name in ("NO_COLOR", "COLUMNS"):
        environment.pop(name, None)
    environment["TERM"] = "xterm"
    command = [*mpi.mpirun, "-n", "2", sys.executable, *arguments]
    job = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, env=environment, timeout=300, check=False
    )
    return job.returncode


each_mpi = pytest.mark.parametrize("mpi", mpis_at_hand(), ids=lambda mpi: mpi.name)


@each_mpi
def test_a_terminal_shows_a_bar_and_styles(mpi):
    both = Pty()
    assert launched(mpi, both.writer, both.writer) == 0
    text = both.text()
    assert "mlp, dear" in text  # the bar's note
    assert "0/3" in text
    assert "\x1b[3m" in text.partition("test accuracy")[0]  # the table's title


SLOW = """
import os, pathlib, sys, time, types
from dear_mpi.collectives.launch.launcher import launch_of
from dear_mpi.reporting.terminal import bar
with bar(types.SimpleNamespace(rank=launch_of(os.environ).rank), 3, "the note"):
    while not pathlib.Path(sys.argv[1]).exists():
        time.sleep(0.01)
"""


@each_mpi
def test_a_bar_is_seen_while_the_program_runs(mpi, tmp_path):
    """Open MPI's launcher forwards whole lines: all frames came at the end. The program ends when it has been seen."""
    both, seen = Pty(), tmp_path / "seen"
    ended, live = threading.Event(), []

    def look():
        for _ in range(30_000):  # a busy machine may be slow
            if b"0/3" in both.shown or ended.wait(0.01):
                break
        live.append(b"0/3" in both.shown and not ended.is_set())
        seen.touch()

    eyes = threading.Thread(target=look)
    eyes.start()
    status = launched(mpi, both.writer, both.writer, ("-c", SLOW, str(seen)))
    ended.set()
    eyes.join()
    both.text()
    assert (status, live) == (0, [True])


@each_mpi
def test_a_bar_is_seen_while_the_table_goes_to_a_file(mpi, tmp_path):
    """As in `mpirun ... > file`."""
    errors = Pty()
    with open(tmp_path / "out", "wb") as out:
        assert launched(mpi, out, errors.writer) == 0
    assert "mlp, dear" in errors.text()
    told = (tmp_path / "out").read_text()
    assert "test accuracy" in told
    assert "\x1b" not in told


@each_mpi
def test_files_are_plain_and_one_rank_says_what_is_wrong(mpi, tmp_path):
    bad = ("-m", "dear_mpi", "train", "--batch", "0")
    with open(tmp_path / "err", "wb") as err:
        assert launched(mpi, subprocess.DEVNULL, err, bad) == 2
    lines = [line for line in (tmp_path / "err").read_text().splitlines() if "error: " in line or "╭" in line]
    assert lines == ["error: --batch must be at least 1, not 0"]


@each_mpi
def test_help_is_shown_once_and_plainly(mpi, tmp_path):
    with open(tmp_path / "out", "wb") as out:
        assert launched(mpi, out, subprocess.DEVNULL, ("-m", "dear_mpi", "bench", "--help")) == 0
    text = (tmp_path / "out").read_text()
    assert (text.count("Usage: "), "\x1b" in text) == (1, False)


class Stream:
    """A standard stream of a rank, which is a terminal under Open MPI."""

    def __init__(self, number):
        self.number = number

    def fileno(self):
        return self.number


@pytest.fixture
def processes(tmp_path, monkeypatch):
    """A folder like /proc, and a call that puts a process into it."""

    def add(number, name, parent, streams=()):
        (tmp_path / str(number) / "fd").mkdir(parents=True)
        (tmp_path / str(number) / "stat").write_text(f"{number} ({name}) S {parent}{48 * ' 1'}")
        for stream, target in enumerate(streams):
            (tmp_path / str(number) / "fd" / str(stream)).symlink_to(target)

    monkeypatch.setattr(os, "getppid", lambda: 40)
    find = terminal.launcher_process
    monkeypatch.setattr(terminal, "launcher_process", lambda: find(tmp_path))
    return add


@pytest.fixture
def of_open_mpi(monkeypatch):
    for name, value in (("SIZE", 2), ("RANK", 0), ("LOCAL_RANK", 0)):
        monkeypatch.setenv(f"OMPI_COMM_WORLD_{name}", str(value))


def test_the_launcher_is_found_above_a_wrapper(processes, of_open_mpi):
    window = Pty()
    end = os.ttyname(window.writer)
    processes(40, "a (b) shell", 30)
    processes(30, "prterun", 20, (end, end, "/dev/null"))
    processes(20, "mpirun", 1, ("/dev/null", "/dev/null", end))
    assert [terminal.columns_of(Stream(number)) for number in (1, 2)] == [COLUMNS, None]
    window.text()


@pytest.mark.parametrize("process", [None, (40, "prted", 0), (40, "sshd", 7)], ids=["no /proc", "no launcher", "gone"])
def test_where_no_launcher_is_seen_output_is_plain(process, processes, of_open_mpi):
    """As on another host, where ranks are children of a daemon; or in a container that hides processes."""
    window = Pty()
    if process:
        processes(*process)
    assert terminal.columns_of(Stream(window.writer)) is None
    window.text()


def test_without_a_launcher_a_stream_tells_by_itself(monkeypatch, tmp_path):
    monkeypatch.setattr(terminal, "launch_of", lambda environment: type("", (), {"launcher": "none"}))
    window = Pty()
    assert terminal.columns_of(Stream(window.writer)) == COLUMNS
    window.text()
    with open(tmp_path / "file", "w") as file:
        assert terminal.columns_of(file) is None


def test_a_file_is_wide_unless_columns_says_otherwise(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert terminal.console().width == terminal.FILE_COLUMNS
    monkeypatch.setenv("COLUMNS", "90")
    assert terminal.console().width == 90


def test_names_stay_as_they_are(capsys):
    terminal.console().print("mine.py:x: is proved")
    assert capsys.readouterr().out == "mine.py:x: is proved\n"


HOSTILE = "x\x1b[2J\x9b31m\u202e\ud800[/red][bold]"
SHOWN = HOSTILE.encode("unicode_escape").decode()


@pytest.mark.parametrize("colours", [False, True])
@pytest.mark.parametrize("made", [
    lambda text: text,
    lambda text: Text(text, style="red"),
    lambda text: terminal.table([[text]], {text: str}, title=text, caption=text),
    lambda text: terminal.listing({text: text}, title=text),
])  # fmt: skip
def test_text_of_a_file_commands_no_terminal(made, colours, monkeypatch, capsys):
    """However it is shown, on a terminal or not, and above or in comments. Its brackets are no markup either."""
    if colours:
        monkeypatch.setattr(terminal, "columns_of", lambda stream: 200)
    screen = terminal.console()
    screen.print(made(HOSTILE))
    with terminal.commented(screen):
        screen.print(made(HOSTILE))
    terminal.note(None, HOSTILE)
    said = capsys.readouterr()
    styles = re.compile("\x1b\\[[0-9;]*m")
    assert bool(styles.search(said.out)) <= colours
    for text in (said.out, said.err):
        plain = styles.sub("", text)
        assert plain.count(SHOWN) >= 1
        assert all(each.isprintable() for each in plain if each != "\n"), plain
