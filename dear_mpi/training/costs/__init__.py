"""What an iteration needs of the network: bounds, prices of collectives, and what is sent."""
