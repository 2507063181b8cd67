"""Adapt models of other frameworks to our sessions, and our collectives to PyTorch programs.

Each file imports its framework, a separate extra; no other file of this package does.

    torch_session  any module in our session; ``torch_module`` finds with hooks when its parts are needed
    jax_layers     JAX functions, layer by layer, in a plain session
    torch_backend  unchanged DDP and FSDP2 over our collectives, which ``torch_group``'s thread runs

``torch_tensors`` has the common code of the PyTorch files.
"""
