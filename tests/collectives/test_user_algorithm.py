"""Algorithms of users: the page that teaches them does what it shows, and every mistake is one error on all ranks."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dear_mpi.collectives import ProgramError, all_reduce, make_plan, programs, verify
from dear_mpi.collectives.program.errors import AgreedError
from dear_mpi.collectives.transports.loopback import run_loopback
from tests.cli_checks import invoke
from tests.launch import mpis_at_hand
from tests.rooms import ROOT

PAGE = (ROOT / "docs" / "how-to" / "algorithm.md").read_text(encoding="utf-8")
IMPORTS = "from dear_mpi.collectives.program.program import Program, Receive, Send, Step\n"


def blocks(language):
    """What the page has in fences of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def commands():
    """Each command of the page with the lines that it shows, without those that stand for others."""
    for block in blocks("console"):
        for entry in block.split("$ ")[1:]:
            command, *lines = entry.splitlines()
            yield command, [line for line in lines if line != "..."]


@pytest.fixture
def files(tmp_path, monkeypatch):
    """The working directory, with the files of the page; whose first lines are their names."""
    for block in blocks("python"):
        name = block.splitlines()[0].removeprefix("# ")
        with (tmp_path / name).open("a", encoding="utf-8") as file:
            file.write(block)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)  # this tree, whichever one is installed
    return tmp_path


def launched(command):
    """A command of the page as a process: its exit code, and all that it said."""
    words = shlex.split(command)
    if words[0] == "mpirun":
        if not mpis_at_hand():
            pytest.skip("there is no mpirun")
        mpi = mpis_at_hand()[0]
        words, environment = [*mpi.mpirun, *words[1:]], mpi.environment(int(words[2]))
    else:
        environment = None
    program = {"python": [sys.executable], "dear-mpi": [sys.executable, "-m", "dear_mpi"]}
    words = [part for word in words for part in program.get(word, [word])]
    job = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=600, check=False)
    return job.returncode, job.stdout + job.stderr


@pytest.mark.parametrize(("command", "shown"), list(commands()), ids=[command for command, _ in commands()])
def test_the_page_shows_what_its_commands_say(files, command, shown):
    code, said = launched(command)
    assert code == (2 if any(line.startswith("error:") for line in shown) else 0), said
    assert "Traceback" not in said
    said = " ".join(said.split())  # long lines are cut for a terminal
    for line in shown:
        assert " ".join(line.split()) in said


BAD = """
def never_sent(rank, size):
    return Program("all_gather", rank, size, ())


def ring(rank, size, modulus=None, last=lambda rank, step: step):
    ahead, steps = (rank + 1) % (modulus or size), []
    for s in range(size - 1):
        sent, received = [range(chunk % size, chunk % size + 1) for chunk in (rank - s, rank - s - 1)]
        steps.append(Step((Send(ahead, sent),), (Receive((rank - 1) % size, received),)))
    return Program("all_gather", rank, size, (*steps[:-1], last(rank, steps[-1])) if steps else ())


def sent_twice(rank, size):
    return ring(rank, size, last=lambda rank, step: Step(step.sends * (1 + (rank == 1)), step.receives))


def no_receive(rank, size):
    return ring(rank, size, last=lambda rank, step: Step(step.sends, step.receives if rank != 1 else ()))


def reduced_twice(rank, size):
    whole, peers = range(size), [peer for peer in range(size) if peer != rank]
    receives = tuple(Receive(peer, whole, combine=True) for peer in peers)
    return Program("all_reduce", rank, size, (Step(tuple(Send(peer, whole) for peer in peers), receives),) * 2)


def circle(rank, size):
    steps = [half for step in ring(rank, size).steps for half in (Step(step.sends), Step((), step.receives))]
    return Program("all_gather", rank, size, tuple(steps))


def wrong_rank(rank, size):
    return ring(rank, size, modulus=size + 1)
"""

MESSAGES = {
    "never_sent": "rank 0: chunk 1 is still empty; expected rank 1's data",
    "sent_twice": "rank 1, step 1: must not send chunk 0 to rank 2; its peers expect this, and with it the proof holds",
    "no_receive": "rank 1, step 1: must receive chunk 2 from rank 0, replacing local data; its peers expect this, "
    "and with it the proof holds",
    "reduced_twice": "rank 0, step 1: combines data of ranks 0, 1, 2 into chunk 0 again, from rank 1: combine each "
    "rank's data once",
    "circle": "rank 0, step 0: waits forever to send chunk 0 to rank 1: the peer has no matching receive or send "
    "in this step: add it, or remove this one",
    "wrong_rank": "rank 2, step 0: the peer must be another rank of 0..2, not 3",
}


