"""Read and write programs, networks and workloads in the formats of others."""
