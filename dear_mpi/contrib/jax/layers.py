"""Train JAX functions as layers: ``y = function(parameters, x)``, differentiated by ``jax.vjp``.

    layers = [JaxLayer("dense", lambda p, x: jax.nn.relu(x @ p["w"] + p["b"]), {"w": w, "b": b}), ...]
    session = Session(layers, JaxLoss(loss), comm)

JAX arrays are immutable; our flat buffer is not: values are copied before forward, gradients after backward. Forward
returns its pullback with the saved arrays, so both passes are compiled, once per function and shape.
"""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dear_mpi.kernels.array import Array
from dear_mpi.models.layer import Parameter

__all__ = ["JaxLayer", "JaxLoss"]

Function = Callable[[Any, Any], Any]


@partial(jax.jit, static_argnums=0)
def run(function: Function, varied: tuple[Any, ...], *fixed: Any) -> Any:
    """Return a function's result, and its pullback to the varying arguments."""
    return jax.vjp(lambda *those: function(*those, *fixed), *varied)


@jax.jit  # type: ignore[untyped-decorator]
def pull(pullback: Any, dy: Any) -> Any:
    return pullback(dy)


class JaxLayer:
    """A function of parameters and an input, as a layer of NumPy arrays.

    Args:
        name: the prefix of the parameters' names.
        function: pure, since JAX may call it once for many passes.
        parameters: arrays, in lists, dictionaries or other JAX trees; tied layers: another layer's ``Parameter``.

    Raises:
        ValueError: a parameter has a type that JAX does not keep.
    """

    def __init__(self, name: str, function: Function, parameters: Any = ()) -> None:
        if not callable(function):
            raise ValueError(f"layer {name}: function must take parameters and an input, not be {function!r:.99}")
        self.function = function
        leaves, self.tree = jax.tree_util.tree_flatten_with_path(parameters)
        self.parameters = tuple(
            leaf if isinstance(leaf, Parameter) else new_parameter(f"{name}{jax.tree_util.keystr(path)}", leaf)
            for path, leaf in leaves
        )

    def forward(self, x: Array) -> Array:
        leaves = [jnp.array(parameter.value) for parameter in self.parameters]  # copies
        values, x = jax.tree_util.tree_unflatten(self.tree, leaves), jnp.asarray(x)
        given = [(values, x)] if jnp.issubdtype(x.dtype, jnp.inexact) else [(values,), x]
        y, self.pullback = run(self.function, *given)
        return np.asarray(y)

    def backward(self, dy: Array) -> Array:
        """Write all gradients; return the input's gradient, or an empty array for an integer input."""
        pullback, self.pullback = self.pullback, None
        gradients, *dx = pull(pullback, jnp.asarray(dy))
        for parameter, gradient in zip(self.parameters, jax.tree_util.tree_leaves(gradients), strict=True):
            if parameter.trained:
                parameter.grad[...] = gradient
        return np.asarray(dx[0]) if dx else np.zeros(0, dy.dtype)

    def __deepcopy__(self, memo: dict[int, Any]) -> "JaxLayer":
        return copy.copy(self)


class JaxLoss:
    """A loss function of outputs and targets; it returns the *sum* over these examples, one number."""

    def __init__(self, function: Function) -> None:
        if not callable(function):
            raise ValueError(f"loss must be a function of outputs and targets, not {function!r:.99}")
        self.function = function

    def forward(self, outputs: Array, targets: Array) -> float:
        self.total, self.pullback = run(self.function, (jnp.asarray(outputs),), jnp.asarray(targets))
        if getattr(self.total, "shape", None) != ():
            raise ValueError(f"loss must be one number, the sum over its examples, not {self.total!r:.99}")
        return float(self.total)

    def backward(self, scale: float) -> Array:
        pullback, self.pullback = self.pullback, None
        (gradient,) = pull(pullback, jnp.asarray(scale, self.total.dtype))
        return np.asarray(gradient)


def new_parameter(name: str, leaf: Any) -> Parameter:
    """Copy values to a parameter. Raises a ValueError if JAX would change their type."""
    value = np.array(leaf)
    kept = jnp.array(value[:0] if value.ndim else value).dtype if value.dtype.kind in "biufc" else value.dtype
    if kept != value.dtype:
        advice = "give it as that, or call jax.config.update('jax_enable_x64', True)"
        raise ValueError(f"parameter {name} is of {value.dtype}, which JAX makes {kept}: {advice}")
    return Parameter.of(name, value)
