"""Explain and prove algorithms and routes, print tables of training, write timelines."""
