def ring_seconds(ranks, nbytes, alpha, beta):
    """An all-reduce by a ring: alpha s per message, beta s per byte."""
    return alpha + nbytes * beta  # TODO: that is one message
