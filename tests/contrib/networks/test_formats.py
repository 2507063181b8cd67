"""Formats besides MSCCL's: what is written is complete in itself, and what is read is proved or refused."""

import json
import os
import random
import re
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from dear_mpi.collectives import ALGORITHMS, programs, verify
from dear_mpi.contrib.networks.convert import read
from dear_mpi.contrib.networks.formats.exports import actions, chakra_trace, goal_lines, msccl_lines
from dear_mpi.contrib.networks.formats.msccl import read_msccl
from dear_mpi.contrib.networks.formats.mscclpp import mscclpp_plan
from dear_mpi.contrib.networks.graph import Port, read_graph
from dear_mpi.models.synthetic import load_modules, measured_seconds
from tests.cli_checks import assert_one_line, invoke, succeed
from tests.contrib.networks.garbled import assert_errors_name_the_file
from tests.contrib.networks.interpreter import run
from tests.contrib.networks.test_msccl import FILES

EVERY = bool(os.environ.get("EVERY"))
TECCL = os.environ.get("TECCL_FILES")  # teccl/examples/experiments/output_provided of microsoft/TE-CCL
MIB = 1 << 20

# Nodes 1, 2 and 4 are ranks, in a line; switch 0 is only named.
GATHER = {
    "3-Epochs_Required": 4,
    "7-Flows": [
        "Chunk 0 from 2 traveled over 2->4 in epoch 0 via switches 0",
        "Chunk 0 from 2 traveled over 2->1 in epoch 0",
        "Chunk 0 from 1 traveled over 1->2 in epoch 0",
        "Chunk 0 from 4 traveled over 4->2 in epoch 0",
        "Chunk 0 from 1 traveled over 2->4 in epoch 1",
        "Chunk 0 from 4 traveled over 2->1 in epoch 3",
    ],
}
# Chunk c is for rank c; half of the data of rank 0 for rank 1 goes through rank 2.
TO_ALL = {
    "6-Flows": ["Chunk 1 from 0 traveled over 0->1 with volume 0.5 in epoch 0"],
    "7-chunk paths": {
        "Demand at 1 for chunk 1 from 0 met by epoch 2": [
            [[0, "0->1 with volume 0.5 in epoch 0"]],
            [[0, "0->2 with volume 0.5 in epoch 0"], [2, "2->1 with volume 0.5 in epoch 2"]],
        ],
        "Demand at 2 for chunk 2 from 0 met by epoch 1": [[[1, "0->2 with volume 1.0 in epoch 1 via switches 3"]]],
        "Demand at 0 for chunk 0 from 1 met by epoch 0": [[[0, "1->0 with volume 1.0 in epoch 0"]]],
        "Demand at 2 for chunk 2 from 1 met by epoch 0": [[[0, "1->2 with volume 0.9999999 in epoch 0"]]],
        "Demand at 0 for chunk 0 from 2 met by epoch 0": [[[0, "2->0 with volume 1.0 in epoch 0"]]],
        "Demand at 1 for chunk 1 from 2 met by epoch 0": [[[0, "2->1 with volume 1.0 in epoch 0"]]],
    },
}
LSTOPO = """<?xml version="1.0"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0"><object type="Machine" gp_index="1">
<object type="Bridge" gp_index="2" bridge_type="0-1" depth="0">
<object type="Bridge" gp_index="3" depth="1" pci_link_speed="16.0">
<object type="PCIDev" gp_index="4" pci_type="0302 [10de:1db8] [10de:12ab] a1" pci_link_speed="8.0">
<object type="OSDev" gp_index="40" name="cuda0" osdev_type="5"/></object>
<object type="PCIDev" gp_index="5" pci_type="0302 [10de:1db8] [10de:12ab] a1" pci_link_speed="8.0">
<object type="OSDev" gp_index="50" name="cuda1" osdev_type="5"/></object>
</object>
<object type="PCIDev" gp_index="6" pci_type="0302 [10de:1db8] [10de:12ab] a1" pci_link_speed="4.0"/>
<object type="PCIDev" gp_index="7" pci_type="0300 [1a03:2000] [1a03:2000] 41" pci_link_speed="0.0"/>
</object></object>
<distances2 type="OSDev" nbobjs="2" kind="25" name="NVLinkBandwidth" indexing="gp">
<indexes length="5">40 50 </indexes><u64values length="9">0 50000 50000 0 </u64values></distances2>
</topology>
"""
INFRAGRAPH = {
    "name": "two servers and a switch",
    "devices": [
        {
            "name": "server",
            "components": [
                {"name": "xpu", "count": 2, "choice": "xpu"},
                {"name": "card", "count": 1, "choice": "device"},
                {"name": "sw", "count": 1, "choice": "switch"},
            ],
            "links": [{"name": "pcie", "physical": {"bandwidth": {"gigabytes_per_second": 32}}}],
            "edges": [
                {"ep1": {"component": "xpu"}, "ep2": {"component": "sw[0]"}, "scheme": "many2many", "link": "pcie"},
                {"ep1": {"component": "sw"}, "ep2": {"device": "card", "component": "port[0]"}, "scheme": "one2one",
                 "link": "pcie"},
            ],
        },
        {"name": "card", "components": [{"name": "port", "count": 1, "choice": "nic"}], "links": [], "edges": []},
        {"name": "switch", "components": [
            {"name": "asic", "count": 1, "choice": "switch"}, {"name": "port", "count": 4, "choice": "port"}],
         "links": [{"name": "ic", "physical": {"bandwidth": {"gigabits_per_second": 800}}}],
         "edges": [{"ep1": {"component": "asic"}, "ep2": {"component": "port"}, "scheme": "many2many", "link": "ic"}]},
    ],
    "links": [{"name": "wire", "physical": {"bandwidth": {"gigabits_per_second": 100}, "latency": {"us": 2}}}],
    "instances": [{"name": "host", "device": "server", "count": 2}, {"name": "tor", "device": "switch", "count": 1}],
    "edges": [{"ep1": {"instance": "host[0:2]", "component": "card[0].port[0]"},
               "ep2": {"instance": "tor", "component": "port[0:2]"}, "scheme": "one2one", "link": "wire"}],
}  # fmt: skip
ASTRA = """DATA
3
conv -1 120 NONE 0  0 NONE 0  100 ALLREDUCE 37632 5
act  -1 10  NONE 0 10 NONE 0    0 NONE 0 0
fc   -1 40  NONE 0 35 NONE 0   30 REDUCESCATTER 4096000 5
"""
TEXTS = {
    "gather.json": json.dumps(GATHER, indent=1), "to_all.json": json.dumps(TO_ALL, indent=1), "machine.xml": LSTOPO,
    "infra.json": json.dumps(INFRAGRAPH, indent=1), "work.txt": ASTRA,
}  # fmt: skip


