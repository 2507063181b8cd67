"""What is said of an observation: the predictor's figures, and what follows from them."""

import json
import math
import re
from dataclasses import replace

import pytest

from dear_mpi.contrib.advise.answer import PAYS, answer, bandwidth
from dear_mpi.contrib.advise.observation import Observation, Observed, read_observation
from dear_mpi.contrib.advise.observe import observe
from dear_mpi.contrib.advise.observed import Wrapped
from dear_mpi.contrib.advise.output import paragraph, unseen
from dear_mpi.simulate.settings import Settings
from dear_mpi.simulate.sweep import simulate
from dear_mpi.training.events.profile import Profile, Tensor, Use
from tests.cli_checks import invoke

LAYERS = 8
UPDATE_S = 1e-9
PROFILE = Profile(
    model="Net", device="cuda", ranks=1, rank=0, batch=None, accumulate=1, dtype="fp32", wire="fp32",
    schedule="sequential", iterations=10, update_s_per_element=UPDATE_S, rest_s=0.004,
    uses=tuple(Use(f"layer {n}", (Tensor(n, (1000, 1000)),), 0.01, 0.02) for n in range(LAYERS)),
)  # fmt: skip
TOTAL_S = LAYERS * (0.03 + 1e6 * UPDATE_S) + 0.004


def observation(*, wrapped=None, notes=(), accumulate=1, **changed):
    times = {"iteration_s": TOTAL_S, "low_s": TOTAL_S, "high_s": TOTAL_S, "watched_s": TOTAL_S}
    times |= {"before_s": 0.001, "loss_s": 0.002, "after_s": 0.001} | changed
    return Observation(
        replace(PROFILE, accumulate=accumulate), Observed(**times, wrapped=wrapped, threads=1, notes=notes)
    )


def answered(seen, **given):
    given = {"ranks": (4,), "network": "1gbit,50us"} | given
    (found,) = answer(seen, Settings(profile=seen.profile, models=("Net",), **given))
    return found


def test_rows_are_those_of_simulate():
    found = answered(observation())
    how = {"profile": PROFILE, "models": ("Net",), "ranks": (4,), "network": "1gbit,50us"}
    (ddp,) = simulate(Settings(**how, schedules=("ddp",), fusions=("ddp",)))
    assert found.ddp.iteration_s == ddp.row["iteration_s"] == ddp.prediction.iteration_s
    assert found.best.iteration_s < found.ddp.iteration_s  # 32 MB take longer than the backward pass
    assert found.twice_s < found.best.iteration_s
    assert found.reduce_s == pytest.approx(2 * 3 / 4 * 32e6 / 125e6, rel=0.01)
    said = paragraph(found)
    assert said.startswith("Net on 4 ranks and 1gbit,50us: all-reduce takes 38")
    assert f"DDP: {found.ddp.iteration_s * 1e3:.1f} ms an iteration" in said
    assert f"({found.ddp.iteration_s / found.best.iteration_s:.2f} times as fast)" in said


def test_the_table_says_on_either_side_whether_a_code_pays():
    """The threshold is one for all bandwidths: it once kept the buckets that are best at the network's own."""
    slow = answered(observation(), network="0.1gbit,1ms")
    assert slow.coded.iteration_s < slow.best.iteration_s
    assert bandwidth(slow.best.simulated) < slow.pays_below < math.inf
    for times, pays in ((0.9, True), (1.1, False)):
        found = answered(observation(), network=f"{times * slow.pays_below / 1e9:.6f}gbit,1ms")
        assert found.pays_below == pytest.approx(slow.pays_below, rel=1e-6)
        assert (1 - found.coded.iteration_s / found.best.iteration_s > PAYS) == pays
        assert ("int8 pays, by more than 1% of an iteration (" in paragraph(found)) == pays
        assert found.best.simulated.row["fusion"] != slow.best.simulated.row["fusion"]


