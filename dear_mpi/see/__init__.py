"""Show explanations, pictures, plots and tables."""