@pytest.fixture
def given(tmp_path):
    """Write one of the texts, or a change of it, and read it."""

    def given(name, change=lambda text: text):
        path = tmp_path / name
        text = change(TEXTS[name])
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read(str(path))

    return given


def test_actions_have_all_they_need():
    """Whatever order the needs allow, a chunk is never read or replaced too early."""
    for name, collective in (("ring", "all_reduce"), ("recursive_doubling", "all_reduce"), ("pairwise", "all_to_all")):
        for program in programs(name, collective, 4):
            found = actions(program)
            for number, action in enumerate(found):
                before = closure(found, number)
                for other, earlier in enumerate(found[:number]):
                    read_or_written = {*earlier.read, *earlier.written}
                    clash = {*action.written} & read_or_written or {*action.read} & {*earlier.written}
                    assert not clash or other in before


def closure(found, number):
    reached, waiting = set(), list(found[number].needs)
    while waiting:
        need = waiting.pop()
        if need not in reached:
            reached.add(need)
            waiting += found[need].needs
    return reached


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name != "shared"])
def test_goal_is_complete(name):
    for collective in ALGORITHMS[name]:
        written = programs(name, collective, 4)
        lines = "\n".join(goal_lines(written, MIB)).splitlines()
        assert lines[0] == "num_ranks 4"
        rank, labels, messages = -1, set(), defaultdict(list)
        for line in lines[1:]:
            if found := re.fullmatch(r"rank (\d) {", line):
                rank, labels = int(found[1]), set()
            elif found := re.fullmatch(r"([lm]\d+): (send|recv) (\d+)b (?:to|from) (\d) tag (\d+)", line):
                assert found[1] not in labels
                labels.add(found[1])
                pair = (rank, int(found[4]))[:: 1 if found[2] == "send" else -1]
                messages[(*pair, int(found[5]))].append((found[2], int(found[3])))
            elif found := re.fullmatch(r"(l\d+): calc \d+", line):
                labels.add(found[1])
            elif found := re.fullmatch(r"([lm]\d+) requires (l\d+|m\d+)", line):
                assert {found[1], found[2]} <= labels
            else:
                assert line in ("", "}")
        count = sum(len(step.sends) for program in written for step in program.steps)
        assert len(messages) == count
        for (one, *_), (other, *_) in ((ends[:1][0], ends[1:][0]) for ends in messages.values()):
            assert {one, other} == {"send", "recv"}
        assert all(len({nbytes for _, nbytes in ends}) == 1 for ends in messages.values())


