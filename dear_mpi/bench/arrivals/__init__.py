"""Ranks that come late on purpose, and what that changes."""
