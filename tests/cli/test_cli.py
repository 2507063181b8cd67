"""The command line, as people use it: a process of its own, whose exit code and last words count."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import fields
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from dear_mpi import __version__
from dear_mpi.cli.commands import COMMANDS, all_commands
from dear_mpi.cli.flags import PANELS, chosen
from dear_mpi.cli.train import DIGITS, RESNET
from dear_mpi.reporting.declared import options_of
from dear_mpi.training.runs.config import Config
from tests.cli_checks import assert_one_line, succeed
from tests.cli_checks import invoke as run
from tests.launch import mpis_at_hand
from tests.rooms import SOURCES


@pytest.fixture
def arrays(tmp_path):
    """A file with the arrays that it is told to have."""

    def write(**content):
        np.savez(tmp_path / "mine.npz", **content)
        return tmp_path / "mine.npz"

    return write


def helped(command, monkeypatch):
    """What --help says, on long lines without styles."""
    monkeypatch.setenv("COLUMNS", "1000")
    monkeypatch.setenv("NO_COLOR", "1")
    return [" ".join(line.split()) for line in succeed(command, "--help").stdout.splitlines()]


@pytest.mark.parametrize("command", all_commands())
def test_help(command, monkeypatch):
    lines = helped(command, monkeypatch)
    assert all_commands()[command].help in lines
    flags = [line for line in lines if line.startswith("│ --")]
    for line in flags:
        name = line.partition("--")[2].partition(" ")[0]
        assert re.fullmatch(rf"│ --{name} (<[^│]*>|[A-Z]+)? ?[^│ ][^│]*│", line), line
        assert "<bool>" not in line
    titles = [line.strip("╭─╮ ") for line in lines if line.startswith("╭─ ")]
    titles = titles[titles[:1] == ["Arguments"] :]  # Typer's panel of what has no flag
    assert titles == [panel for panel in PANELS if panel in titles], "a flag has no panel: see cli/flags.py"


def test_every_field_of_the_configuration_is_a_flag(monkeypatch):
    assert set(options_of(Config)) == {field.name for field in fields(Config)}
    trained, compared = helped("train", monkeypatch), helped("compare", monkeypatch)
    for name in options_of(Config):
        flag = {"segment_bytes": "--segment"}.get(name, f"--{name.replace('_', '-')}")
        assert sum(line.startswith(f"│ {flag} ") for line in trained) == 1, flag
        assert sum(line.startswith(f"│ {flag} ") for line in compared) == (name != "schedule"), flag


@pytest.mark.parametrize(("command", "flag", "default"), [
    ("train", "model", "mlp"),
    ("train", "fusion", "(by model)"),
    ("train", "forward-time", "(0.1, or as in a profile)"),
    ("train", "batch", "(by model)"),
    ("train", "device-memory", "auto"),
    ("compare", "model", "synthetic:resnet50"),
    ("compare", "schedules", "wfbp,dear"),
])  # fmt: skip
def test_defaults_are_shown(command, flag, default, monkeypatch):
    line = next(line for line in helped(command, monkeypatch) if line.startswith(f"│ --{flag} "))
    assert f"[default: {default}]" in line


def test_only_what_is_typed_counts_as_given():
    """A synthetic model has no data: the flag is refused where somebody types its default, not where nobody does."""
    model = ("train", "--threads", 1, "--model", "synthetic:resnet50", "--wire", "fp99")
    assert "wire 'fp99' is unknown" in run(*model).stderr
    assert "data does not apply to the model 'synthetic:resnet50'" in run(*model, "--data", "digits").stderr


def test_train_writes_its_report(tmp_path):
    file = tmp_path / "run.json"
    result = succeed("train", "--threads", 3, "--fusion", "none", "--iterations", 5, "--json", file)
    report = json.loads(file.read_text())
    assert (report["ranks"], report["iterations"], report["buckets"]) == (3, 5, 3)
    assert report["hosts"] == [3]
    assert "test accuracy" in result.stdout
    assert "3 ranks on 1 host, over loopback" in result.stdout
    assert "dear, ring, 3 buckets (one per layer)" in result.stdout


def test_compare_writes_a_row_per_schedule(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    file = tmp_path / "rows.json"
    result = succeed(
        *("compare", "--threads", 2, "--model", "mlp", "--schedules", "wfbp,dear", "--fusion", "none"),
        *("--iterations", 3, "--link", "10gbit,1us", "--json", file),
    )
    rows = json.loads(file.read_text())
    assert [row["schedule"] for row in rows] == ["wfbp", "dear"]
    assert rows[0]["speedup"] == 1
    assert all(row["ci_low"] <= row["speedup"] <= row["ci_high"] for row in rows)
    assert "EMULATED" in result.stdout
    for row in rows:  # a line each, at 80 columns
        assert len(re.findall(rf"^ *{row['schedule']} +\d", result.stdout, re.MULTILINE)) == 1
    assert all(word in result.stdout for word in row["verdict"].split())  # which a narrow column breaks
    assert "…" not in result.stdout


def test_explain_shows_and_proves():
    given = ("--collective", "all_gather", "--ranks", 3, "--hosts", 2, "--check")
    shown = succeed("explain", "--algorithm", "ring", *given)
    assert "Proved for 1 to 3 ranks" in shown.stdout


HUGE, BENCH = 10**9, ("bench", "--threads", 2, "--algorithms", "ring", "--sizes")
REFUSED = {  # by command: flags, and the error
    ("train", "--threads", 2): [
        (["--model", "mpl"], "model 'mpl' is unknown: did you mean 'mlp'?"),
        (["--algorithm", "rnig"], "algorithm 'rnig' is unknown: did you mean 'ring'? Allowed: naive, ring"),
        (["--algorithm", "native"], "algorithm 'native' needs MPI, not the transport 'loopback"),
        (["--route", ""], "route '' is unknown. Allowed: full, sharded"),
        (["--threads", 257], "Invalid value for '--threads': Input should be less than or equal to 256"),
        (["--batch", "few"], "Invalid value for '--batch'"),
        (
            ["--device", "cuda", "--device-memory", "pinned"],
            "device_memory 'pinned' is unknown. Allowed: auto, direct,",
        ),
        (["--device-memory", "auto"], "--device-memory does not apply to the device 'cpu'"),
        (["--context", 64], "--context does not apply to the model 'mlp'"),
        (["--segment", "256"], "--segment: size '256' has no unit: write it like 25MB"),
        (["--segment", "0B"], "--segment must be a whole number from 4 (one element) to"),
        (["--link", "nope"], "--link: bandwidth 'nope' cannot be read: write it like 10gbit,50us"),
        (
            ["--link", "1gbit/1gbit"],
            "--link: link '1gbit/1gbit' must be one link, or INSIDE/BETWEEN,hosts=N, or INSIDE/BE",
        ),
        (["--link", "1gbit/1gbit,hosts=3"], "link: hosts=3 does not divide 2 ranks"),
        (["--rates", "10gbit"], "--rates: rates '10gbit' must be two bandwidths, INSIDE/BETWEEN, as 100gbit/10gbit"),
        (["--rates", "nowhere.json"], "--rates: rates 'nowhere.json'"),
        (
            ["--rates", "2gbit/1gbit", "--link", "1gbit"],
            "rates must be left out where a link is emulated, which has its",
        ),
        (["--data", "nowhere.npz"], "data 'nowhere.npz' is neither a file nor a known name. Allowed: digits, FILE.npz"),
        (["--batch", 1], "--batch must be at least the number of ranks, 2, not 1"),
        (["--lr", 0], "--lr must be above zero, not 0.0"),
        (["--data", __file__], "model 'mlp' takes no text"),
        (["--optimizer", "sgd", "--lr", 1e30, "--iterations", 50], "try a lower learning rate (--lr)"),
        (("--iterations", 10**12), f"--iterations must be at most {HUGE}, not {10**12}"),
        (("--fusion", f"buckets:{HUGE}"), "asks for more buckets than the 3 layers"),
        (("--stall-after", "4"), "--stall-after: time '4' has no unit"),
    ],
    ("compare", "--threads", 2): [(("--schedules", "dear,,wfbp"), "--schedules takes one or several with commas")],
    ("simulate",): [
        (("--ranks", HUGE), f"--ranks must be from 1 to 65536, not {HUGE}"),
        (("--ranks", f"1:{HUGE}"), f"--ranks must be from 1 to 65536, not 1:{HUGE}"),
        (("--ranks", "9" * 999), "--ranks must be from 1 to 65536, not 9999"),
        (("--schedules", f"local:{HUGE}"), f"'local:{HUGE}': rounds must have at most 10000 iterations"),
        (("--schedules", f"diloco:{HUGE}"), f"rounds must have at most 10000 iterations, not {HUGE}"),
    ],
    ("explain",): [
        (("--ranks", HUGE), f"--ranks must be at most 64, not {HUGE}: with more, nobody can read"),
        (("--pieces", HUGE), "Input should be less than or equal to 256"),
        (("--ranks", 8, "--hosts", 9), "--hosts must be at most 8, the ranks, not 9"),
        *(
            (("--route", "full", flag, *value), f"--route shows a route, which is proved anyway: leave out {flag}")
            for flag, *value in (("--ranks", 100000), ("--hosts", 1), ("--algorithm", "ring"), ("--check",))
        ),
    ],
    ("bench", "--threads", 2): [
        (("--algorithms", ""), "--algorithms takes one or several with commas"),
        (("--segment", ""), "--segment: size '' cannot be read"),
        (("--sizes", "4Q"), "--sizes: size '4Q' cannot be read"),
        (("--format", "tabel"), "format 'tabel' is unknown: did you mean 'table'? Allowed: table"),
        (("--raw",), "--raw needs --json FILE"),
        (("--tune", "a", "--json", "./a"), "--tune and --json must be different files, not both 'a'"),
        (("--tune", "a.old", "--json", "a"), "--tune and the older file of --json must be different files, not both"),
        (("--algorithms", "ring,auto:a.json", "--json", "a.json"), "would write over the file of --algorithms"),
    ],
    BENCH: [
        (("4", "--iterations", HUGE), f"--iterations must be at most 10000000, not {HUGE}"),
        (("8M", "--segment", "4B"), "4 cuts 8388608 bytes into more than 1000000 messages"),
    ],
}


@pytest.mark.parametrize(
    ("command", "flags", "message"),
    [(command, *row) for command, rows in REFUSED.items() for row in rows],
    ids=lambda value: " ".join(map(str, value))[:40] if isinstance(value, tuple | list) else "",
)
def test_bad_input_is_one_line_before_the_work(command, flags, message, tmp_path, here):
    """Lists of too many things would take minutes, or all memory."""
    result = run(*command, *flags)
    assert_one_line(result, message)
    assert result.stdout == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("command", "meant"), [
    (
        "explain --algorithm mine.py",
        "algorithm 'mine.py' lacks a name after the file: write mine.py:my_ring or mine.py:build",
    ),
    ("train --threads 2 --schedule mine.py", "schedule 'mine.py' lacks a name after the file: write mine.py:Lazy"),
    (
        "train --threads 2 --model mine.py",
        "model 'mine.py' lacks a name after the file: write mine.py:my_ring or mine.py:build",
    ),
    ("explain --algorithm empty.py", "write empty.py:my_ring, and define my_ring there"),
    ("explain --algorithm none.py", "does not exist: write it like path/to/mine.py:my_ring"),
])  # fmt: skip
def test_a_file_alone_is_answered_with_what_is_in_it(command, meant, tmp_path, here):
    (tmp_path / "empty.py").touch()
    own = "class Lazy: ...\ndef my_ring(rank, size): ...\ndef build(shape, classes, rng, dtype): ...\ndef _own(): ...\n"
    (tmp_path / "mine.py").write_text(own)
    assert_one_line(run(*command.split()), meant)


@pytest.mark.parametrize(("shape", "said"), [
    ((10, 4), "x and y must have the same length, not 10 and 9"),
    ((9, 0), "x must hold finite numbers (n, ...), one or more in each row, not float64[9, 0]"),
    ((9, 3, 0), "one or more in each row, not float64[9, 3, 0]"),
])  # fmt: skip
def test_bad_arrays(arrays, shape, said):
    file = arrays(x=np.zeros(shape), y=np.arange(9) % 2)
    assert_one_line(run("train", "--threads", 2, "--data", file), said)


def test_good_arrays(arrays):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 300)
    file = arrays(x=rng.standard_normal((300, 5)) + 4 * y[:, None], y=y)
    succeed("train", "--threads", 2, "--data", file, "--iterations", 60, "--batch", 30)


@pytest.mark.parametrize("command", ["train", "compare", "demo"])
def test_threads_are_refused_under_mpirun(command, monkeypatch):
    monkeypatch.setenv("PMI_SIZE", "2")
    monkeypatch.setenv("PMI_RANK", "0")
    result = run(command, "--threads", 2)
    assert result.exit_code == 2
    assert "--threads runs in one process: start it without mpirun" in result.stderr


def test_each_option_of_the_demo_is_a_flag_that_its_job_takes():
    """Names that no flag has would be left out without a word."""
    names = {said.name(name) for name, said in options_of(Config).items()}
    assert {*DIGITS, *RESNET} <= names
    assert Config.of(chosen(Config, RESNET)).segment_bytes == 1 << 20


LOADED = """
import sys
from importlib import import_module
import_module("dear_mpi.__main__")
from dear_mpi.cli.app import app, load_command
for name in sys.argv[1:]:
    load_command(name)
