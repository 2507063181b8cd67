"""Wires of other systems: low rank (PowerSGD, ACP-SGD), sketches, noise. A wire and its legs are two files, or one."""
