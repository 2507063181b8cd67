"""Lancet: compute weight gradients during exchanges."""
