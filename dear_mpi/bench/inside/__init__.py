"""Inside a collective: its steps, and what of it hides behind compute."""
