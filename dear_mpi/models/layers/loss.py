"""Softmax and cross-entropy in one: the loss of a classifier, and of a language model.

The loss of a target c is -log softmax(z)[c] = log sum exp(z) - z[c], in nats, and its gradient softmax(z) - onehot(c).
``forward`` returns a *sum* and ``backward`` takes the *scale*: a mean over the local samples would be wrong as soon
as ranks hold unequal parts of a batch. With scale = 1 / (targets in the batch of the whole job) on every rank, the
sum of all ranks' gradients is the gradient of the mean loss, averaged exactly once.

Legend: C classes; ``...`` any axes, (N,) or (B, T), N the number of targets in them, which may be 0.
Shapes: logits (..., C), targets (...) integers below C.
"""

from dear_mpi.kernels.array import Array, array_module
from dear_mpi.models.layers.indices import check_indices


class SoftmaxCrossEntropy:
    """The negative log-likelihood of integer targets.

    >>> import numpy as np
    >>> loss = SoftmaxCrossEntropy()
    >>> round(float(loss.forward(np.array([[0.0, 0.0]]), np.array([1]))), 3)
    0.693
    >>> loss.backward(1.0)
    array([[ 0.5, -0.5]])
    """

    _log_p: Array
    _chosen: tuple[Array, Array]
    _shape: tuple[int, ...]

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
        self._chosen = xp.arange(len(rows)), targets.reshape(-1)
        total: Array = -self._log_p[self._chosen].sum(dtype=xp.float64)
        return total

    def backward(self, scale: float) -> Array:
        """dlogits = (softmax - onehot) * scale, (..., C)."""
        dlogits: Array = array_module(self._log_p).exp(self._log_p)
        dlogits[self._chosen] -= 1.0
        dlogits *= scale
        return dlogits.reshape(self._shape)
