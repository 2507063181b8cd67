"""Models: a convolutional network and a transformer, with their layers."""
