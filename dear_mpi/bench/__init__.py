"""Benchmarks: measured here, paired in one run, with medians and intervals; shown by ``table``."""
