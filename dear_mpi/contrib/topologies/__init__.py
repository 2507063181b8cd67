"""Networks with a shape, for ``simulate --network``: fat trees, tori and dragonflies."""
