"""Provide the flat buffer, its buckets and its memory."""
