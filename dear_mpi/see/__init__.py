"""What a person looks at: explanations, pictures and tables."""
