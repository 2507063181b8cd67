"""Tune buckets for the shortest iteration, by trials or by prediction."""
