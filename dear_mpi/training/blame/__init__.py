"""Which rank, link or layer iterations wait for: a recorded run as a graph, replayed with each at its usual speed."""
