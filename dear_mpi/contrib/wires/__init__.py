"""Wire formats: low rank (PowerSGD, ACP-SGD), sketches, noise."""
