"""Wire formats of other systems: low rank (PowerSGD, ACP-SGD), sketches, noise; one or two files each."""
