"""Networks with a shape: fat trees, tori and dragonflies."""
