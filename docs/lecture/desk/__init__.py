"""The desk of the lecture: what the page asks Python, in a browser or in a test. It needs neither MPI nor NumPy."""
