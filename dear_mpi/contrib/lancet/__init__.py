"""Lancet: compute weight gradients while the backward pass waits for the network."""
