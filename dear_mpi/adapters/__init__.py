"""Models of other frameworks in our sessions, and our collectives in PyTorch's programs.

Each file imports its framework, which is an extra of its own: nothing else of this package does.

    torch_session  any module, in a session of ours: ``torch_module`` says which part of it is needed when, with hooks
    jax_layers     functions of JAX, layer by layer, in a plain session
    torch_backend  DDP and FSDP2 as they are, over our collectives, which the thread of ``torch_group`` carries out

What the files for PyTorch share is in ``torch_tensors``.
"""
