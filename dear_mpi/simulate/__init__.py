"""The trainer on a virtual fabric: what an iteration takes on any number of ranks and any network, without MPI."""
