"""What a person looks at: explanations, pictures, plots and tables."""
