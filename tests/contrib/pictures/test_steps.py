"""Pictures of an algorithm: its data after each step, and a fault in red."""

import matplotlib
import pytest

from dear_mpi.collectives import programs
from dear_mpi.contrib.pictures.steps import sent_as
from dear_mpi.see.explain import Replayed
from tests.cli_checks import invoke
from tests.see.test_explain import IN_SCRATCH, RING_THAT_BREAKS


@pytest.fixture
def drawn(tmp_path):
    """What the picture of an algorithm says, in letters that can be read."""

    def draw(name, size, *, code=0):
        file = tmp_path / "steps.svg"
        words = ("explain", "--algorithm", name, "--ranks", str(size), "--picture", str(file))
        with matplotlib.rc_context({"svg.fonttype": "none"}):
            done = invoke(*words)
        assert done.exit_code == code, done.output
        return file.read_text()

    return draw


@pytest.fixture
def file(tmp_path):
    return tmp_path / "mine.py"


@pytest.mark.parametrize(("wrong", "said", "panels"), [
    ("Step(wrong.sends, (replace(wrong.receives[0], combine=False),))", "ends with data of", ["after step 5"]),
    ("Step(wrong.sends, ())", "step 1: waits forever to", ["after step 0", "step 1 fails"]),
    ("Step((replace(wrong.sends[0], peer=size),), wrong.receives)", "must be another rank", ["step 1 fails"]),
], ids=["end", "blocked", "shape"])  # fmt: skip
def test_a_wrong_algorithm_is_drawn_up_to_its_fault_in_red(wrong, said, panels, drawn, file):
    file.write_text(RING_THAT_BREAKS.format(step=1, wrong=wrong))
    text = drawn(f"{file}:all_reduce", 4, code=2)
    red = [line for line in text.splitlines() if "#ff0000" in line]
    assert any("stroke: #ff0000" in line for line in red), "a frame"
    assert any(said in line for line in red), "the sentence of the proof"
    assert all(any(panel in line for line in red) == (panel == panels[-1]) for panel in panels)
    assert ("step 2" in text) == ("ends" in said)


def test_scratch_is_drawn_beside_the_buffer(drawn, file):
    file.write_text(IN_SCRATCH)
    text = drawn(f"{file}:exchange", 2)
    assert "scratch 1" in text
    assert "after step 1" in text


@pytest.mark.parametrize(("algorithm", "size"), [("ring", 4), ("ring", 1), ("double_tree", 9), ("binomial", 3)])
def test_a_picture_says_what_it_shows(algorithm, size, drawn):
    text = drawn(algorithm, size)
    for part in (f"{algorithm} all_reduce on {size} rank", "who sends to whom", "at first", "complete", "chunk"):
        assert part in text
    for part in ("after step 0", "added by the receiver", "copied by the receiver"):
        assert part in text or size == 1


@pytest.mark.parametrize(("arguments", "said"), [
    (("--picture", "x.abc"), "--picture 'x.abc' must end in .png or .pdf or .svg"),
    (("--picture", "none/x.png"), "--picture 'none/x.png' cannot be written: there is no folder 'none'"),
    (("--picture", ""), "--picture '.' must end in .png or .pdf or .svg"),
    (("--algorithm", "ring,naive", "--picture", "x.png"), "--picture draws one algorithm, not 2"),
])  # fmt: skip
def test_what_cannot_be_drawn_is_refused(arguments, said, tmp_path, here):
    done = invoke("explain", *arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("algorithm", "collective"), [("ring", "all_reduce"), ("pairwise", "all_to_all")])
def test_arrows_begin_where_chunks_are_sent_from(algorithm, collective):
    """On the sender's row, and the chunk that it names; they end where the receiver stores it."""
    replayed = Replayed.of(programs(algorithm, collective, 5))
    for program in replayed.programs:
        for number, step in enumerate(program.steps):
            for receive in step.receives:
                sent = sent_as(replayed, receive, program.rank, number)
                moved = collective == "all_to_all"
                assert sent == (range(program.rank, program.rank + 1) if moved else receive.chunks)
