"""The state of a session: in memory, or in a file."""