def refusals(spec, collective="all_gather", size=3, hosts=None):
    """What all ranks say when they plan an algorithm; after which they still work together."""

    def body(transport):
        with pytest.raises(AgreedError) as caught:
            make_plan(collective, np.ones(10), transport, algorithm=spec)
        assert all_reduce(np.ones(1), transport)[0] == size
        return str(caught.value)

    (said,) = set(run_loopback(size, body, hosts))
    return said


@pytest.mark.parametrize("name", MESSAGES)
def test_a_wrong_algorithm_is_refused_on_all_ranks(tmp_path, name):
    file = tmp_path / "bad.py"
    file.write_text(IMPORTS + BAD)
    collective = "all_reduce" if name == "reduced_twice" else "all_gather"
    assert f"`{MESSAGES[name]}` |" in PAGE
    assert MESSAGES[name] in refusals(f"{file}:{name}", collective)
    with pytest.raises(ProgramError, match=re.escape(MESSAGES[name])):
        verify(programs(f"{file}:{name}", collective, 3))


def test_the_wrong_ring_of_the_page_is_right_on_two_ranks_alone(files):
    verify(programs("wrong.py:my_wrong_ring", "all_gather", 2))
    (shown,) = [line.removeprefix("error: ") for _, lines in commands() for line in lines if line.startswith("error:")]
    assert refusals("wrong.py:my_wrong_ring", size=5) == f"all_gather: {shown}"


PROGRAM = "return Program('all_gather', rank, size, ())"
ON_OTHERS = "algorithm 'FILE:f' fails for rank 2 of 3: "
# (what the file has, the function or what it does, part of the message)
UNUSABLE = [
    ("def near(rank, size): ...\ndef far(rank, size): ...\nSIZE = 3\ndef _own(): ...\n", "neer", "has near, far"),
    ("1 / 0\n", "f", "FILE' fails: ZeroDivisionError: division by zero"),
    ("raise KeyError('peer')", "", "FILE:f' fails for rank 0 of 2: KeyError: 'peer'"),
    ("return []", "", "FILE:f' must return a Program for rank 0 of 2, not list"),
    ("return Program('all_gather', rank, size, iter(()))", "", "steps for rank 0 of 2 that are a tuple of Step, not <"),
    ("return Program('all_reduce', rank, size, ())", "", "FILE:f' serves all_reduce, not all_gather; these do: naive"),
    (f"{PROGRAM} if rank < 2 else 1 / 0", "", f"{ON_OTHERS}ZeroDivisionError: division by zero"),
    (f"{PROGRAM} if rank < 2 else exit(0)", "", f"{ON_OTHERS}SystemExit: 0"),
    (
        "return Program(('all_gather', 'broadcast')[size > 2], rank, size, ())",
        "",
        "FILE:f' must return a program of all_gather for rank 0 of 3, not of broadcast for rank 0 of 3",
    ),
    (
        "return Program('all_gather', 0, size, ())",
        "",
        "FILE:f' must return a program of all_gather for rank 1 of 3, not of all_gather for rank 0 of 3",
    ),
    (f"while rank == 2: time.sleep(0.1)\n    {PROGRAM}", "", "did not finish within 1 seconds (for rank 2 of 3)"),
    ("list(iter(lambda: time.sleep(0.1), 0))", "", "did not finish within 1 seconds (for rank 0 of 2)"),
]


@pytest.mark.parametrize(("content", "name", "message"), UNUSABLE)
def test_an_unusable_function_is_refused_on_all_ranks(tmp_path, monkeypatch, content, name, message):
    monkeypatch.setattr("dear_mpi.collectives.program.user_file.LIMIT_S", 1.0)
    file = tmp_path / "mine.py"
    file.write_text(f"import time\n{IMPORTS}{content if name else f'def f(rank, size):{chr(10)}    {content}'}\n")
    assert message.replace("FILE", str(file)) in refusals(f"{file}:{name or 'f'}")


@pytest.mark.parametrize(("name", "wrong"), [("absent.py", "does not exist"), ("folder", "is no Python file")])
def test_a_file_that_is_none_is_refused_on_all_ranks(tmp_path, name, wrong):
    (tmp_path / "folder").mkdir()
    place = str(tmp_path / name)
    assert f"algorithm file {place!r} {wrong}: write it like path/to/mine.py:my_ring" in refusals(f"{place}:f")


def test_an_all_reduce_that_only_gathers_on_some_sizes_is_refused(tmp_path):
    """Its program is right, as an all-gather: the sum would be wrong, and nobody would say so."""
    (tmp_path / "mine.py").write_text(
        "from dear_mpi.collectives.algorithms import ring\n\n\n"
        "def f(rank, size):\n    return (ring.all_gather if size == 3 else ring.all_reduce)(rank, size)\n"
    )
    message = "must return a program of all_reduce for rank 0 of 3, not of all_gather for rank 0 of 3"
    spec = f"{tmp_path / 'mine.py'}:f"
    assert message in refusals(spec, "all_reduce")
    assert run_loopback(2, lambda t: all_reduce(np.ones(3), t, algorithm=spec)[0]) == [2, 2]
    with pytest.raises(ProgramError, match=message):
        programs(spec, "all_reduce", 3)


