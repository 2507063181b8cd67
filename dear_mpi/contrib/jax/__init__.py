"""Train JAX functions as layers of a ``Session``."""
