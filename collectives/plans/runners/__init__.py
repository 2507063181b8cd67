"""How a collective is carried out: by messages, in memory that ranks share, or by the MPI library itself."""
