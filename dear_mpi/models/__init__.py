"""What is trained: the protocol of a layer, layers, networks made of them, and data."""
