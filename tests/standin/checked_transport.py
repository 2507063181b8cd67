"""A transport whose messages are in the order of the stand-in: what is handed over must have been waited for.

MPI knows no streams. A send reads its buffer and a receive writes it from ``Start`` until ``Wait`` or ``Test`` says
that it is over, whatever streams do; the wrapper tells the stand-in so. How the transport below moves bytes is not
looked at, nor are collectives of the MPI library, which go past it.
"""

from dear_mpi.collectives.transports.transport import Wrapper


class CheckedTransport(Wrapper):
    """Any transport, between which and the program the stand-in for CuPy watches every request."""

    def send_init(self, data, peer, tag):
        return CheckedRequest(self.below.send_init(data, peer, tag), data, False, f"a send to rank {peer}")

    def recv_init(self, data, peer, tag):
        return CheckedRequest(self.below.recv_init(data, peer, tag), data, True, f"a receive from rank {peer}")


class CheckedRequest:
    """A request and the bytes that it uses while it is under way."""

    def __init__(self, below, data, write, name):
        import cupy  # the stand-in, once a test has made it importable

        self.cupy, self.below, self.data, self.write, self.name = cupy, below, data, write, name
        self.use = None

    def Start(self):
        """Raises RaceError where the device may still be at work on the buffer, or another request is."""
        self.use = self.cupy.begin_host_use(self.data, write=self.write, name=self.name)
        try:
            with self.cupy.unaccounted():
                self.below.Start()
        except BaseException:
            self.end()
            raise

    def Wait(self):
        with self.cupy.unaccounted():
            self.below.Wait()
        self.end()

    def Test(self):
        with self.cupy.unaccounted():
            over = self.below.Test()
        if over:
            self.end()
        return over

    def Free(self):
        with self.cupy.unaccounted():
            self.below.Free()

    def end(self):
        use, self.use = self.use, None
        self.cupy.end_host_use(use)
