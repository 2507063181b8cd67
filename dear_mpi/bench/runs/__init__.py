"""Saved runs, and one against another."""