def test_where_nothing_is_to_be_gained_the_answer_says_so():
    found = answered(observation(), network="400gbit,1us")
    assert "no schedule gains enough" in paragraph(found)
    assert "here)" not in paragraph(found)


def test_buckets_are_those_of_the_script():
    seen = (answered(observation(wrapped=Wrapped(*size))) for size in ((), (4 << 20,), (100 << 20,)))
    buckets = [len(each.ddp.simulated.prediction.buckets) for each in seen]
    assert buckets == [2, 4, 1]  # of layers of 4 MB: one, then 7; two each; all


def test_parts_that_are_sent_one_by_one_take_longer():
    parts, seen = 2, observation(wrapped=Wrapped(synced=True), accumulate=2)
    found = answered(seen)
    once = answered(observation(wrapped=Wrapped(synced=False), accumulate=2))
    assert found.unsynced is not None
    assert found.unsynced.iteration_s == once.ddp.iteration_s
    assert once.unsynced is None
    own_s, sent_s = TOTAL_S, once.reduce_s
    assert found.ddp.iteration_s - own_s > 1.2 * (once.ddp.iteration_s - own_s)
    assert found.ddp.iteration_s < own_s + parts * sent_s
    assert "with no_sync for all parts but the last" in paragraph(found)


def test_what_could_not_be_seen_is_said_where_there_is_any():
    assert list(unseen(observation(wrapped=Wrapped()))) == []
    how = {"wrapped": Wrapped(unlike=("a communication hook",)), "notes": ("bias: no gradient came",)}
    seen = observation(high_s=2 * TOTAL_S, watched_s=2 * TOTAL_S, **how)
    said = list(unseen(Observation(replace(seen.profile, device="cpu", rest_s=TOTAL_S / 2), seen.observed)))
    begins = ("no GPU", "50% of", "iterations differ", "watched iterations", "DDP has a communication hook", "bias: no")
    assert [text[: len(begin)] for text, begin in zip(said, begins, strict=True)] == list(begins)
    assert any("no_sync" in text for text in unseen(observation(accumulate=3)))


def test_a_file_is_read_as_it_was_written_and_simulate_takes_it(tmp_path):
    path = tmp_path / "seen.json"
    seen = observation(wrapped=Wrapped(4 << 20, synced=True, unlike=("a",)), notes=("b",))
    seen.write(path)
    assert read_observation(path) == observe(path, ()) == seen
    content = json.loads(path.read_text())
    observed = content["observed"]
    for wrong, named in (
        ({name: each for name, each in observed.items() if name != "threads"}, "observed must have the field 'threads"),
        (observed | {"low_s": "1"}, 'observed.low_s must be a number, not "1"'),
        (None, "observed must be an object, not null"),
    ):
        path.write_text(json.dumps(content | {"observed": wrong}))
        with pytest.raises(ValueError, match=re.escape(f"must be a file of dear-mpi advise --save: {named}")):
            read_observation(path)
    del content["observed"]
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="it must have the field 'observed'"):
        read_observation(path)


def test_there_must_be_a_script(tmp_path):
    with pytest.raises(ValueError, match=r"script '.*': it is a folder"):
        observe(tmp_path, (), 3)
    with pytest.raises(ValueError, match=r"script '.*no.py': there is no such file"):
        observe(tmp_path / "no.py", ())
    (tmp_path / "seen.json").write_text("{}")
    with pytest.raises(ValueError, match="takes no arguments"):
        observe(tmp_path / "seen.json", ("--epochs",))


def test_what_was_seen_is_saved_as_json(tmp_path):
    """Any other file would be taken for a script when it is given back."""
    script, save = tmp_path / "script.py", tmp_path / "seen.txt"
    script.write_text("raise ZeroDivisionError")
    result = invoke("advise", script, "--save", save)
    assert result.exit_code == 2
    assert "seen.txt' must end in .json" in "".join(result.stderr.split("\n"))
    assert not save.exists()
