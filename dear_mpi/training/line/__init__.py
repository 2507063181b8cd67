"""The line of all trained parameters, the buckets that are cut from it, and the memory that it has."""
