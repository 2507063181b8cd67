"""Explain the rows of a run: their times, broken guidelines, and the effect of late arrivals."""
