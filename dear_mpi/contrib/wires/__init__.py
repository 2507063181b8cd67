"""Wire formats: low rank (PowerSGD, ACP-SGD), sketches, exact integers, noise."""
