"""Token and position embedding: y[b, t] = tokens[x[b, t]] + positions[t].

Legend: B windows, T tokens in a window, L the longest window, V vocabulary, D width.
Shapes: x (B, T) integers below V, token table (V, D), position table (L, D), y (B, T, D).
Cost: forward only copies. Backward is 2 B T V D flops, as much as a dense head over the same vocabulary.
"""

from dear_mpi.kernels.array import Array, array_module
from dear_mpi.models.layer import Parameter
from dear_mpi.models.layers.indices import check_indices


class Embedding:
    """A trained row per token plus a trained row per position.

    >>> import numpy as np
    >>> Embedding("embedding", tokens=np.ones((256, 8)), positions=np.ones((64, 8))).forward(np.array([[7, 9]])).shape
    (1, 2, 8)
    """

    _x: Array

    def __init__(self, name: str, *, tokens: Array, positions: Array) -> None:
        if tokens.shape[1:] != positions.shape[1:]:
            raise ValueError(
                f"positions of {name} must have rows of shape {tokens.shape[1:]}, not {positions.shape[1:]}"
            )
        self.tokens = Parameter.of(f"{name}.tokens", tokens)
        self.positions = Parameter.of(f"{name}.positions", positions)
        self.parameters = (self.tokens, self.positions)

    def forward(self, x: Array) -> Array:
        """(B, T) -> (B, T, D)."""
        longest = len(self.positions.value)
        if x.ndim != 2 or x.shape[1] > longest:
            raise ValueError(f"x must have shape (B, T) with T at most {longest}, not {x.shape}")
        check_indices(f"the numbers that {self.tokens.name} is given", x, len(self.tokens.value))
        self._x = x
        y: Array = self.tokens.value[x] + self.positions.value[: x.shape[1]]
        return y

    def backward(self, dy: Array) -> Array:
        """Add each row of dy to the row it came from. Tokens have no gradient, so an empty array is returned.

        Looking rows up is a product with a one-hot matrix, and its gradient the product with the transpose. A
        scatter-add would do less work, but on a GPU its atomic additions have no fixed order, and so no fixed bits.
        """
        xp = array_module(dy)
        vocabulary, width = self.tokens.value.shape
        one_hot = (self._x.reshape(-1) == xp.arange(vocabulary)[:, None]).astype(dy.dtype)
        xp.matmul(one_hot, dy.reshape(-1, width), out=self.tokens.grad)
        window = dy.shape[1]
        self.positions.grad[:window] = dy.sum(axis=0)
        self.positions.grad[window:] = 0
        nothing: Array = xp.zeros(0, dy.dtype)
        return nothing
