"""Models: a convolutional network and a transformer."""
