"""Recipes from papers, as scripts on a ``Session``: CoDA, TAMUNA, and participants of a round."""
