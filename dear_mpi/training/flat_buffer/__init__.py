"""Provide the flat buffer of all trained parameters, its buckets and its memory."""
