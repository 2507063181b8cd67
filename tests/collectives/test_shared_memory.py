"""Blocks that other processes can map: found, viewed, refused where they are not what they were, and given back."""

import gc
import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from dear_mpi.collectives.transports import shared_memory
from dear_mpi.collectives.transports.shared_memory import HUGE_BYTES, SharedMemory

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs Linux: blocks are memory files")

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def memory():
    return SharedMemory()


def open_descriptors():
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def in_another_process(part, code):
    """Run code that has ``x``, a peer's view of this part as ten numbers of fp32."""
    setup = (
        "import sys, numpy as np\n"
        "from dear_mpi.collectives.transports.shared_memory import Region, SharedMemory\n"
        "memory = SharedMemory()\n"
        "part = Region(**__import__('json').loads(sys.argv[1]))\n"
        "x = memory.view(part, np.empty(10, np.float32))\n"
    )
    command = [sys.executable, "-c", setup + code, json.dumps(asdict(part))]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)


def test_a_block_is_zero_bytes_that_can_be_found(memory):
    block = memory.allocate(5000)
    assert block.dtype == np.uint8
    assert not block.any()
    part = memory.find(block)
    assert (part.pid, part.nbytes, part.start) == (os.getpid(), 5000, 0)


def test_a_view_is_the_same_memory(memory):
    numbers = memory.allocate(400).view(np.int32)
    view = SharedMemory().view(memory.find(numbers[10:20]), numbers[10:20])
    numbers[:] = range(100)
    assert (view.dtype, view.tolist()) == (np.int32, list(range(10, 20)))
    view[:] = -1
    assert numbers.sum() == sum(range(100)) - sum(range(10, 20)) - 10


def test_large_blocks_are_where_huge_pages_can_hold_them(memory):
    """Here and in a peer; what is no whole huge page is in small ones."""
    block = memory.allocate(2 * HUGE_BYTES + 12345)
    view = SharedMemory().view(memory.find(block), block)
    assert block.ctypes.data % HUGE_BYTES == view.ctypes.data % HUGE_BYTES == 0
    assert not block.any()
    block[-1] = 1
    assert view[-1] == 1


def test_what_cannot_be_mapped_leaves_nothing_behind(monkeypatch):
    returned = []
    monkeypatch.setattr(shared_memory.libc(), "munmap", lambda *call: returned.append(call))
    with pytest.raises(OSError, match="mmap"):
        shared_memory.map_aligned(-1, HUGE_BYTES)
    assert [nbytes for _, nbytes in returned] == [2 * HUGE_BYTES]


def test_a_mapping_ends_with_its_array(memory):
    """Not before, although nothing but the array knows of it; and mappings do not pile up."""
    block = memory.allocate(HUGE_BYTES)
    numbers = block.view(np.int64)[1:]
    del block
    gc.collect()
    numbers[:] = 7
    assert numbers.sum() == 7 * numbers.size
    before = len(Path("/proc/self/maps").read_text(encoding="utf-8").splitlines())
    for _ in range(50):
        memory.allocate(HUGE_BYTES)
    gc.collect()
    assert len(Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()) < before + 10


def test_another_process_reads_and_writes_a_block(memory):
    block = memory.allocate(400).view(np.float32)
    block[:] = range(100)
    job = in_another_process(memory.find(block[20:30]), "print(x.sum()); x[:] = 7")
    assert (job.stdout, job.stderr) == ("245.0\n", "")
    assert block[20:30].tolist() == [7] * 10
    assert (block[19], block[30]) == (19, 30)


@pytest.mark.parametrize("wrong", [{"name": "another"}, {"descriptor": 1 << 20}, {"pid": 1 << 30}])
def test_what_is_not_the_block_is_refused(memory, wrong):
    """A descriptor that was closed, and given to another file; one that is not there; a process that is gone."""
    block = memory.allocate(100)
    with pytest.raises(OSError, match="is another file" if "name" in wrong else "No such file"):
        SharedMemory().view(replace(memory.find(block), **wrong), block)


def test_blocks_that_are_no_longer_in_use_close_their_descriptors(memory):
    before = open_descriptors()
    for _ in range(100):
        memory.allocate(4096)
    assert open_descriptors() == before
    assert not memory.own
    blocks = [memory.allocate(4096) for _ in range(100)]
    assert len(memory.own) == 100
    assert open_descriptors() - before in (100, 200)  # Python's mmap keeps one of its own, too
    del blocks
    assert open_descriptors() == before


def test_a_peer_keeps_what_the_owner_gave_back(memory):
    block = memory.allocate(1000)
    block[:] = 5
    view = SharedMemory().view(memory.find(block), block)
    del block
    gc.collect()
    assert not memory.own
    assert view.sum() == 5000


def test_without_memory_files_blocks_are_plain_memory(memory, monkeypatch):
    monkeypatch.delattr(os, "memfd_create")
    block = memory.allocate(100)
    assert not block.any()
    assert memory.find(block) is None
