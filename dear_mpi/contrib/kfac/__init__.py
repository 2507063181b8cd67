"""K-FAC: multiply each layer's gradient by the inverses of its Kronecker factors."""
