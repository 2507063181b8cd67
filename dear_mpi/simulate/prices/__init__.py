"""What a collective costs on a network, for many sizes of the buffer at once, and for thousands of ranks."""
