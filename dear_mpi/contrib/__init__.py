"""Extras, published as entry points. Core runs without them and never imports them directly."""