def fields(message):
    """The fields of a protobuf message: number, and a value or bytes."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
        else:
            assert key & 7 == 2
            length = varint()
            at += length
            yield key >> 3, message[at - length : at]


def messages_of(raw):
    """Length-delimited messages."""
    while raw:
        used = next(number for number, byte in enumerate(raw, 1) if byte < 0x80)
        length = sum((byte & 0x7F) << 7 * number for number, byte in enumerate(raw[:used]))
        yield raw[used : used + length]
        raw = raw[used + length :]


def test_chakra_traces_are_complete():
    kinds = {4: [], 5: [], 6: []}
    for program in programs("ring", "all_reduce", 3):
        head, *nodes = messages_of(chakra_trace(program, 3000))
        assert dict(fields(head)) == {1: b"0.0.4"}
        for number, node in enumerate(map(list, map(fields, nodes))):
            found = dict(node)
            assert found[1] == number
            assert all(need < number for need in found.get(5, b""))
            attributes = {}
            for field, attribute in node:
                if field == 10:
                    (_, name), (_, value) = fields(attribute)
                    attributes[name.decode()] = value
            kinds[found[3]].append(attributes)
    assert [len(kinds[kind]) for kind in (4, 5, 6)] == [6, 12, 12]  # two sums, four messages each
    for send in kinds[5]:
        assert send in kinds[6]
        assert send["comm_size"] == 1000


def run_plan(plan, rng):
    """Run an MSCCL++ plan on contributions, ranks in random order. Return all places, or None if ranks hang."""
    size = len(plan["gpus"])
    chunks = max(max(gpu["input_chunks"], gpu["output_chunks"]) for gpu in plan["gpus"])
    memory = {(rank, chunk): {(rank, chunk): 1} for rank in range(size) for chunk in range(chunks)}
    signals, waited, at = defaultdict(int), defaultdict(int), [0] * size

    def other_end(rank, channel):
        """The rank at the other end, and the number of the channel there."""
        peers = plan["gpus"][rank]["channels"][0]["connected_to"]
        theirs = plan["gpus"][peers[channel]]["channels"][0]["connected_to"]
        mine = [number for number, peer in enumerate(peers) if peer == peers[channel]]
        return peers[channel], [number for number, peer in enumerate(theirs) if peer == rank][mine.index(channel)]

    def places(rank, buffer):
        kind = buffer.get("type")
        if kind is None:
            remote = plan["gpus"][rank]["remote_buffers"][buffer["buffer_id"]]
            rank, kind = remote["rank"], remote["type"]
        numbers = range(buffer["index"], buffer["index"] + buffer["size"])
        return [(rank, "s", number) if kind == "s" else (rank, number) for number in numbers]

    def take(rank, op):
        match op["name"]:
            case "signal":
                signals[other_end(rank, op["channel_ids"][0])] += 1
            case "wait":
                key = rank, op["channel_ids"][0]
                if waited[key] == signals[key]:
                    return False
                waited[key] += 1
            case "put" | "copy":
                for one, other in zip(*(places(rank, op[end][0]) for end in ("src_buff", "dst_buff")), strict=True):
                    memory[other] = dict(memory[one])
            case "re":
                assert op["dst_buff"] == op["src_buff"][:1]
                for one, other in zip(*(places(rank, buffer) for buffer in op["src_buff"]), strict=True):
                    memory[one] = dict(Counter(memory[one]) + Counter(memory[other]))
        return True

    ops, stuck = [gpu["threadblocks"][0]["ops"] for gpu in plan["gpus"]], set()
    while left := {rank for rank in range(size) if at[rank] < len(ops[rank])} - stuck:
        rank = rng.choice(sorted(left))
        if take(rank, ops[rank][at[rank]]):
            at[rank] += 1
            stuck.clear()
        else:
            stuck.add(rank)
    return None if stuck else memory


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name != "shared"])
def test_plans_of_mscclpp_are_right_in_every_order(name):
    rng = random.Random(4)
    for collective in ALGORITHMS[name].keys() - {"broadcast", "reduce"}:
        for size in (1, 2, 4):
            written = programs(name, collective, size)
            memory = run_plan(json.loads(mscclpp_plan(written)), rng)
            assert memory is not None
            for program in written:
                for chunk in range(program.chunks):
                    owner = program.owner(chunk)
                    due = {(owner, chunk): 1} if collective == "all_gather" else {(r, chunk): 1 for r in range(size)}
                    if collective == "all_to_all":
                        due = {(owner, program.rank * program.parts + chunk % program.parts): 1}
                    if collective != "reduce_scatter" or owner == program.rank:
                        assert memory[program.rank, chunk] == due


def test_plans_of_mscclpp_have_scratch(tmp_path):
    (tmp_path / "kept.xml").write_text(FILES["kept"])
    memory = run_plan(json.loads(mscclpp_plan(read_msccl(tmp_path / "kept.xml"))), random.Random(5))
    assert all(memory[rank, chunk] == {(r, chunk): 1 for r in range(3)} for rank in range(3) for chunk in range(3))


def test_solved_flows_become_programs(given, tmp_path):
    gather, to_all = given("gather.json"), given("to_all.json")
    for found in (gather, to_all):
        verify(found)
        text = "\n".join(msccl_lines(found))
        assert not run(text, random.Random(6))
        (tmp_path / "x.xml").write_text(text)
        verify(read_msccl(tmp_path / "x.xml"))
    assert (gather[0].collective, len(gather), len(gather[0].steps)) == ("all_gather", 3, 2)
    assert (to_all[0].collective, to_all[0].parts) == ("all_to_all", 2)


@pytest.mark.parametrize(("name", "change", "message"), [
    ("gather.json", ("from 1 traveled over 2->4 in epoch 1", "from 4 traveled over 2->4 in epoch 0"),
     "node 2 does not hold chunk 0 at that time"),
    ("gather.json", ("over 1->2", "over 1->9"), "traveled over 1->9 in epoch 0': both ends must be"),
    ("gather.json", ("epoch 3", "epoch x"), "gather.json.*: a flow must be like .* not '.*epoch x'"),
    ("to_all.json", ("1.0 in epoch 1", "0.5 in epoch 1"), "the paths of chunk 2 from 0 have the volume 0.5, not 1"),
    ("to_all.json", ("0->2 with volume 0.5", "0->2 with volume x"), "'Demand at 1 for chunk 1 from 0 .*' must be like"),
    ("machine.xml", ("0302", "0200"), "machine.xml: no two of its 0 GPUs are connected"),
    ("infra.json", ('"link": "wire"', '"link": "wire2"'),
     r"infra.json' must be .* edges\[0\] of 'two servers and a switch': link 'wire2' is unknown: did you mean 'wire'"),
    ("infra.json", ('"count": 4', '"count": 40000'),
     r"devices\[2\].components\[1\].count must be a whole number <= 4096, not 40000"),
    ("infra.json", ('"component": "xpu"', '"components": "xpu"'),
     r"edges\[0\] of 'server': '' is no endpoint, such as nic\[0:2\]"),
    ("infra.json", ('"xpu"\n', '"xpu[2]"\n'), r"edges\[0\] of 'server': an endpoint's \[2\] must be below 2"),
    ("infra.json", ('"host[0:2]"', '"host[0:2"'), r"edges\[0\] of .*: 'host\[0:2' is no endpoint"),
    ("infra.json", ('"component": "card[0].port[0]"', '"component": "card[0]"'),
     r"edges\[0\] of 'two servers and a switch': 'card\[0\]' is a device: name its component"),
    ("infra.json", ('"link": "ic"', '"wire": "ic"'), r"devices\[2\].edges\[0\] must have the field 'link'"),
    ("infra.json", ('"many2many"', '"ring"'), r"devices\[0\].edges\[0\].scheme: .* 'ring'"),
    ("infra.json", ('"choice": "nic"', '"choice": "device"'), "device 'port' is unknown"),
    ("infra.json", ('"choice": "xpu"', '"choice": "cpu"'), "infra.json.*: no two of its 0 GPUs are connected"),
    ("infra.json", ('"gigabits_per_second": 100', '"gigabits_per_second": "x"'), r"edges\[0\] of .* to float: 'x'"),
    ("machine.xml", ("16.0", "16.x"), "machine.xml, line 5: pci_link_speed: .* '16.x'"),
    ("work.txt", ("120", "12x"), r'work.txt, line 3: \[2\] must be a whole number, not "12x"'),
    ("work.txt", ("120 NONE", "NONE"), r"work.txt, line 3: it must be a list of length 12"),
    ("work.txt", ("120 NONE", "120 ALLTOALL"), "work.txt, line 3: only gradients of weights"),
    ("work.txt", ("3\n", "4\n"), "work.txt, line 2: "),
])  # fmt: skip
def test_errors_name_the_place(name, change, message, given):
    with pytest.raises(ValueError, match=message):
        given(name, lambda text: text.replace(*change))


@pytest.mark.parametrize("content", ["[]", "{}", "null", '{"ranks": 2}'])
def test_other_json_is_refused_in_words(content, tmp_path):
    file = tmp_path / "other.json"
    file.write_text(content)
    with pytest.raises(ValueError, match="must have instances and edges"):
        read(str(file))


def test_an_algorithm_with_a_text_is_converted(tmp_path):
    (tmp_path / "ring.xml").write_text("\n".join(msccl_lines(programs("ring", "all_reduce", 4))))
    for name in ("synth:fattree:2x2,1", f"msccl:{tmp_path / 'ring.xml'}"):
        assert "of 4 ranks" in succeed("convert", name, tmp_path / "out.xml").output


def test_a_machine_becomes_a_graph(given):
    found = given("machine.xml")
    assert found.size == 3
    assert (found.links[0, 1], found.links[1, 0]) == (50e9, 50e9)
    assert found.links[0, 2] == found.links[2, 1] == 4e9
    assert Port((2,), 4e9, 4e9) in found.ports
    assert Port((0, 1), 16e9, 16e9) in found.ports


def test_an_infrastructure_becomes_a_graph(given, tmp_path):
    found = given("infra.json")
    assert (found.size, found.alpha) == (4, 2e-6)
    assert found.links[0, 1] == 32e9
    assert found.links[0, 2] == 12.5e9
    assert Port((2, 3), 12.5e9, 12.5e9) in found.ports
    assert Port((3,), 32e9, 32e9) in found.ports
    yaml = pytest.importorskip("yaml")
    (tmp_path / "infra.yaml").write_text(yaml.safe_dump(INFRAGRAPH))
    assert read(str(tmp_path / "infra.yaml")) == found


def test_many_edges_of_an_instance_are_read(given):
    """Generators write an edge for each host; an endpoint's parts are not counted again."""
    infra = json.loads(TEXTS["infra.json"])
    infra["instances"][0]["count"], infra["devices"][2]["components"][1]["count"] = 400, 400
    infra["edges"] = [
        {"ep1": {"instance": f"host[{host}]", "component": "card.port"}, "link": "wire", "scheme": "one2one",
         "ep2": {"instance": "tor", "component": f"port[{host}]"}} for host in range(400)
    ]  # fmt: skip
    assert given("infra.json", lambda text: json.dumps(infra)).size == 800


