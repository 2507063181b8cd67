"""The GIF of an algorithm: a frame for each step, as long as it is to be looked at; a step that breaks is red."""

import pytest
from typer.testing import CliRunner

from dear_mpi.cli.app import app
from dear_mpi.see.picture import FRAME_MS, LAST_MS
from tests.see.test_explain import RING_THAT_BREAKS

RED = (255, 0, 0)


@pytest.fixture
def frames(tmp_path):
    """The frames of a command's GIF, with their milliseconds."""
    pytest.importorskip("matplotlib")
    from PIL import Image

    def draw(algorithm, ranks, *, code=0):
        file = tmp_path / "steps.gif"
        words = ("explain", "--algorithm", algorithm, "--ranks", str(ranks), "--picture", str(file))
        assert CliRunner().invoke(app, list(words)).exit_code == code
        found = []
        with Image.open(file) as image:
            for number in range(image.n_frames):
                image.seek(number)
                found.append((image.convert("RGB"), image.info["duration"]))
        return found

    return draw


def is_red(image):
    return any(color == RED for _, color in image.getcolors(1 << 20))


def test_one_frame_for_each_step(frames):
    found = frames("ring", 3)
    assert [duration for _, duration in found] == 4 * [FRAME_MS] + [LAST_MS]
    assert len({image.tobytes() for image, _ in found}) == 5
    assert not any(is_red(image) for image, _ in found)


def test_what_breaks_is_red_in_the_last_frame(frames, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(RING_THAT_BREAKS.format(step=1, wrong="Step(wrong.sends, ())"))
    found = frames(f"{file}:all_reduce", 4, code=2)
    assert len(found) == 3, "at first, after a step, and the one that breaks"
    assert [is_red(image) for image, _ in found] == [False, False, True]
