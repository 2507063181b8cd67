"""Compare ``bench`` with gloo, the CPU backend of PyTorch."""
