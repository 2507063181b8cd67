"""The models train by name, as built-in ones do; and what their presets and refusals are."""

import numpy as np
import pytest

from dear_mpi.ranks.world import run_world
from dear_mpi.training.runs.config import Config
from dear_mpi.training.runs.job import Job
from dear_mpi.training.runs.train import train
from tests.training_checks import README, settings


def test_presets_and_refusals():
    cnn, gpt = (Config.of({"model": name}) for name in ("cnn", "gpt"))
    assert (cnn.batch, cnn.iterations, cnn.fusion, cnn.optimizer) == (32, 300, "layers:2", "adam")
    assert (gpt.batch, gpt.iterations, gpt.fusion, gpt.optimizer) == (16, 600, "none", "adam")
    assert Config.of({"model": "gpt", "context": 8}).context == 8
    for given in ({"model": "cnn", "context": 8}, {"model": "gpt", "forward_time": 0.1}):
        with pytest.raises(ValueError, match=f"{list(given)[1]} does not apply to the model '{given['model']}'"):
            Config.of(given)
    with pytest.raises(ValueError, match="model 'gtp' is unknown: did you mean 'gpt'"):
        Config.of({"model": "gtp"})


@pytest.mark.parametrize(("choices", "said"), [
    ({"model": "gpt"}, "model 'gpt' takes only text"),
    ({"model": "cnn", "data": README}, "model 'cnn' takes no text"),
])  # fmt: skip
def test_data_that_a_model_does_not_take_is_refused(choices, said):
    with pytest.raises(ValueError, match=said):
        run_world(lambda world: train(Config.of(settings(**choices)), world), threads=1)


def test_the_number_of_ranks_does_not_change_what_cnn_computes():
    """In float64, unequal parts of batches included (10 examples on 3 ranks), to 1e-10 of one process alone."""

    def parameters(world):
        with Job(Config.of(settings(model="cnn", dtype="fp64", batch=10)), world, ["dear"]) as job:
            for iteration in range(30):
                job.group.trainers["dear"].iteration(*job.batch(iteration))
            job.group.trainers["dear"].schedule.flush()
        return np.concatenate([parameter.value.ravel() for parameter in job.parameters])

    alone = run_world(parameters, threads=1)
    for threads in (2, 3, 4, 5):
        together = run_world(parameters, threads=threads)
        assert np.abs(together - alone).max() <= 1e-10 * np.abs(alone).max(), threads


def test_gpt_learns_a_text():
    """The decoder learns to guess the project's own README: below 2.3 nats per byte, from 5.5 = log 256.

    Who knows the last byte alone, and how often which byte follows it, needs 2.6. One batch is 0.3 off the mean.
    """
    config = Config.of({"model": "gpt", "data": README, "fusion": "layers:2", "context": 16, "iterations": 200})
    loss = run_world(lambda world: train(config, world), threads=1)["loss"]
    assert loss[0] > 5 > 2.3 > np.mean(loss[-20:])
