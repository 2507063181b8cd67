"""train --blame under mpirun, on any number of ranks: it ends, and all ranks know the same."""

import json
from pathlib import Path

import pytest

from dear_mpi.contrib.blame import blamed
from dear_mpi.contrib.blame.blamed import FEWEST
from dear_mpi.contrib.blame.job import Blamer
from dear_mpi.contrib.blame.messages import Messages
from dear_mpi.ranks.world import run_world
from dear_mpi.training.runs.config import Config
from dear_mpi.training.runs.train import train
from tests.cli_checks import invoke, succeed
from tests.training_checks import settings

pytestmark = pytest.mark.mpi
FILL, LOSS = 2, 64  # iterations; bytes


@pytest.mark.parametrize("algorithm", ["ring", "native", "shared"])
def test_all_ranks_have_the_same_blame(comm, algorithm, monkeypatch):
    calls = []
    monkeypatch.setattr(blamed, "Messages", lambda threads: calls.extend(threads.calls) or Messages(threads))
    config = Config.of(settings(schedule="dear", iterations=FEWEST + FILL, algorithm=algorithm))
    found = run_world(lambda world: train(config, world, observers={"blame": Blamer}))["blame"]
    assert comm.allgather(found) == [found] * comm.size
    assert found["ranks"] == comm.size
    assert found["iterations"] == FEWEST
    assert found["measured_s"] > 0
    assert found["said"]
    others = comm.size if comm.size > 1 else 0
    assert found["suspects"]["rank"] == others, "one rank has nobody to be late for"
    assert found["suspects"]["layer"] > 0
    if comm.rank == 0 and comm.size > 1 and algorithm != "shared":
        most = max(call.part.nbytes for call in calls if call.part.kind == "ending")
        assert (most > LOSS) == (algorithm == "ring"), "of MPI's own collectives no message is seen"


def test_the_command_writes_what_it_says(comm, tmp_path_factory):
    file = comm.bcast(str(tmp_path_factory.mktemp("blame") / "report.json") if comm.rank == 0 else None)
    given = ["train", "--model", "mlp", "--data", "digits", "--iterations", str(FEWEST + FILL), "--blame"]
    done = succeed(*given, "--link", "1gbit,10us", "--json", file)
    comm.barrier()
    said = json.loads(Path(file).read_text(encoding="utf-8"))["blame"]["said"]
    assert comm.rank or all(each in done.output for each in said)


def test_too_few_iterations_are_refused_on_all_ranks(comm):
    few = FEWEST + FILL - 1
    done = invoke("train", "--model", "mlp", "--data", "digits", "--iterations", few, "--blame")
    assert comm.allgather(done.exit_code) == [2] * comm.size
    assert comm.rank or f"--blame needs at least {FEWEST + FILL} iterations" in " ".join(done.output.split())
