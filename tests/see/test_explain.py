"""What a person reads of an algorithm."""

import pytest

from dear_mpi.collectives import ALGORITHMS, ProgramError, programs
from dear_mpi.see.explain import Asked, explain_algorithm

COLUMNS = 80

RING_THAT_BREAKS = """
from dataclasses import replace

from dear_mpi.collectives.algorithms import ring
from dear_mpi.collectives.program.program import Step


def all_reduce(rank, size):
    if size == 1:
        return ring.all_reduce(rank, size)
    program = ring.all_reduce(rank, size)
    wrong = program.steps[{step}]
    wrong = {wrong}
    return replace(program, steps=(*program.steps[:{step}], wrong, *program.steps[{step} + 1 :]))
"""


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    monkeypatch.setenv("COLUMNS", str(COLUMNS))


def explain(name, collective, size, *, check=False):
    explain_algorithm(name, Asked((name,), collective, size), check=check)


def told(capsys, *arguments):
    explain(*arguments)
    return capsys.readouterr().out


def test_the_chunks_are_followed(capsys):
    text = told(capsys, "ring", "all_reduce", 2)
    assert text.partition("at first\n")[2].startswith("""\
chunk     0    1
rank 0    0    0
rank 1    1    1
step 0 sends 0→1:+1 1→0:+0

after step 0
chunk     0    1
rank 0  0-1*   0
rank 1    1  0-1*
step 1 sends 0→1:0 1→0:1

after step 1
chunk     0    1
rank 0  0-1* 0-1*
rank 1  0-1* 0-1*
""")
    for part in ("*: complete", "-: nothing useful", "Chunk c belongs to rank c", "rank 0 sends chunk 2 to rank 1"):
        assert part in " ".join(text.split())


def test_what_is_addressed_has_an_arrow(capsys):
    text = told(capsys, "pairwise", "all_to_all", 3)
    assert text.partition("at first\n")[2].startswith("""\
chunk     0    1    2
rank 0  0→0* 0→1  0→2
rank 1  1→0  1→1* 1→2
rank 2  2→0  2→1  2→2*
step 0 sends 0→1:1 0→2:2 1→2:2 1→0:0 2→0:0 2→1:1

after step 0
chunk     0    1    2
rank 0  0→0* 1→0* 2→0*
rank 1  0→1* 1→1* 2→1*
rank 2  0→2* 1→2* 2→2*
""")
    assert "0→2: what rank 0 has for rank 2 alone" in " ".join(text.split())


IN_SCRATCH = """
from dear_mpi.collectives.program.program import Program, Receive, Send, Step


def exchange(rank, size):
    if size == 1:
        return Program("all_reduce", rank, size, (), scratch=1)
    assert size == 2
    swap = Step((Send(1 - rank, range(2)),), (Receive(1 - rank, range(2, 4)),))
    total = Step((Send(rank, range(2, 4)),), (Receive(rank, range(2), combine=True),))
    return Program("all_reduce", rank, size, (swap, total), scratch=1)
"""


def test_scratch_has_columns_and_its_transfers_are_named(capsys, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(IN_SCRATCH)
    explain(f"{file}:exchange", "all_reduce", 2, check=True)
    text = " ".join(capsys.readouterr().out.split())
    for part in (
        "0' and 0'': scratch 1 and 2 of chunk 0",
        "at first chunk 0 1 0' 1' rank 0 0 0 - - rank 1 1 1 - -",
        "step 0, rank 0: send chunks 0..1 to rank 1; receive scratch 1 of chunks 0..1 from rank 1, replacing local",
        "after step 0 chunk 0 1 0' 1' rank 0 0 0 1 1 rank 1 1 1 0 0",
        "step 1, rank 1: combine scratch 1 of chunks 0..1 into chunks 0..1",
    ):
        assert part in text
    assert "rank 0 sends most: 1 message, 1 n bytes" in text
    assert "Contributions are not combined in the order of the ranks. Sizes and cuts change no bit" in text
    assert "Proved for 1 to 2 ranks" in text


def test_several_ranges_to_one_rank_are_listed_together(capsys):
    text = told(capsys, "bruck", "all_gather", 5)
    assert "step 1 sends 0→3:0-1 1→4:1-2 2→0:2-3 3→1:3-4 4→2:0,4" in text
    assert "rank 0 sends most: 3 messages, 0.8 n bytes" in text
    assert "receive chunks 0, 4 from rank 4, replacing" in str(programs("bruck", "all_gather", 5)[2])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_16_ranks_fit(algorithm, capsys):
    text = told(capsys, algorithm, next(iter(ALGORITHMS[algorithm])), 16)
    assert max(map(len, text.splitlines())) <= COLUMNS
    assert algorithm == "shared" or "rank 15 " in text.rpartition("after step")[2]


def test_what_has_no_messages_speaks_of_memory(capsys):
    text = told(capsys, "shared", "all_reduce", 3)
    assert "buffer of rank 0 = buffer of rank 0 + buffer of rank 1, chunk 1" in text
    assert "barrier" in text
    assert text.startswith("Copy and sum in each other's memory"), "its lesson"
    assert "sends" not in text


@pytest.mark.parametrize(("wrong", "message"), [
    ("Step(wrong.sends, (replace(wrong.receives[0], combine=False),))", "rank 0: chunk 0 ends with data of"),
    ("Step(wrong.sends, ())", "step 1: waits forever to"),
    ("Step((replace(wrong.sends[0], peer=size),), wrong.receives)", "step 1: the peer must be another rank"),
], ids=["end", "blocked", "shape"])  # fmt: skip
def test_a_wrong_algorithm_is_shown_up_to_the_step_that_breaks_it(wrong, message, capsys, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(RING_THAT_BREAKS.format(step=1, wrong=wrong))
    with pytest.raises(ProgramError, match=message):
        explain(f"{file}:all_reduce", "all_reduce", 4)
    text = capsys.readouterr().out
    assert "step 0 sends 0→1:+3" in text
    assert "after step 0" in text
    assert ("after step 1" in text) == ("ends" in message)  # that one is wrong only in the end
    assert ("step 1 sends" in text) == ("peer" not in message)


def test_a_proof_that_fails_says_for_how_many_ranks(tmp_path):
    file = tmp_path / "mine.py"
    wrong = "wrong if size != 3 else Step(wrong.sends, (replace(wrong.receives[0], combine=False),))"
    file.write_text(RING_THAT_BREAKS.format(step=0, wrong=wrong))
    with pytest.raises(ProgramError, match=r"^on 3 ranks: .* \(see --ranks 3\)"):
        explain(f"{file}:all_reduce", "all_reduce", 4, check=True)
