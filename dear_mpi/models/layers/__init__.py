"""Layers with hand-written forward and backward, on NumPy or CuPy arrays.

Every layer is a ``Layer`` (see ``models/layer.py``), plus one loss. Four rules hold for all of them:

- the array library is the input's, so moving a model to a GPU is moving its parameters;
- the output has the dtype of the input: scalars are Python's, which never widen an array;
- samples do not see each other, so a batch may be split over ranks in any way, with any number of samples, even none;
- gradients are written into ``Parameter.grad``, replacing what the last ``backward`` wrote.
"""

from dear_mpi.models.layer import Layer, Parameter
from dear_mpi.models.layers.any_data import Dense, Gelu, LayerNorm, Relu, Reshape, Residual, SoftmaxCrossEntropy
from dear_mpi.models.layers.images import Conv2d
from dear_mpi.models.layers.tokens import CausalSelfAttention, Embedding

__all__ = ["CausalSelfAttention", "Conv2d", "Dense", "Embedding", "Gelu", "Layer", "LayerNorm", "Parameter"]
__all__ += ["Relu", "Reshape", "Residual", "SoftmaxCrossEntropy"]
