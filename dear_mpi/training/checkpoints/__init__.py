"""Survive the end of a run: save and restore its state, and notice when a rank leaves it."""
