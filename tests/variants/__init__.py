"""What travels, how often, and between whom: a target for each variant, and what was seen."""
