"""Where the ranks of gloo meet, and when it is left out."""

import socket

import pytest

from dear_mpi.bench.run import bench
from dear_mpi.bench.suite import Suite
from dear_mpi.contrib.gloo.candidate import gloo_group, meeting_place
from dear_mpi.ranks.world import run_world


def test_gloo_needs_mpi(monkeypatch):
    monkeypatch.setattr("dear_mpi.contrib.gloo.candidate.find_spec", lambda name: name)  # torch is there
    settings = Suite((60,), algorithms=("gloo", "naive"), iterations=5)
    report = run_world(lambda world: bench(settings, world), threads=3)
    assert report.left_out == [("gloo: needs messages of MPI itself, not loopback (threads)", "all_reduce", 60)]
    assert {row.algorithm for row in report.rows} == {"naive"}


@pytest.mark.parametrize(("hosts", "address"), [(["a", "a"], "127.0.0.1"), (["a", "localhost"], "127.0.0.1")])
def test_where_the_ranks_of_gloo_meet(monkeypatch, hosts, address):
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    assert meeting_place(hosts) == address
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.7")
    assert meeting_place(hosts) == "127.0.0.7"


def test_gloo_listens_where_it_must_alone(monkeypatch):
    pytest.importorskip("torch", reason="gloo needs torch")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    monkeypatch.setenv("MASTER_PORT", str(port))

    def body(world):
        with gloo_group(world):
            socket.create_connection(("127.0.0.1", port)).close()
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.2", port))

    run_world(body, threads=1)
