def ring_seconds(ranks, nbytes, alpha, beta):
    """2 (P - 1) steps, each with one message of n / P bytes."""
    return 2 * (ranks - 1) * (alpha + nbytes / ranks * beta)
