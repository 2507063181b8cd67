"""Load users' models: a function in their file, named as ``path/to/mine.py:build``.

It has the signature of our networks (``networks.py``), and returns layers, or ``(layers, loss)``. Before training, one
example goes through them, forward and backward: errors name the layer, on all ranks and before any communication.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dear_mpi.collectives.program.user_file import load, source_of, telling
from dear_mpi.kernels.array import Array
from dear_mpi.models.data import Dataset
from dear_mpi.models.layer import Layer, Loss, Parameter, in_order
from dear_mpi.models.layers import SoftmaxCrossEntropy


def build_model(
    spec: str, dataset: Dataset, rng: np.random.Generator, dtype: np.dtype[Any]
) -> tuple[list[Layer], Loss, str]:
    """Call a user's function as ``build(shape, classes, rng, dtype)``, and try its result.

    Returns the layers, their loss (by default a classifier's), and a checksum of the file, which ranks compare.
    ValueError: there is no such function, it fails, or it returns no trainable layers.
    """
    source, name = source_of(spec, "model", "build"), f"model {spec!r}"
    build, shape, classes = load(source), dataset.shape, dataset.classes
    with telling(f"{name} fails for samples of shape {shape} and {classes} classes"):
        made = build(shape, classes, rng, dtype)
    has_loss = isinstance(made, tuple) and len(made) == 2 and not hasattr(made[0], "forward")
    layers, loss = made if has_loss else (made, SoftmaxCrossEntropy())
    check_layers(name, layers, dtype)
    check_methods(f"the loss of {name}", loss)
    try_out(name, layers, loss, dataset)
    return list(layers), loss, source.text


def check_layers(model: str, layers: Any, dtype: np.dtype[Any]) -> None:
    if not isinstance(layers, Sequence):
        raise ValueError(f"{model} must return a sequence of layers, or (layers, loss), not {type(layers).__name__}")
    trained = []
    for number, layer in enumerate(layers):
        what = named(number, layer, model)
        check_methods(what, layer)
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


def check_methods(what: str, thing: Any) -> None:
    for method in ("forward", "backward"):
        if not callable(getattr(thing, method, None)):
            raise ValueError(f"{what} must have the methods forward and backward: it has no {method}")


def named(number: int, layer: Any, model: str) -> str:
    return f"layer {number} ({type(layer).__name__}) of {model}"


def try_out(model: str, layers: Sequence[Layer], loss: Loss, dataset: Dataset) -> None:
    x, targets = dataset.train.take(np.zeros(1, np.intp))
    with telling(f"{model}: a layer that is there twice must be one that copy.deepcopy can copy"):
        layers = in_order(layers)
    shapes: list[tuple[int, ...] | None] = []
    with np.errstate(all="ignore"):  # training looks for non-finite values
        for number, layer in enumerate(layers):
            shapes.append(x.shape if number else None)  # the first input's gradient is unused
            x = returned(named(number, layer, model), layer.forward, x)
        dy = gradient_of_loss(model, loss, x, targets, classes=dataset.classes)
        for number, layer in reversed([*enumerate(layers)]):
            dy = returned(named(number, layer, model), layer.backward, dy, due=shapes[number])


def returned(what: str, method: Callable[..., Array], given: Any, due: tuple[int, ...] | None = None) -> Array:
    about = f"{given.dtype}{list(given.shape)}" if hasattr(given, "shape") else repr(given)
    call = f"{what}: {method.__name__}({about})"
    with telling(f"{call} fails"):
        array = method(given)
    if not hasattr(array, "shape"):
        raise ValueError(f"{call} must return an array, not {array!r:.99}")
    if due is not None and array.shape != due:
        raise ValueError(f"{call} must return the gradient of its input, of shape {list(due)}, not {list(array.shape)}")
    return array


def gradient_of_loss(model: str, loss: Loss, outputs: Array, targets: Array, *, classes: int) -> Array:
    what = f"the loss of {model}"
    if isinstance(loss, SoftmaxCrossEntropy) and (outputs.ndim < 2 or outputs.shape[-1] < classes):
        raise ValueError(f"{model} must have {classes} outputs, one for each class, not {list(outputs.shape[1:])}")
    with telling(f"{what} fails for outputs of shape {list(outputs.shape)} and targets of {list(targets.shape)}"):
        total = loss.forward(outputs, targets)
    if np.ndim(total) or np.asarray(total).dtype.kind not in "fiu":
        found = f"an array of shape {list(np.shape(total))}" if np.ndim(total) else f"{total!r:.99}"
        raise ValueError(f"{what} must return the sum over all examples, one number, not {found}")
    return returned(what, loss.backward, 1.0, due=outputs.shape)
