"""What links really carry: a stream of bytes over a socket from each rank to the next one. On the ranks of a job:

python -m docs.benchmarks.plain_tcp --json FILE BYTES...
"""

import argparse
import json
import os
import socket
import threading
import time
from pathlib import Path

from dear_mpi.ranks.world import run_world

REPEATS = 11
BLOCK = 1 << 20


def own_address():
    """That of this host on the network of rank 0's host."""
    with socket.socket(type=socket.SOCK_DGRAM) as probe:
        probe.connect((os.environ.get("MASTER_ADDR", "127.0.0.1"), 9))  # sends nothing
        return probe.getsockname()[0]


class Neighbours:
    """Collective: a socket to the next rank, and one from the rank before."""

    def __init__(self, world):
        self.barrier = world.transport.barrier
        with socket.create_server((own_address(), 0)) as listener:
            places = world.transport.gather_values(listener.getsockname())
            self.next = socket.create_connection(places[(world.rank + 1) % world.size])
            self.before, _ = listener.accept()

    def stream_s(self, nbytes):
        """Collective: seconds until this rank has sent and received so many bytes."""
        self.barrier()
        begin_s = time.perf_counter()
        sender = threading.Thread(target=self.next.sendall, args=[bytes(nbytes)])
        sender.start()
        room, left = bytearray(BLOCK), nbytes
        while left:
            left -= self.before.recv_into(room, min(left, BLOCK))
        sender.join()
        return time.perf_counter() - begin_s


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bytes", type=int, nargs="+", help="what each rank sends")
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()

    def body(world):
        neighbours = Neighbours(world)
        found = {}
        for nbytes in options.bytes:
            ranks = world.transport.gather_values([neighbours.stream_s(nbytes) for _ in range(1 + REPEATS)][1:])
            found[nbytes] = [max(each) for each in zip(*ranks, strict=True)]
        if world.rank == 0:
            options.json.write_text(json.dumps(found), encoding="utf-8")

    run_world(body)


if __name__ == "__main__":
    main()