try:
    not sys.argv[1:] and app(["--help"])
except SystemExit:
    pass
print(*sys.modules, file=sys.stderr)
"""


def loaded(*commands):
    """Modules that the help of the group loads, or these commands."""
    job = subprocess.run([sys.executable, "-c", LOADED, *commands], capture_output=True, text=True, timeout=60)
    assert job.returncode == 0, job.stderr
    return set(job.stderr.splitlines()[-1].split())


def test_commands_are_imported_without_what_only_some_runs_need():
    assert not loaded(*COMMANDS) & {"mpi4py", "cupy", "matplotlib", "torch", "sklearn"}


def test_the_help_of_the_group_imports_no_command():
    """At most 30 of our modules, of 2,000 lines: with many ranks, each file is a request to one server."""
    found = loaded()
    assert "dear_mpi.cli.train" not in found
    assert "numpy" not in found
    ours = [SOURCES.get(name) or SOURCES.get(f"{name}.__init__") for name in found if name.startswith("dear_mpi")]
    assert len(ours) <= 30
    assert sum(len(path.read_text("utf-8").splitlines()) for path in ours if path) <= 2000


def test_a_command_imports_no_other_command():
    others = {f"dear_mpi.{name}" for name in ("bench.run", "cli.train", "cli.bench", "simulate.sweep", "bench.diff")}
    assert not loaded("explain") & others


def job_of(*words, **environment):
    """The end of ``python -m dear_mpi`` with these words."""
    command, how = [sys.executable, "-m", "dear_mpi", *words], {"env": os.environ | environment, "timeout": 600}
    return subprocess.run(command, **how, capture_output=True, text=True, check=False)


def test_python_m_runs_the_same_command_line():
    result = job_of("train", "--threads", "2", "--model", "mpl")
    assert result.returncode == 2
    assert "did you mean 'mlp'?" in result.stderr


def test_a_launcher_of_another_mpi_is_told_apart():
    """Each of its processes would believe to be alone, and train by itself."""
    result = job_of("train", "--iterations", "1", PMI_SIZE="2", PMI_RANK="0")
    assert result.returncode == 2
    assert "2 ranks were launched, but" in result.stderr
    assert "sees one: mpirun belongs to another MPI" in result.stderr
    assert "Traceback" not in result.stderr


def test_bench_reports_samples_and_where_it_was_made(tmp_path):
    """And it keeps an older report."""
    file = tmp_path / "rows.json"
    file.write_text("old")
    result = succeed(*BENCH, "1KiB", "--algorithms", "ring,native", "--budget", "10ms", "--raw", "--json", file)
    assert result.stdout.startswith("# all_reduce")
    assert "native: needs messages of MPI itself" in " ".join(result.stdout.split())
    report = json.loads(file.read_text())
    assert " ".join(report) == (
        "host date version commit command mpi launcher hosts ranks cores clock cpu kernel congestion_control versions "
        "environment loop start rows"
    )
    assert (report["version"], report["hosts"]) == (__version__, [2])
    assert [each["host"] for each in report["ranks"]] == [report["host"]] * 2
    (row,) = report["rows"]
    assert (row["algorithm"], row["wrong"]) == ("ring", 0)
    assert [len(samples) for samples in row["times_us"]] == [row["samples"]] * 2
    assert (tmp_path / "rows.json.old").read_text() == "old"


def test_bench_on_an_emulated_link_says_so(tmp_path):
    file = tmp_path / "rows.json"
    given = ("--threads", 2, "--link", "100mbit,1ms", "--algorithms", "ring", "--sizes", "64KiB", "--budget", "100ms")
    result = run("bench", *given, "--json", file)
    assert "EMULATED link of 100 Mbit/s" in " ".join(result.stdout.split())
    (row,) = json.loads(file.read_text())["rows"]
    assert row["backend"].startswith("EMULATED link")
    assert row["min_us"] > 2 * 1000 + 64 * 1024 * 8 / 100  # two messages of half the bytes, one after the other


@pytest.mark.parametrize(("arguments", "said"), [
    (["bench", "--threads", 2, "--algorithms", "native", "--sizes", "1KiB"], "nothing can be measured here: nat"),
    (
        ["bench", "--threads", 2, "--algorithms", "ring", "--sizes", "1000000GB"],
        "nothing can be measured here: all: more memory than the ",
    ),
    (["bench", "--threads", 2, "--algorithms", "rnig"], "did you mean 'ring'"),
    (["train", "--threads", 2, "--batch", 1], "batch"),
])  # fmt: skip
def test_a_run_without_results_leaves_an_older_report_where_it_is(arguments, said, tmp_path):
    file = tmp_path / "rows.json"
    file.write_text("old")
    result = run(*arguments, "--json", file)
    assert result.exit_code == 2
    assert said in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["rows.json"]
    assert file.read_text() == "old"


@pytest.mark.parametrize(("rank", "lines"), [(0, 1), (1, 0)])
def test_usage_errors_are_one_line_of_the_first_rank(rank, lines, monkeypatch):
    monkeypatch.setenv("PMI_SIZE", "2")
    monkeypatch.setenv("PMI_RANK", str(rank))
    result = run("train", "--nope")
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", lines)
    assert result.stderr.startswith("error: No such option: --nope" if lines else "")


GIVEN = "flags must be the same on all ranks, not --{} on rank 1"


@pytest.mark.parametrize(("common", "alone", "said"), [
    (["train"], ["--batch", "x"], "Invalid value for '--batch': .* on rank 1"),
    (["train"], ["--timelin", "t.json"], "No such option: --timelin .* on rank 1"),
    (["train"], ["--timeline", "t.json"], GIVEN.format("timeline")),
    (["train"], ["--json=t.json"], GIVEN.format("json")),
    (["bench"], ["--raw", "--json", "t.json"], GIVEN.format("json --raw")),
    (["train"], ["--help"], "command must be the same on all ranks, not train on rank 0; train --help on rank 1"),
    ([], ["train"], "command must be the same on all ranks, not none on rank 0; train on rank 1"),
])  # fmt: skip
def test_what_one_rank_alone_is_told_is_an_error_on_all(common, alone, said, tmp_path):
    """None of them waits for the others, or shows help."""
    if not mpis_at_hand():
        pytest.skip("there is no mpirun")
    mpi, base = mpis_at_hand()[0], ["-n", "1", sys.executable, "-m", "dear_mpi", *common]
    how = {"env": mpi.environment(2) | {"PYTHONPATH": os.getcwd()}, "cwd": tmp_path, "timeout": 600}
    job = subprocess.run([*mpi.mpirun, *base, ":", *base, *alone], **how, capture_output=True, text=True, check=False)
    assert job.returncode == 2, job.stderr
    (line,) = (line for line in job.stderr.splitlines() if line.startswith("error: "))
    assert re.fullmatch(f"error: {said}", line)
    assert "Usage" not in job.stdout
    assert list(tmp_path.iterdir()) == []


def test_only_the_first_rank_shows_help(monkeypatch):
    monkeypatch.setenv("PMI_SIZE", "2")
    monkeypatch.setenv("PMI_RANK", "1")
    results = run("--help"), run("train", "--help"), run()
    assert [(result.exit_code, result.output) for result in results] == [(0, "")] * 3


WRITING = [
    (("train", "--threads", 2, "--iterations", 1), "--json", "loss, first and last"),
    (("bench", "--threads", 2, "--algorithms", "ring", "--sizes", "1KiB", "--budget", "10ms"), "--tune", "busbw"),
]


@pytest.mark.parametrize(("command", "flag"), [case[:2] for case in WRITING], ids=["train", "bench"])
@pytest.mark.parametrize(("file", "problem"), [(".", "it is a folder"), ("none/x.png", "there is no folder")])
def test_a_file_that_cannot_be_written_is_refused_before_the_work(command, flag, file, problem, tmp_path, here):
    result = run(*command, flag, file)
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"{flag} '{file}' cannot be written: {problem}" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("command", "flag", "shown"), WRITING, ids=["train", "bench"])
def test_a_disk_that_is_full_in_the_end(command, flag, shown, tmp_path, monkeypatch):
    """The figures are on the terminal, and there is no half of a new file. The old one is what it was."""
    (tmp_path / "file.png").write_text('{"machine": {}, "rules": []}')

    def full(path, target):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(Path, "replace", full)
        result = run(*command, flag, tmp_path / "file.png")
    assert result.exit_code == (1 if flag == "--tune" else 2)
    assert shown in result.stdout
    assert f"{flag} '{tmp_path / 'file.png'}' cannot be written: No space left on device" in result.stderr
    assert "Traceback" not in result.output
    assert [file.name for file in tmp_path.iterdir()] == ["file.png"]
    assert "rules" in (tmp_path / "file.png").read_text()


# Ctrl-C where there is one process, at any moment: a line, and no traceback.

INTERRUPT = "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(60)\n"
BUILD = f"def build(*given):\n    {INTERRUPT}"
TRAIN = ["train", "--threads", "2", "--model", "{}/mine.py:build"]
MOMENTS = {
    "imports": ("numpy.py", INTERRUPT, TRAIN),
    "training": ("mine.py", BUILD, TRAIN),
    "one rank under MPI": ("mine.py", BUILD, ["bench", "--algorithms", "{}/mine.py:build"]),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_ctrl_c_ends_a_command_with_one_line(moment, tmp_path):
    name, text, arguments = MOMENTS[moment]
    (tmp_path / name).write_text(text)
    command = [sys.executable, "-m", "dear_mpi", *(each.format(tmp_path) for each in arguments)]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a shell's jobs in the background ignore Ctrl-C
    how = {"env": environment, "preexec_fn": heard, "timeout": 300}
    job = subprocess.run(command, **how, capture_output=True, text=True, check=False)
    assert job.stderr == "rank 0 was interrupted\n"
    assert job.returncode in (130, -2)  # Python may end itself by the signal: 130 in a shell
