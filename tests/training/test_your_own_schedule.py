"""The page docs/how-to/schedule.md: its schedule trains, with the bits of ours, and its commands run."""

import re

import pytest

from dear_mpi.collectives.program.user_file import source_text
from dear_mpi.ranks.world import World, run_world
from dear_mpi.training.runs.config import Config
from dear_mpi.training.runs.train import train
from dear_mpi.training.schedules import find_schedules
from tests.pages import Page, output_of
from tests.training_checks import agreed, settings

PAGE = Page.of("how-to/schedule.md")
LAZY, LATE, SMALL = PAGE.blocks


@pytest.fixture
def files(tmp_path, monkeypatch):
    (tmp_path / "lazy.py").write_text(LAZY)
    (tmp_path / "my_late.py").write_text(LATE)
    (tmp_path / "my_small.py").write_text(SMALL)
    monkeypatch.chdir(tmp_path)


def test_they_have_the_bits_of_ours(files):
    digests = {
        run_world(lambda world, s=schedule: train(Config.of(settings(schedule=s)), world), threads=3)["params_sha256"]
        for schedule in ("lazy.py:Lazy", "my_late.py:Late", "my_small.py:Small(limit=4KB)", "sequential", "dear")
    }
    assert len(digests) == 1


def test_without_its_wait_it_is_refused(tmp_path, here):
    (tmp_path / "lazy.py").write_text(LAZY.replace("    def before_forward", "    def unused"))
    config = Config.of({"schedule": "lazy.py:Lazy"})
    assert PAGE.shows(agreed(lambda transport: train(config, World(transport)), 4))


@pytest.mark.parametrize(("ranks", "command"), PAGE.commands)
def test_its_commands_run(files, ranks, command):
    assert re.search("lazy|late|limit=4KB", output_of(ranks, command))


def test_options_become_attributes_of_a_class(files):
    found = find_schedules(["my_small.py:Small", "my_small.py:Small(limit=4KB)", "my_small.py:Small(1MB)"])
    assert [kind.limit for kind in found.values()] == [25_000_000, 4096, 1 << 20]
    texts = {source_text(name, "schedule", "Mine") for name in found}
    assert len(texts) == 3, "ranks compare them"


@pytest.mark.parametrize(("name", "said"), [
    ("my_small.py:Small(limit=much)", r"my_small.py:Small\(limit=much\)': limit=much cannot be read: .*25MB"),
    ("my_small.py:Small(limit)", "limit=limit cannot be read"),
    ("my_small.py:Small(credit=3)", r"my_small.py:Small\(credit=3\)': option 'credit' is unknown. Allowed: limit"),
    ("my_small.py:Small(limit=1B,limit=2B)", "has limit twice"),
    ("my_late.py:Late(limit=1B)", "Late has no options, so not 'limit' either: name what may be set in Late.options"),
    ("my_late.py:Latest(limit=1B)", "my_late.py has no function or class 'Latest'; it has Late"),
])  # fmt: skip
def test_options_that_cannot_be_set_are_refused(files, name, said):
    with pytest.raises(ValueError, match=said):
        find_schedules([name])


FORESEES = """
import time
from dear_mpi.training.schedules import Wfbp


class Sleeps(Wfbp):
    foresees = True

    def ordered(self, nominal):
        time.sleep(1000)


class Fails(Wfbp):
    foresees = True

    def ordered(self, nominal):
        raise RuntimeError("boom\\nand more")


class Typo(Wfbp):
    extras = ("negotiate",)


class Text(Wfbp):
    extras = "negotiation"
"""


@pytest.mark.parametrize(("name", "said"), [
    ("Sleeps", r"did not finish within 0.3 seconds \(in ordered\(\)"),
    ("Fails", r"fails in ordered\(\): RuntimeError: boom and more"),
    ("Typo", r"must have extras, a tuple of negotiation, second all_gather, not \('negotiate',\)"),
    ("Text", "must have extras, a tuple of negotiation, second all_gather, not 'negotiation'"),
])  # fmt: skip
def test_what_a_schedule_says_of_itself_is_looked_at(name, said, tmp_path, monkeypatch):
    monkeypatch.setattr("dear_mpi.collectives.program.user_file.LIMIT_S", 0.3)
    file = tmp_path / "mine.py"
    file.write_text(FORESEES)
    config = Config.of(settings(model="mlp", iterations=5, schedule=f"{file}:{name}"))
    error = agreed(lambda transport: train(config, World(transport)), 2)
    assert re.search(said, error)
    assert "\n" not in error
