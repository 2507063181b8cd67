"""Softmax and cross-entropy in one: the loss of a classifier, and of a language model.

The loss of a target c is -log softmax(z)[c] = log sum exp(z) - z[c], in nats, and its gradient softmax(z) - onehot(c).
``forward`` returns a *sum* and ``backward`` takes the *scale*: a mean over the local samples would be wrong as soon
as ranks hold unequal parts of a batch. With scale = 1 / (targets in the batch of the whole job) on every rank, the
sum of all ranks' gradients is the gradient of the mean loss, averaged exactly once.
"""

from dear_mpi.kernels.array import Array, array_module, library_of


class SoftmaxCrossEntropy:
    """The negative log-likelihood of targets (...), integers below C, which may be none, by logits (..., C).

    >>> import numpy as np
    >>> loss = SoftmaxCrossEntropy()
    >>> round(float(loss.forward(np.array([[0.0, 0.0]]), np.array([1]))), 3)
    0.693
    >>> loss.backward(1.0)
    array([[ 0.5, -0.5]])
    """

    def forward(self, logits: Array, targets: Array) -> Array:
        """The sum of the losses of the local targets, added up in float64: an array without axes."""
        if targets.shape != logits.shape[:-1]:
            raise ValueError(f"targets must have shape {logits.shape[:-1]}, one per row of logits, not {targets.shape}")
        check_indices("targets", targets, logits.shape[-1])
        xp = array_module(logits)
        self._shape = logits.shape
        rows = logits.reshape(-1, logits.shape[-1])
        # Softmax ignores a common shift; with the maximum at 0 nothing overflows and the sum is at least 1.
        shifted = rows - rows.max(axis=1, keepdims=True)
        self._log_p = shifted - xp.log(xp.exp(shifted).sum(axis=1, keepdims=True))
        self._targets = xp.arange(len(rows)), targets.reshape(-1)
        total: Array = -self._log_p[self._targets].sum(dtype=xp.float64)
        return total

    def backward(self, scale: float) -> Array:
        """dlogits = (softmax - onehot) * scale, (..., C)."""
        dlogits: Array = array_module(self._log_p).exp(self._log_p)
        dlogits[self._targets] -= 1.0
        dlogits *= scale
        return dlogits.reshape(self._shape)


def check_indices(what: str, x: Array, count: int) -> None:
    """See that x holds whole numbers from 0 to ``count`` - 1: NumPy would take -1 for the last row, and go on.

    An array on a GPU is not looked into, because the host would wait for it. Data sets are checked when they are read.
    """
    if x.dtype.kind not in "iu":
        raise ValueError(f"{what} must be whole numbers, not of type {x.dtype}")
    if library_of(x) == "numpy" and x.size and not 0 <= x.min() <= x.max() < count:
        raise ValueError(f"{what} must be from 0 to {count - 1}, not from {x.min()} to {x.max()}")
