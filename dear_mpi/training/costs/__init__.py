"""What an iteration needs of the network: seconds of all its collectives, prices of one, and what is sent."""
