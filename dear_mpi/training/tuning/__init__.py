"""Tuning: which buckets make an iteration shortest, found by trials or by prediction."""
