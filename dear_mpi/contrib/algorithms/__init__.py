"""Further algorithms: Swing, double binary trees, a 2-D torus, Themis."""
