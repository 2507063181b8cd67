"""Further algorithms: Swing, double binary trees, a 2-D torus, and Themis, which uses two dimensions in both orders."""
