"""Where the line is cut into buckets: by sizes, or by when gradients are ready."""
