"""How calls are timed: loops, common starts, turns, and how many of them."""
