"""MSCCL's XML: read, proved, written, and compared with an interpreter of its own."""

import os
import random
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from dear_mpi.collectives import ALGORITHMS, all_gather, all_reduce, all_to_all, programs, verify
from dear_mpi.collectives.program.cost import Network, cost
from dear_mpi.collectives.program.errors import ProgramError
from dear_mpi.collectives.transports.loopback import run_loopback
from dear_mpi.contrib.networks.formats.exports import msccl_lines
from dear_mpi.contrib.networks.formats.msccl import msccl, read_msccl
from tests.contrib.networks.garbled import assert_errors_name_the_file
from tests.contrib.networks.interpreter import run

EVERY = bool(os.environ.get("EVERY"))
PUBLIC = os.environ.get("MSCCL_FILES")  # a folder with files of msccl-scheduler, rccl, TE-CCL and ForestColl


def step(number, kind, source="i0", target="i0", needs=(-1, -1), *, count=1, flag=0):
    (srcbuf, srcoff), (dstbuf, dstoff) = ((each[0], each[1:]) for each in (source, target))
    return (
        f'<step s="{number}" type="{kind}" srcbuf="{srcbuf}" srcoff="{srcoff}" dstbuf="{dstbuf}" dstoff="{dstoff}" '
        f'cnt="{count}" depid="{needs[0]}" deps="{needs[1]}" hasdep="{flag}"/>'
    )


def algo(coll, chunks, gpus, *, scratch=0, inplace=1):
    """A file with a line for each step; gpus: lists of thread blocks (send, recv, steps...)."""
    lines = [f'<algo name="t" nchunksperloop="{chunks}" ngpus="{len(gpus)}" coll="{coll}" inplace="{inplace}">']
    for rank, blocks in enumerate(gpus):
        lines.append(f'<gpu id="{rank}" i_chunks="{chunks}" o_chunks="{chunks}" s_chunks="{scratch}">')
        for number, (send, receive, *steps) in enumerate(blocks):
            lines += [f'<tb id="{number}" send="{send}" recv="{receive}" chan="0">', *steps, "</tb>"]
        lines.append("</gpu>")
    return "\n".join([*lines, "</algo>"])


def with_scratch(rank):
    """Both chunks go through scratch, are added there, and come back."""
    peer, other = 1 - rank, f"i{1 - rank}"
    own = f"i{rank}"
    return [
        (peer, -1, step(0, "s", other), step(1, "s", own, needs=(2, 0))),
        (-1, peer, step(0, "r", target="s0", flag=1), step(1, "r", target=other, needs=(0, 0))),
        (-1, -1, step(0, "re", "s0", own, needs=(1, 0), flag=1)),
    ]


def flagged(text):
    """Every step may be waited for."""
    return text.replace('hasdep="0"', 'hasdep="1"')


def ring(rank):
    """Reduce forwards with rrs, which keeps nothing; distribute with rrcs and rcs: three ranks, out of place."""
    successor, predecessor = (rank + 1) % 3, (rank - 1) % 3
    chunks = [(rank - s) % 3 for s in range(5)]
    kinds = ("s", "rrs", "rrcs", "rcs", "r")
    steps = [step(s, kind, f"i{chunk}", f"o{chunk}") for s, (kind, chunk) in enumerate(zip(kinds, chunks, strict=True))]
    return [(successor, predecessor, *steps)]


def kept(rank):
    """Three ranks forward what they receive before they add it, which takes scratch."""
    successor, predecessor = (rank + 1) % 3, (rank - 1) % 3
    return [
        (successor, -1, step(0, "s", count=3), step(1, "s", "s0", needs=(1, 0), count=3)),
        (-1, predecessor, step(0, "r", target="s0", count=3), step(1, "r", target="s3", count=3)),
        (-1, -1, step(0, "nop", needs=(0, 0), count=0), step(1, "re", "s0", count=3, needs=(1, 0)),
         step(2, "re", "s3", count=3, needs=(1, 1))),
    ]  # fmt: skip


def copied(rank):
    """An all-gather of two ranks out of place: the own chunk is copied."""
    peer = 1 - rank
    sends = step(0, "s", "i0", f"o{rank}"), step(1, "cpy", "i0", f"o{rank}")
    return [(peer, peer, *sends, step(2, "r", "i0", f"o{peer}"))]


def exchanged(rank):
    """An all-to-all in place, of two ranks and two chunks for each."""
    peer = 1 - rank
    return [(peer, peer, step(0, "s", f"i{2 * peer}", count=2), step(1, "r", target=f"i{2 * peer}", count=2))]


