"""Models of other frameworks as what is trained here: PyTorch's modules, and functions of JAX.

Each file imports its framework, which is an extra of its own: nothing else of this package does.
"""