def test_paths_share_what_all_of_them_pass(given):
    """0 -100- s -10- a -10- b and c -10- d -100- 1: two paths, but all of them pass the link of s and a."""
    rates = {"fast": 100, "slow": 10}
    names = [("g[0]", "s", "fast"), ("s", "a", "slow"), ("a", "b", "slow"), ("a", "c", "slow"), ("b", "d", "slow"),
             ("c", "d", "slow"), ("d", "g[1]", "fast")]  # fmt: skip
    device = {
        "name": "box",
        "components": [{"name": "g", "count": 2, "choice": "xpu"}, *({"name": name} for name in "sabcd")],
        "links": [{"name": each, "physical": {"bandwidth": {"gigabytes_per_second": rates[each]}}} for each in rates],
        "edges": [{"ep1": {"component": one}, "ep2": {"component": other}, "link": link} for one, other, link in names],
    }
    infra = {"devices": [device], "instances": [{"name": "box", "device": "box"}]}
    assert given("infra.json", lambda text: json.dumps(infra)).links == {(0, 1): 10e9, (1, 0): 10e9}


def test_a_workload_becomes_a_table(given, tmp_path):
    (tmp_path / "table.json").write_text(json.dumps(given("work.txt")))
    modules = load_modules(str(tmp_path / "table.json"))
    assert [module.counts for module in modules] == [(9408,), (), (1024000,)]
    assert measured_seconds(modules) == pytest.approx((170e-6, 175e-6))