FILES = {
    "scratch": flagged(algo("allreduce", 2, [with_scratch(0), with_scratch(1)], scratch=1)),
    "ring": algo("allreduce", 3, [ring(0), ring(1), ring(2)], inplace=0),
    "kept": flagged(algo("allreduce", 3, [kept(0), kept(1), kept(2)], scratch=6)),
    "copied": algo("allgather", 2, [copied(0), copied(1)], inplace=0),
    "before": re.sub('(<gpu id="(.)".*)', r'\1\n<copy i_off="0" o_off="\2"/>', algo("allgather", 2, [
        [(1 - rank, 1 - rank, step(0, "s"), step(1, "r", target=f"o{1 - rank}"))] for rank in (0, 1)], inplace=0)),
    "exchanged": algo("alltoall", 4, [exchanged(0), exchanged(1)]),
    "finer": flagged(algo("allreduce", 1, [
        [(peer, -1, step(0, "s")), (-1, peer, step(0, "r", target="s0")), (-1, -1, step(0, "nop", needs=(0, 0)),
         step(1, "re", "s0", "i0", needs=(1, 0)))] for peer in (1, 0)], scratch=1)),
}  # fmt: skip


@pytest.fixture
def read(tmp_path):
    """Read a text; the programs are proved."""

    def read(text, name="x.xml"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        found = read_msccl(path)
        verify(found)
        return found

    return read


def transfers(written):
    return Counter(
        (program.rank, send.peer, chunk)
        for program in written
        for each in program.steps
        for send in each.sends
        for chunk in send.chunks
    )


@pytest.mark.parametrize("name", FILES)
def test_small_files_are_proved(name, read):
    assert not run(FILES[name], random.Random(0))
    found = read(FILES[name])
    assert cost(found, 1000, 4, Network(1e-6, 1e-9, 1e-10)).time_s > 0
    assert found[0].scratch == (name == "kept")


def test_what_is_only_added_is_added_on_arrival(read):
    assert len(read(FILES["scratch"])[0].steps) == 2


def test_a_ring_that_keeps_no_partial_sums_needs_no_scratch(read):
    found = read(FILES["ring"])
    assert len(found[0].steps) == 4
    assert not found[0].scratch
    assert transfers(found).total() == transfers(programs("ring", "all_reduce", 3)).total()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_our_programs_are_read_back(name, read):
    for collective in ALGORITHMS[name]:
        for size in (1, 2, 3, 4, 5, 8):
            if name in ("recursive_doubling", "rabenseifner") and size & (size - 1):
                continue
            ours = programs(name, collective, size)
            text = "\n".join(msccl_lines(ours))
            assert not run(text, random.Random(size))
            found = read(text)
            assert found[0].collective == collective
            assert transfers(found) == transfers(ours)
            assert len(found[0].steps) <= 2 * len(ours[0].steps)


def test_a_used_file_serves_its_collective_and_size(tmp_path):
    path = tmp_path / "ring.xml"
    path.write_text(FILES["ring"])
    ((collective, algorithm),) = msccl(str(path)).items()
    assert collective == "all_reduce"
    assert algorithm(2, 3).rank == 2
    with pytest.raises(ValueError, match="for 3 ranks, not for 4"):
        algorithm(0, 4)


@pytest.mark.parametrize("name", FILES)
def test_imported_programs_run(name, tmp_path):
    """Plans prove and run them, on threads: all ranks' buffers hold known numbers."""
    path = tmp_path / f"{name}.xml"
    path.write_text(FILES[name])
    collective, size = read_msccl(path)[0].collective, FILES[name].count("<gpu")
    call = {"all_reduce": all_reduce, "all_gather": all_gather, "all_to_all": all_to_all}[collective]

    def run(algorithm):
        x = np.arange(12.0 if collective == "all_gather" else 12.0 * size)
        return run_loopback(size, lambda transport: call(100 * transport.rank + x, transport, algorithm=algorithm))

    assert np.array_equal(run(f"msccl:{path}"), run("naive"))


@pytest.mark.parametrize(("change", "message"), [
    (('type="re"', 'type="add"'), "line 12: .* the type must be one of nop, .*, not 'add'"),
    ((' s="1"', ' s="2"'), "line 5: gpu 0, tb 0, step 1: s is 2, but"),
    (('cnt="1"', 'cnt="x"'), "line 4: cnt must be a whole number >= 1, not 'x'"),
    (('srcoff="0"', 'srcoff="7"'), "line 5: gpu 0, tb 0, step 1: i has 2 chunks, and 7..7 are not all"),
    (('dstbuf="s"', 'dstbuf="q"'), "line 8: .* the buffer must be i, o or s, not 'q'"),
    (('depid="1" deps="0"', 'depid="-1" deps="-1"'), "tb 2, step 0: reads s0 without waiting for step 0|before"),
    (('send="1"', 'send="0"'), "gpu 0, tb 0: send must be another gpu of 0..1, or -1, not 0"),
    (('coll="allreduce"', 'coll="scan"'), "coll must be one of allreduce|coll must be one of"),
    (('<gpu id="1"', '<gpu id="0"'), "line 15: gpu 0 is defined twice"),
    (('type="r" ', 'type="nop" '), "line 12: .* reads s0 before anything is written"),
    (('</algo>', ''), "no element found|unclosed"),
    (('<algo', '<!DOCTYPE a [<!ENTITY b "c">]><algo'), "line 1: declarations in the document type"),
    (('<algo', '<a>&b;</a><algo'), "line 1: "),
    (('<algo name', '<plan name'), "mismatched tag"),
    (('<tb id="0"', '<copy i_off="0" o_off="0"><step s="2"/></copy><tb id="0"'),
     "line 3: <step> is not expected in <copy>"),
    (('<tb id="0"', '<step s="2"/><tb id="0"'), "line 3: <step> is not expected in <gpu>"),
    (('<tb id="0"', '<tb>' * 100), "more than 100 elements inside each other"),
])  # fmt: skip
def test_errors_name_the_place(change, message, read):
    text = FILES["scratch"].replace(*change, 1)
    assert text != FILES["scratch"]
    with pytest.raises(ValueError, match=message):
        read(text)


def mutated(text, rng):
    """Change one attribute, or exchange or lose a step."""
    lines = text.split("\n")
    steps = [number for number, line in enumerate(lines) if line.lstrip().startswith("<step")]
    at = rng.choice(steps)
    names = ["type", "srcbuf", "dstbuf", "srcoff", "dstoff", "cnt", "depid", "deps", "hasdep"]
    name = rng.choice([*names, "wait", "peer"])
    if name in ("wait", "peer"):
        at = rng.choice([number for number, line in enumerate(lines) if 'depid="' in line]) if name == "wait" else at
        lines[at] = re.sub('depid="[^"]*" deps="[^"]*"', 'depid="-1" deps="-1"', lines[at])
        if name == "peer":
            blocks = [number for number, line in enumerate(lines) if line.lstrip().startswith("<tb")]
            at = rng.choice(blocks)
            lines[at] = re.sub('(send|recv)="[^"]*"', lambda found: f'{found[1]}="{rng.randrange(-1, 3)}"', lines[at])
    else:
        kinds = {"type": ["s", "r", "rcs", "rrc", "rrs", "rrcs", "cpy", "re", "nop"], "hasdep": [0, 1]}
        kinds |= dict.fromkeys(("srcbuf", "dstbuf"), "ios")
        value = rng.choice(kinds.get(name, range(-1, 4)))
        lines[at] = re.sub(f' {name}="[^"]*"', f' {name}="{value}"', lines[at])
    return "\n".join(lines)


def test_mutations_are_refused_or_right_in_every_order(read):
    rng, refused = random.Random(1), 0
    texts = list(FILES.values())
    for name, collective in (("ring", "all_reduce"), ("bruck", "all_gather"), ("pairwise", "all_to_all")):
        texts.append("\n".join(msccl_lines(programs(name, collective, 3))))
    for _ in range(5000 if EVERY else 1000):
        text = mutated(rng.choice(texts), rng)
        try:
            read(text)
        except (ValueError, ProgramError):
            refused += 1
        else:
            wrong = [found for _ in range(6) if (found := run(text, rng))]
            assert not wrong, f"{wrong}\n{text}"
    assert refused > 300


def test_garbled_files_give_errors_that_name_the_file(read):
    texts = {f"{name}.xml": text for name, text in FILES.items()}
    assert_errors_name_the_file(lambda name, raw: read(raw, name), texts, random.Random(2), 10_000 if EVERY else 300)


@pytest.mark.skipif(not PUBLIC, reason="MSCCL_FILES names no folder of published files")
def test_published_files_are_proved_and_priced():
    files = [path for path in sorted(Path(PUBLIC).glob("*.xml")) if b"<algo" in path.read_bytes()]
    assert files
    for path in files:
        found = read_msccl(path)
        verify(found)
        assert cost(found, 1 << 20, 4, Network(1e-5, 1e-10)).time_s > 0
