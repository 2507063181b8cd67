"""What the rows of a run say: why they take so long, which guidelines they break, and what late arrivals change."""