def test_garbled_files_give_errors_that_name_the_file(given):
    def read(name, raw):
        if isinstance(found := given(name, lambda text: raw), list):
            verify(found)

    assert_errors_name_the_file(read, TEXTS, random.Random(3), 10_000 if EVERY else 300)


def test_the_command_converts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("infra.json", "work.txt"):
        Path(name).write_text(TEXTS[name])
    for arguments, said in (
        (("ring", "ring.xml", "--ranks", 3), "all_reduce of 3 ranks in 4 steps, proved. Written to ring.xml"),
        (("ring.xml", "ring.json"), "proved. Written to ring.json"),
        (("ring.xml", "ring.goal", "--size", "4KiB"), "a sum is assumed to take 0.1 ns per byte, in whole ns. Written"),
        (("ring.xml", "ring.et"), "in whole us. Written to ring.0.et to ring.2.et"),
        (("infra.json", "graph.json"), "A network of 4 ranks with 12 links. Written to graph.json"),
        (("work.txt", "table.json"), "A workload of 3 layers. Written to table.json"),
        (("torus:4x4", "torus.json"), "A network of 16 ranks with 64 links. Written to torus.json"),
        (("torus.json", "again.json"), "A network of 16 ranks with 64 links. Written to again.json"),
    ):
        assert said in succeed("convert", *arguments).output
    assert len(list(Path().glob("ring.*.et"))) == 3
    assert read_graph("graph.json").size == 4
    assert read_graph(Path("again.json")) == read_graph("torus:4x4")


