"""Build models by name: ours, those that extras publish, and functions in users' files, ``path/to/mine.py:build``.

A function of *one* sample's shape, the number of classes, a generator and a dtype returns a list of layers.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np

from dear_mpi.collectives.program.user_file import WithExtras, is_in_file, load, load_extra, source_of, telling
from dear_mpi.kernels.array import Array
from dear_mpi.kernels.lookup import lookup
from dear_mpi.models.data import Dataset
from dear_mpi.models.layer import Layer, Loss, in_order
from dear_mpi.models.layers import Dense, Relu, Reshape, SoftmaxCrossEntropy

Network = Callable[[tuple[int, ...], int, np.random.Generator, np.dtype[Any]], list[Layer]]
F = TypeVar("F", bound=Callable[..., Any])


def mlp(shape: tuple[int, ...], classes: int, rng: np.random.Generator, dtype: np.dtype[Any]) -> list[Layer]:
    """Build two hidden dense layers and a head, for inputs of any shape.

    >>> len(mlp((8, 8), 10, np.random.default_rng(0), np.dtype(np.float32)))
    6
    """
    draw = partial(draw_weight, rng, dtype)
    inputs, hidden = math.prod(shape), 128
    return [
        Reshape((inputs,)),
        Dense("dense1", draw((inputs, hidden), fan_in=inputs, gain=2.0)),
        Relu(),
        Dense("dense2", draw((hidden, hidden), fan_in=hidden, gain=2.0)),
        Relu(),
        Dense("head", draw((hidden, classes), fan_in=hidden), outputs=None),
    ]


def draw_weight(
    rng: np.random.Generator, dtype: np.dtype[Any], shape: tuple[int, ...], *, fan_in: int, gain: float = 1.0
) -> Array:
    """Draw normal weights of variance gain / fan_in; a gain of 2 compensates for Relu.

    They are rounded from float64: all dtypes start from one model.
    """
    return (rng.standard_normal(shape) * math.sqrt(gain / fan_in)).astype(dtype)


def trains_with(*, text: bool = False, **preset: Any) -> Callable[[F], F]:
    """Mark a model with settings that train it well, and whether it takes text."""

    def mark(build: F) -> F:
        vars(build).update(text=text, preset=preset)
        return build

    return mark


def published_model(name: str) -> Network:
    found: Network = load_extra("models", name)
    if not callable(found):
        raise ValueError(f"model {name!r} must be a function, not {found!r:.60}")
    return found


MODELS: dict[str, Network] = {"mlp": mlp}
ALL_MODELS = WithExtras(MODELS, "models", published_model)


def build_model(
    name: str, dataset: Dataset, rng: np.random.Generator, dtype: np.dtype[Any]
) -> tuple[list[Layer], Loss, str]:
    """Return a model's layers, its loss (by default a classifier's), and a text that ranks compare.

    One example goes through a user's model, forward and backward: errors name the layer, before any communication.
    ValueError: no such model, not for this data, or not trainable.
    """
    shape, classes, model = dataset.shape, dataset.classes, f"model {name!r}"
    if not is_in_file(name):
        network = lookup("model", name, ALL_MODELS)
        takes_text, is_text = getattr(network, "text", False), dataset.train.x.dtype.kind == "u"
        if takes_text != is_text:
            raise ValueError(f"{model} takes {'only' if takes_text else 'no'} text (--data FILE.txt)")
        return network(shape, classes, rng, dtype), SoftmaxCrossEntropy(), name
    source = source_of(name, "model", "build")
    build = load(source)
    with telling(f"{model} fails for samples of shape {shape} and {classes} classes"):
        made = build(shape, classes, rng, dtype)
    has_loss = isinstance(made, tuple) and len(made) == 2 and not hasattr(made[0], "forward")
    layers, loss = made if has_loss else (made, SoftmaxCrossEntropy())
    if not isinstance(layers, Sequence):
        raise ValueError(f"{model} must return a sequence of layers, or (layers, loss), not {type(layers).__name__}")
    names = [f"layer {number} ({type(layer).__name__}) of {model}" for number, layer in enumerate(layers)]
    trained = []
    for what, layer in zip(names, layers, strict=True):
        with telling(f"the parameters of {what} fail"):
            trained += [(each.name, str(each.value.dtype)) for each in layer.parameters if each.trained]
    if not trained:
        raise ValueError(f"{model} must have a parameter that is trained, and its {len(layers)} layers have none")
    for parameter, kind in trained:
        if kind != str(dtype):
            raise ValueError(f"parameter {parameter} of {model} must be of dtype {dtype} (--dtype), not {kind}")
    with telling(f"{model}: a layer that is there twice must be one that copy.deepcopy can copy"):
        tried = in_order(layers)
    try_out(model, names, tried, loss, dataset)
    return list(layers), loss, source.text


def try_out(model: str, names: Sequence[str], layers: Sequence[Layer], loss: Loss, dataset: Dataset) -> None:
    x, targets = dataset.train.take(np.zeros(1, np.intp))
    shapes: list[tuple[int, ...] | None] = [None]  # the first input's gradient is unused
    with np.errstate(all="ignore"):  # training reports them
        for name, layer in zip(names, layers, strict=True):
            x = returned(name, layer, "forward", x)
            shapes.append(x.shape)
        if isinstance(loss, SoftmaxCrossEntropy) and (x.ndim < 2 or x.shape[-1] < dataset.classes):
            allowed = f"{dataset.classes} outputs, one for each class"
            raise ValueError(f"{model} must have {allowed}, not {list(x.shape[1:])}")
        what = f"the loss of {model}"
        with telling(f"{what} fails for outputs of shape {list(x.shape)} and targets of {list(targets.shape)}"):
            total = loss.forward(x, targets)
            if np.ndim(total) or np.asarray(total).dtype.kind not in "fiu":
                raise ValueError(f"it must return the sum over all examples, one number, not {total!r:.99}")
        dy = returned(what, loss, "backward", 1.0, shapes.pop())
        for name, layer, shape in zip(reversed(names), reversed(layers), reversed(shapes), strict=True):
            dy = returned(name, layer, "backward", dy, shape)


def returned(what: str, thing: Any, method: str, given: Any, due: tuple[int, ...] | None = None) -> Array:
    """Return the array of a method; ValueError: it fails, or returns none of shape ``due``."""
    about = f"{given.dtype}{list(given.shape)}" if hasattr(given, "shape") else repr(given)
    with telling(f"{what}: {method}({about}) fails"):
        array: Array = getattr(thing, method)(given)
        if not hasattr(array, "shape"):
            raise TypeError(f"it must return an array, not {array!r:.99}")
        if due is not None and array.shape != due:
            raise ValueError(f"it must return the gradient of its input, of shape {list(due)}, not {list(array.shape)}")
    return array