@pytest.mark.parametrize("change", ["the working directory", "the content"])
def test_another_file_of_the_same_name_is_proved_again(files, monkeypatch, change):
    assert run_loopback(3, lambda t: int(all_reduce(np.ones(3), t, algorithm="mine.py:my_ring")[0])) == [3] * 3
    if change == "the working directory":
        (files / "below").mkdir()
        monkeypatch.chdir(files / "below")
    Path("mine.py").write_text((files / "wrong.py").read_text().replace("my_wrong_ring", "my_ring"))
    said = "rank 2, step 1: sends chunk 0 to rank 0 before it holds any data of it"
    assert said in refusals("mine.py:my_ring", "all_reduce")


def test_what_runs_is_what_was_proved(files):
    """Though the function writes something else once a file is there."""
    late = "    import os\n    if os.stat('late').st_size: return Program('all_gather', rank, size, ())\n"
    (files / "mine.py").write_text(blocks("python")[0].replace("    steps = []\n", f"    steps = []\n{late}"))
    (files / "late").write_text("")

    def total(transport):
        return all_reduce(np.ones(5), transport, algorithm="mine.py:my_ring").tolist()

    assert run_loopback(3, total) == [[3] * 5] * 3
    (files / "late").write_text("now")
    assert run_loopback(3, total) == [[3] * 5] * 3
    assert "is still empty" in refusals("mine.py:my_ring", "all_reduce", size=4)


def test_an_algorithm_is_proved_for_the_hosts_of_the_job(tmp_path):
    """Right where all ranks are on one host, wrong elsewhere."""
    ring = blocks("python")[0].replace("rank, size)", "rank, size, hosts)", 1)
    (tmp_path / "mine.py").write_text(ring.replace("size - 1)", "size - len(set(hosts)))"))
    spec = f"{tmp_path / 'mine.py'}:my_ring"
    assert run_loopback(3, lambda t: int(all_reduce(np.ones(3), t, algorithm=spec)[0])) == [3] * 3
    assert "rank 0: chunk 1 is still empty; expected rank 1's data" in refusals(spec, hosts=[0, 0, 1])


def test_a_program_with_scratch_is_proved_and_run_and_has_no_mirror_image(tmp_path):
    (tmp_path / "mine.py").write_text(
        f"""{IMPORTS}
def gather(rank, size):
    others = [peer for peer in range(size) if peer != rank]
    own = range(rank, rank + 1)
    there = [range(size + peer, size + peer + 1) for peer in others]
    swap = Step(tuple(Send(peer, own) for peer in others), tuple(map(Receive, others, there)))
    keep = [(Send(rank, chunk), Receive(rank, range(peer, peer + 1))) for peer, chunk in zip(others, there)]
    return Program("all_gather", rank, size, (swap, Step(*map(tuple, zip(*keep)))), scratch=1)
"""
    )
    name = f"{tmp_path / 'mine.py'}:gather"

    def body(transport):
        x = np.full(7, 1 + transport.rank)
        with make_plan("all_gather", x, transport, algorithm=name) as plan:
            plan()
        with pytest.raises(AgreedError, match="all_gather on rank 0 has scratch chunks, so it cannot run backwards"):
            make_plan("all_reduce", x, transport, algorithm=name)
        return x.tolist()

    assert run_loopback(3, body) == [[1, 1, 1, 2, 2, 3, 3]] * 3
    with pytest.raises(
        ProgramError, match=r"cannot run backwards: write an algorithm for reduce_scatter or all_reduce"
    ):
        programs(name, "reduce_scatter", 3)


def test_what_is_wrong_in_a_mirrored_all_gather_is_told_of_the_all_gather(files):
    """An all-reduce made of it has other steps, which nobody wrote."""
    said = refusals("wrong.py:my_wrong_ring", "all_reduce")
    assert said == "all_reduce: rank 2, step 1: sends chunk 0 to rank 0 before it holds any data of it"


@pytest.mark.parametrize(
    "command", [("explain", "--check"), ("train", "--threads", "3", "--model", "mlp", "--iterations", "1")]
)
def test_a_wrong_algorithm_is_one_line_on_the_command_line(files, command):
    result = invoke(*command, "--algorithm", "wrong.py:my_wrong_ring")
    assert result.exit_code == 2, result.output
    assert re.search(r"^error: .*rank \d.* chunk \d", result.output, re.MULTILINE)
