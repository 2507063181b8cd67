"""Layers with hand-written forward and backward, on NumPy or CuPy arrays.

Every class is a ``Layer`` (see ``models/layer.py``), plus one loss. Four rules hold for all of them:

- the array library is the input's: moving a model to a GPU means moving its parameters;
- the output has the input's dtype: scalars are Python's, which never widen an array;
- samples are independent: ranks may split a batch in any way, with any number of samples, even none;
- gradients are written into ``Parameter.grad``, replacing the last ``backward``'s.
"""

from dear_mpi.models.layer import Layer, Parameter
from dear_mpi.models.layers.any_data import Dense, Gelu, LayerNorm, Relu, Reshape, Residual, SoftmaxCrossEntropy
from dear_mpi.models.layers.images import Conv2d
from dear_mpi.models.layers.tokens import CausalSelfAttention, Embedding

__all__ = ["CausalSelfAttention", "Conv2d", "Dense", "Embedding", "Gelu", "Layer", "LayerNorm", "Parameter"]
__all__ += ["Relu", "Reshape", "Residual", "SoftmaxCrossEntropy"]
