"""What a page of algorithms is made of."""

import json
import re

import pytest

from dear_mpi.collectives import ALGORITHMS, programs
from dear_mpi.collectives.algorithms.registry import runner_of
from dear_mpi.contrib.pages.algorithms import write_algorithms
from dear_mpi.contrib.pages.steps import COPIED, NOT_RECEIVED, NOT_SENT, NOT_TAKEN, steps_of
from dear_mpi.see.explain import Asked, Replayed
from tests.cli_checks import invoke
from tests.see.test_explain import RING_THAT_BREAKS

MOST_BYTES = 10**6
SERVED = [(name, each) for name in ALGORITHMS for each in ALGORITHMS[name] if runner_of(name) == "messages"]


def states(data):
    """What the page looks up: after each step, of each rank and chunk, whose data it has, and for whom."""
    rows = [list(row) for row in data["start"]]
    yield [[data["sets"][each] for each in row] for row in rows]
    for flat in data["changes"]:
        for at in range(0, len(flat), 3):
            rank, chunk, held = flat[at : at + 3]
            rows[rank][chunk] = held
        yield [[data["sets"][each] for each in row] for row in rows]


@pytest.mark.parametrize(("name", "collective"), SERVED)
@pytest.mark.parametrize("size", [1, 5])
def test_the_page_holds_what_the_replay_holds(name, collective, size):
    written = programs(name, collective, size)
    replayed, data = Replayed.of(written), steps_of(written, [0] * size)
    for number, rows in enumerate(states(data)):
        for rank, row in enumerate(rows):
            masks = [sum(1 << each for each in held[:1] and held[0]) for held in row]
            assert masks == [replayed.whose(mask) for mask in replayed.rows[rank][number]]
            addresses = [1 << held[1] if held[1:] else 0 for held in row]
            assert addresses == [mask >> size for mask in replayed.rows[rank][number]]
    assert number == len(written[0].steps)
    for rank, chunks in enumerate(data["due"]):
        assert all(rows[rank][chunk] == data["sets"][data["complete"][rank][chunk]] for chunk in chunks)
    sent = sum(len(step.sends) for program in written for step in program.steps)
    assert sum(len(flat) for flat in data["steps"]) == 6 * sent


@pytest.mark.parametrize(("name", "collective"), SERVED[::9])
def test_a_page_is_one_small_file(name, collective, tmp_path):
    """With all sizes up to 16 ranks, and nothing that a browser would load."""
    file = tmp_path / "page.html"
    write_algorithms("--html", file, Asked((name,), collective, 16))
    text = file.read_text()
    assert len(text.encode()) < MOST_BYTES
    assert not re.findall(r"""(?:src|href)=["'](?!data:)|@import|url\(|import\(|fetch\(|XMLHttpRequest""", text)
    assert not set(re.findall(r"https?://[^\"' )]+", text)) - {"http://www.w3.org/2000/svg"}, "a name, not an address"
    assert "default-src 'none'" in text
    assert sorted(json.loads(data_of(text))["algorithms"][0]["sizes"], key=int) == [str(n) for n in range(2, 17)]


def data_of(text):
    return re.search(r"^const DATA = (.*);$", text, re.MULTILINE)[1]


WRONG = {
    "Step(wrong.sends, (replace(wrong.receives[0], combine=False),))": (None, 0, COPIED),
    "Step(wrong.sends, ())": (1, None, NOT_RECEIVED),
    "Step((), wrong.receives)": (1, None, NOT_SENT),
    "Step((replace(wrong.sends[0], chunks=range(3, 4)),), wrong.receives)": (1, None, NOT_TAKEN),
}


@pytest.mark.parametrize(("wrong", "due"), WRONG.items())
def test_a_wrong_program_is_there_up_to_its_fault(wrong, due, tmp_path):
    (tmp_path / "mine.py").write_text(RING_THAT_BREAKS.format(step=1, wrong=wrong))
    written = programs(f"{tmp_path}/mine.py:all_reduce", "all_reduce", 4)
    data, (step, chunk, kind) = steps_of(written, [0] * 4), due
    assert (data["fault"]["step"], data["fault"]["chunk"], data["fault"]["rank"]) == (step, chunk, 0)
    assert data["fault"]["said"] == str(Replayed.of(written).fault)
    assert len(data["changes"]) == (6 if step is None else step)
    assert kind in data["steps"][1][5::6]
    assert len(data["steps"]) == (6 if step is None else 2)


@pytest.mark.parametrize("wrong", [*WRONG, "Step((), ())"])
def test_red_is_the_rank_that_errs(wrong, tmp_path):
    """Not the one that waits for it, or gets what it has not."""
    (tmp_path / "mine.py").write_text(RING_THAT_BREAKS.format(step=1, wrong=f"{wrong} if rank == 2 else wrong"))
    fault = steps_of(programs(f"{tmp_path}/mine.py:all_reduce", "all_reduce", 4), [0] * 4)["fault"]
    assert fault["rank"] == 2
    assert fault["said"].startswith("rank 2, step 1: must ")


def test_of_two_algorithms_the_wrong_one_is_named(tmp_path, here):
    (tmp_path / "mine.py").write_text(RING_THAT_BREAKS.format(step=1, wrong="Step((), wrong.receives)"))
    result = invoke("explain", "--html", "page.html", "--algorithm", "ring,mine.py:all_reduce")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: algorithm 'mine.py:all_reduce' of 2: rank 0, step 1")
    assert (tmp_path / "page.html").is_file()


@pytest.mark.parametrize(("flags", "said"), [
    (("--algorithm", "shared"), "--html shows messages, and 'shared' sends none"),
    (("--algorithm", "ring,naive,bruck"), "--html shows at most 2 algorithms side by side, not 3"),
    (("--ranks", "17"), "--html shows at most 16 ranks, not 17"),
    (("--algorithm", "rin"), "algorithm 'rin' is unknown"),
    (("--html", "page.txt"), "--html 'page.txt' must end in .html or .htm"),
])  # fmt: skip
def test_what_cannot_be_shown_is_refused(flags, said, tmp_path, here):
    result = invoke("explain", "--html", "page.html", *flags)
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())
    assert not list(tmp_path.iterdir())
