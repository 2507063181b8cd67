"""Build models by name: ours, those that extras publish, and functions in users' files, ``path/to/mine.py:build``.

A model is a function of the shape of *one* sample, the number of classes, a generator of random numbers and a dtype.
It returns a flat list of layers, because the trainer reduces a layer's gradients while earlier layers still go
backward; a function in a file may return ``(layers, loss)``.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np

from dear_mpi.collectives.program.extras import WithExtras, load_extra
from dear_mpi.collectives.program.user_file import is_in_file, load, source_of, telling
from dear_mpi.kernels.array import Array
from dear_mpi.kernels.lookup import lookup
from dear_mpi.models.data import Dataset
from dear_mpi.models.layer import Layer, Loss, Parameter, in_order
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

    They are drawn in float64 and rounded, so all dtypes start from the same model.
    """
    return (rng.standard_normal(shape) * math.sqrt(gain / fan_in)).astype(dtype)


def trains_with(*, text: bool = False, **preset: Any) -> Callable[[F], F]:
    """Mark a published model with the settings that train it well, and whether it takes text."""

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

    One example goes through a user's model, forward and backward: errors name the layer, on all ranks and before any
    communication. ValueError: there is no such model, it does not take this data, or it is no trainable model.
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
    check_layers(model, layers, loss, dtype)
    try_out(model, layers, loss, dataset)
    return list(layers), loss, source.text


def check_layers(model: str, layers: Any, loss: Any, dtype: np.dtype[Any]) -> None:
    if not isinstance(layers, Sequence):
        raise ValueError(f"{model} must return a sequence of layers, or (layers, loss), not {type(layers).__name__}")
    names = [named(number, layer, model) for number, layer in enumerate(layers)]
    for what, thing in zip([*names, f"the loss of {model}"], [*layers, loss], strict=True):
        for method in ("forward", "backward"):
            if not callable(getattr(thing, method, None)):
                raise ValueError(f"{what} must have the methods forward and backward: it has no {method}")
    trained = []
    for what, layer in zip(names, layers, strict=True):
        with telling(f"the parameters of {what} fail"):
            found = getattr(layer, "parameters", None)
        if not isinstance(found, Sequence) or not all(isinstance(each, Parameter) for each in found):
            raise ValueError(f"{what} must have parameters, a sequence of Parameter, not {found!r:.99}")
        trained += [parameter for parameter in found if parameter.trained]
    if not trained:
        raise ValueError(f"{model} must have a parameter that is trained, and its {len(layers)} layers have none")
    for parameter in trained:
        kind = str(getattr(parameter.value, "dtype", type(parameter.value).__name__))
        if kind != str(dtype):
            raise ValueError(f"parameter {parameter.name} of {model} must be of dtype {dtype} (--dtype), not {kind}")


def named(number: int, layer: Any, model: str) -> str:
    return f"layer {number} ({type(layer).__name__}) of {model}"


def try_out(model: str, layers: Sequence[Layer], loss: Loss, dataset: Dataset) -> None:
    x, targets = dataset.train.take(np.zeros(1, np.intp))
    with telling(f"{model}: a layer that is there twice must be one that copy.deepcopy can copy"):
        layers = in_order(layers)
    names = [named(number, layer, model) for number, layer in enumerate(layers)]
    shapes: list[tuple[int, ...] | None] = []
    with np.errstate(all="ignore"):  # training looks for non-finite values
        for name, layer in zip(names, layers, strict=True):
            shapes.append(x.shape if shapes else None)  # the first input's gradient is unused
            x = returned(name, layer.forward, x)
        if isinstance(loss, SoftmaxCrossEntropy) and (x.ndim < 2 or x.shape[-1] < dataset.classes):
            allowed = f"{dataset.classes} outputs, one for each class"
            raise ValueError(f"{model} must have {allowed}, not {list(x.shape[1:])}")
        what = f"the loss of {model}"
        with telling(f"{what} fails for outputs of shape {list(x.shape)} and targets of {list(targets.shape)}"):
            total = loss.forward(x, targets)
        if np.ndim(total) or np.asarray(total).dtype.kind not in "fiu":
            found = f"an array of shape {list(np.shape(total))}" if np.ndim(total) else f"{total!r:.99}"
            raise ValueError(f"{what} must return the sum over all examples, one number, not {found}")
        dy = returned(what, loss.backward, 1.0, x.shape)
        for name, layer, shape in reversed([*zip(names, layers, shapes, strict=True)]):
            dy = returned(name, layer.backward, dy, shape)


def returned(what: str, method: Callable[..., Array], given: Any, due: tuple[int, ...] | None = None) -> Array:
    """Call a method, and check that it returns an array, of shape ``due`` if that is given."""
    about = f"{given.dtype}{list(given.shape)}" if hasattr(given, "shape") else repr(given)
    call = f"{what}: {method.__name__}({about})"
    with telling(f"{call} fails"):
        array = method(given)
    if not hasattr(array, "shape"):
        raise ValueError(f"{call} must return an array, not {array!r:.99}")
    if due is not None and array.shape != due:
        raise ValueError(f"{call} must return the gradient of its input, of shape {list(due)}, not {list(array.shape)}")
    return array