def test_endings_may_be_upper_case(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for ending in ("xml", "json", "goal"):
        succeed("convert", "ring", f"lower.{ending}")
        succeed("convert", "ring", f"upper.{ending.upper()}")
        assert Path(f"upper.{ending.upper()}").read_bytes() == Path(f"lower.{ending}").read_bytes()
    succeed("convert", "ring", "upper.ET")
    assert len(list(Path().glob("upper.?.ET"))) == 4
    assert len(read("upper.XML")) == 4


def test_the_command_refuses_in_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("ring").mkdir()
    succeed("convert", "ring", "ring.xml", "--ranks", 3)
    Path("ring.2.et").mkdir()
    Path("wrong.xml").write_text(FILES["ring"].replace('"rrcs"', '"rcs"', 1))
    for arguments, said in (
        (("ring.xml", "ring.txt"), "must end in .xml or .json or .goal or .et"),
        (("wrong.xml", "new.xml"), "wrong.xml: rank 0, step 1: must receive chunk 1"),
        (("./none.xml", "new.xml"), "error: none.xml cannot be read: No such file or directory"),
        (("none.txt", "new.json"), "error: none.txt cannot be read: No such file or directory"),
        (("none.json", "new.json"), "file 'none.json' is no readable JSON file: No such file or directory"),
        (("ring.goal", "new.xml"), "IN 'ring.goal' must be an algorithm's name, or a file that ends in .xml, .json"),
        (("ring.xml", "new.xml", "--ranks", 4), "--ranks 4 has a use only if IN is an algorithm's name"),
        (("torus:4x4", "new.json", "--ranks", 4), "--ranks 4 has a use only if IN is an algorithm's name"),
        (("ring.xml", "new.xml", "--size", "4KiB"), "--size 4KiB has a use only if OUT ends in .goal or .et"),
        (("ring.xml", "ring.et"), "OUT 'ring.2.et' cannot be written: it is a folder"),
        (("torus:4x4", "new.xml"), "OUT 'new.xml' must end in .json"),
        (("synth:torus:2x4", "new.xml"), "it is for 8 ranks, not for 4"),
        (("synth:torus:2x4", "new.xml"), "(--ranks is 4 by default)"),
    ):
        assert_one_line(invoke("convert", *arguments), said)
    assert not Path("ring.0.et").exists()


@pytest.mark.skipif(not TECCL, reason="TECCL_FILES names no folder of solved schedules")
def test_published_schedules_are_proved():
    """Some all-to-alls cut chunks into parts that no common size fits: these are refused."""
    files = sorted(Path(TECCL).rglob("*.json"))
    files, proved = files if EVERY else files[:: len(files) // 8 or 1], 0
    for path in files:
        try:
            found = read(str(path))
        except ValueError as error:
            refusal = str(error)
        else:
            refusal = "multiples of a part"
            verify(found)
            proved += 1
        assert "multiples of a part" in refusal
    assert proved > 0.9 * len(files)
