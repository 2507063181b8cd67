"""Provide the flat buffer (line) of all trained parameters, its buckets and its memory."""
