"""Define the trainer's input: the protocol of a layer, layers, networks, and data."""
