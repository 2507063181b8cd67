"""What a script that knows nothing of this package would take on other ranks and networks, under DDP and under ours."""
