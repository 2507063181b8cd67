"""What is trained: a model with its loss and its data, from a ``Config``."""

from dataclasses import dataclass

import numpy as np

from dear_mpi.kernels.dtypes import DTYPES
from dear_mpi.kernels.lookup import lookup
from dear_mpi.models.data import Dataset, load_data
from dear_mpi.models.layer import Layer, Loss
from dear_mpi.models.layers import SoftmaxCrossEntropy
from dear_mpi.models.layers.synthetic import NoLoss
from dear_mpi.models.networks import MODELS
from dear_mpi.models.paper_models import load_modules, synthetic_layers
from dear_mpi.ranks.world import World
from dear_mpi.training.config import Config
from dear_mpi.training.memory import check_batch, check_model

__all__ = ["Workload", "make_workload"]


@dataclass(frozen=True)
class Workload:
    """A model with its loss and its data; synthetic models have no data."""

    layers: list[Layer]
    loss: Loss
    dataset: Dataset | None


def make_workload(config: Config, world: World) -> Workload:
    """One of our models on data, or a synthetic model.

    Raises:
        ValueError: a name is unknown, a file is no good, model and data do not fit, or there is no memory for them.
    """
    kind, _, table = config.model.partition(":")
    return synthetic_workload(config, world, table) if kind == "synthetic" else real_workload(config, world)


def real_workload(config: Config, world: World) -> Workload:
    """A model of ours, on data."""
    dtype = lookup("dtype", config.dtype, {name: DTYPES[name] for name in ("fp64", "fp32")})
    build = lookup("model", config.model, MODELS)
    dataset = load_data(config.data, dtype, config.context)
    text = dataset.train.take(np.zeros(1, np.intp))[0].dtype.kind in "iu"
    if text != (config.model == "gpt"):
        raise ValueError(
            f"model {config.model!r} cannot be trained on data {config.data!r}: gpt takes text alone (--data FILE.txt)"
        )
    layers = build(dataset.shape, dataset.classes, np.random.default_rng(config.seed), dtype)
    check_model(sum(parameter.value.size for layer in layers for parameter in layer.parameters), config, world)
    check_batch(layers, dataset.train, config, world)
    return Workload(layers, SoftmaxCrossEntropy(), dataset)


def synthetic_workload(config: Config, world: World, table: str) -> Workload:
    """A synthetic model, without data."""
    backward_s = 2 * config.forward_time if config.backward_time is None else config.backward_time
    modules, dtype, rng = load_modules(table), lookup("dtype", config.dtype, DTYPES), np.random.default_rng(config.seed)
    check_model(sum(count for module in modules for count in module.counts), config, world)
    layers = synthetic_layers(
        modules, forward_s=config.forward_time, backward_s=backward_s, dtype=dtype, rng=rng, compute=config.compute
    )
    return Workload(layers, NoLoss(), None)
