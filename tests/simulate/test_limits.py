"""What cannot be simulated, or would take for ever, or give no number, is refused in one line before the work."""

import json
from dataclasses import asdict, replace

import pytest

from dear_mpi.bench.case import Case, Samples, row_of
from dear_mpi.bench.machine_file import Link
from dear_mpi.collectives.program.cost import Network
from dear_mpi.models.synthetic import Module
from dear_mpi.simulate.model import synthetic_model
from dear_mpi.simulate.network import read_machine, read_network, read_rates
from dear_mpi.training.buckets.layout import cut
from dear_mpi.training.fusion import borders
from tests.cli_checks import assert_one_line, invoke, succeed
from tests.simulate.test_profile import changed

DIGITS = "\N{ARABIC-INDIC DIGIT SIX}\N{ARABIC-INDIC DIGIT FOUR}"
MOST = "must be from 0 to 86400 seconds, not"


@pytest.mark.parametrize(("flags", "said"), [
    (["--network", ""], "or a rate and a latency, as 10gbit,50us; or FILE.json of bench or doctor"),
    (["--network", "fast"], "network 'fast' is unknown. Allowed: paper-10gbe, paper-100gbib"),
    (["--network", "1e-320kbit,1us"], "network '1e-320kbit,1us': the bandwidth must be at least 0.008kbit, a byte"),
    (["--network", "10gbit,1e300s"], f"network '10gbit,1e300s': the latency {MOST} 1e+300"),
    (["--network", "10gbit,1us,o=1e300s"], f"network '10gbit,1us,o=1e300s': o {MOST} 1e+300"),
    (["--network", "10gbit,1us,gamma=1e300s"], f"gamma {MOST} 1e+300"),
    (["--network", "10gbit,50us,p=3"], "network '10gbit,50us,p=3': p is unknown. Allowed: o=, gamma=, hosts="),
    (["--network", "1gbit/1gbit,hosts=3"], "hosts=3 does not divide 64 ranks"),
    (["--network", "1gbit/1gbit,hosts=2,gamma=1ns"], "gamma= belongs to INSIDE"),
    (["--network", "rows.json"], "network 'rows.json' is no readable JSON file: No such file or directory"),
    (["--network", "paper-10gbe", "--ranks", "128"], "network 'paper-10gbe' has 64 ranks, not 128"),
    (["--ranks", "8:4"], "or ranges that go up, as 8:64, not '8:4'"),
    (["--algorithm", "ring,"], "--algorithm takes one or several with commas between them, not 'ring,'"),
    (["--algorithm", "ring,ring"], "--algorithm must be different ones, not ring, ring"),
    (["--algorithm", "native"], "algorithm 'native' sends no messages"),
    (["--fusion", "mine.py:cut"], "mine.py' does not exist: write it like path/to/mine.py:cut"),
    (["--model", "mlp"], "simulate takes synthetic models, as synthetic:resnet50, not 'mlp'"),
    (["--model", "synthetic:resnet5"], "did you mean 'resnet50'?"),
    (["--segment", "0B"], "--segment must be a whole number from 4 (one element) to"),
    (["--segment", "2B"], "--segment must be a whole number from 4 (one element) to"),
    (["--update", "sharded", "--route", "full"], "leave out update 'sharded', and the route 'full' holds"),
    (["--schedules", "deer"], "did you mean 'dear'?"),
    (["--profile", "none.json"], "profile 'none.json' is no readable JSON file"),
    (["--straggler", "64:2"], "straggler must be a rank of 0..63, not 64"),
    (["--forward-time", "-1"], "--forward-time must be from 0 to 86400 seconds, not -1.0"),
    (["--network", "10gbit,1us,o=1us,o=5us"], "network '10gbit,1us,o=1us,o=5us' has o twice"),
    (["--network", f"1gbit/1gbit,hosts={DIGITS}"], f"hosts must be a whole number above zero, not '{DIGITS}'"),
    (
        ["--ranks", DIGITS],
        f"--ranks must be whole numbers of at least 1, or ranges that go up, as 8:64, not '{DIGITS}'",
    ),
    (["--ranks", "8,65537"], "--ranks must be from 1 to 65536, not 65537"),
    (["--ranks", "8,16,08"], "ranks must be different ones, not 8, 16, 8"),
    (["--model", "synthetic:resnet50,synthetic:resnet50"], "--model must be different ones, not synthetic:"),
    (["--fusion", "none,25MB,none"], "--fusion must be different ones, not none, 25MB, none"),
    (["--fusion", f"layers:{DIGITS}"], "needs a whole number above zero after the colon, as in layers:4"),
    (["--fusion", "25MB,cut:1B", "--ranks", "2"], "fusion 'cut:1B' makes 399329 buckets: more than 100000"),
    (["--forward-time", "1e308"], f"--forward-time {MOST} 1e+308"),
    (["--backward-time", "86401"], f"--backward-time {MOST} 86401.0"),
    (["--update-time", "1e300"], f"--update-time {MOST} 1e+300"),
    (["--straggler", "3:1e308"], "the factor of the straggler must be above zero, and at most 1000, not 1e308"),
])  # fmt: skip
def test_bad_flags(flags, said):
    assert_one_line(invoke("simulate", *flags), said)


@pytest.mark.parametrize("flags", [
    ["--network", "0.008kbit,86400s,o=86400s", "--forward-time", "86400"],
    ["--network", "1e290tbit", "--forward-time", "1e-320"],
    ["--straggler", "3:1000", "--update-time", "86400"],
], ids=["slow", "fast", "uneven"])  # fmt: skip
def test_at_the_limits_there_are_figures(flags, tmp_path):
    file = tmp_path / "rows.json"
    done = succeed("simulate", "--ranks", "8", "--json", file, *flags)
    assert "nan" not in done.output
    assert "inf" not in done.output
    assert len(json.loads(file.read_text(), parse_constant=pytest.fail)) == 2


HUGE = 10**30


def test_models_of_too_many_elements(tmp_path):
    file = tmp_path / "profile.json"
    uses = [{"name": "a", "tensors": [{"key": 0, "shape": [HUGE, 10]}], "forward_s": 0.1, "backward_s": 0.1}]
    file.write_text(json.dumps(changed("uses", to=uses)))
    said = f"has {HUGE * 10} parameters: simulate takes at most 10000000000000"
    assert_one_line(invoke("simulate", "--profile", file), f"model 'mine.py:build' {said}")
    table(file, [{"name": "a", "params": [HUGE * 10], "fwd_flops": 1}])
    assert_one_line(invoke("simulate", "--model", f"synthetic:{file}"), said)
    table(file, [{"name": "a", "params": [10**13], "fwd_flops": 1}])
    succeed("simulate", "--model", f"synthetic:{file}", "--fusion", "none")


def table(file, modules):
    file.write_text(json.dumps({"batch": 1, "modules": modules}))


@pytest.mark.parametrize(("modules", "said"), [
    ([{"name": "a\nb", "params": [1], "fwd_flops": 1}], r"names must be printable, not 'a\nb'"),
    ([{"name": "a", "params": [1], "fwd_flops": HUGE**14}], "a module needs name, params and fwd_flops (Overflow"),
    ([{"name": "a", "params": [1], "fwd_flops": 1e308}] * 2, "must be finite and not negative, and so must"),
])  # fmt: skip
def test_bad_tables(modules, said, tmp_path):
    file = tmp_path / "table.json"
    table(file, modules)
    assert_one_line(invoke("simulate", "--model", f"synthetic:{file}"), said)


ROW = row_of(Case("all_reduce", 1024), "ring", Samples([[1e-4] * 3] * 2, 0), backend="", hosts=[2], segment_bytes=4)
ROWS = [asdict(ROW), asdict(replace(ROW, bytes=4096, count=1024, p50_us=400.0, mean_us=400.0))]


LINK = Link(0, 1, "host", 1.0, 8, 100, 1.0, 1 << 20, 30, 1.0, 1.0, 1.0, 1.0)


def report(*links, hosts="aabb"):
    """What the doctor says of links: source, dest, us, GB/s."""
    names = "source", "dest", "latency_us", "GBps"
    links = [asdict(LINK) | dict(zip(names, link, strict=True)) for link in links]
    return {"ranks": [{"host": host} for host in hosts], "links": links}


RING = [(0, 1, 2.0, 10.0), (1, 2, 20.0, 1.0), (2, 3, 1.0, 8.0), (3, 0, 30.0, 2.0)]


def test_the_slowest_links_of_a_doctor_are_a_network(tmp_path):
    file = tmp_path / "doctor.json"
    file.write_text(json.dumps(report(*RING)))
    machine = read_machine(str(file), 5)
    assert machine.origin == "measured"
    between = Network(pytest.approx(30e-6), pytest.approx(1e-9))
    assert machine.network == Network(2e-6, pytest.approx(1 / 8e9), hosts=(0, 0, 1, 1, 2), between=between)
    for links, hosts, alpha in ((RING[:1], "aa", 2e-6), (RING[:1], "ab", 2e-6), (RING, "aaaa", 30e-6)):
        file.write_text(json.dumps(report(*links, hosts=hosts)))
        network = read_machine(str(file), 4).network
        assert (network.alpha, network.hosts) == (pytest.approx(alpha), None)


def test_the_slowest_links_of_a_doctor_are_rates(tmp_path):
    file = tmp_path / "doctor.json"
    file.write_text(json.dumps(report(*RING)))
    assert read_rates(str(file)) == (pytest.approx(8e9), pytest.approx(1e9))
    assert read_rates("100gbit/10gbit") == (12.5e9, 1.25e9)
    for hosts, kind in (("aaaa", "between"), ("abcd", "inside")):
        file.write_text(json.dumps(report(*RING, hosts=hosts)))
        done = invoke("explain", "--algorithm", "ring", "--rates", file)
        assert_one_line(done, f"has no links {kind} hosts: take dear-mpi doctor")


def test_cuts_finer_than_the_grid_are_those_of_the_grid():
    modules = [Module("a", (1000,), 1.0), Module("b", (3000, 7), 1.0)]
    layout = synthetic_model("m", modules, ranks=4, forward_s=1.0, backward_s=1.0).layout
    every = list(range(0, layout.count, layout.grid))
    assert borders("cut:1B", layout) == borders("cut:100B", layout) == every
    assert cut(layout, borders("cut:100B", layout)) == cut(layout, range(0, layout.count, 25))


FILE = "must be a file of dear-mpi bench --json, or of dear-mpi doctor --json: "


@pytest.mark.parametrize(("content", "said"), [
    ({"rows": [3]}, f"{FILE}rows[0] must be an object, not 3"),
    (ROWS, f"{FILE}it must be an object, not a list"),
    ({"rows": [ROWS[0], ROWS[1] | {"p50_us": 0}]}, "rows[1].p50_us must be a number >= 1e-06, not 0"),
    ({"rows": [ROWS[0] | {"dtype": "fp8"}]}, "dtype 'fp8' is unknown. Allowed: fp64"),
    ({"rows": [ROWS[0] | {"ci_low_us": float("inf")}]}, "must be a number <= 86400000000.0, not Infinity"),
    (report(), "it has neither rows nor links"),
    (report((0, 4, 1.0, 1.0)), "it has 4 ranks, and a link from 0 to 4"),
    (report((0, 1, 2.0, 0)), "links[0].GBps must be a number >= 1e-09, not 0"),
    (report((0, 1, -1.0, 1.0)), "links[0].latency_us must be a number >= 0.0, not -1.0"),
])  # fmt: skip
def test_bad_files_of_machines(content, said, tmp_path):
    file = tmp_path / "rows.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    assert_one_line(invoke("simulate", "--network", file), f"network {str(file)!r}", said)


def test_extras_publish_networks(monkeypatch):
    found = {"mine": lambda text, ranks: Network(alpha=float(ranks)), "other": lambda text, ranks: text}
    monkeypatch.setattr("dear_mpi.simulate.network.entry_points_of", lambda group: found)
    monkeypatch.setattr("dear_mpi.simulate.network.load_extra", lambda group, name: found[name])
    machine = read_network("mine:3,10gbit", 4)
    assert (machine.network, machine.origin, machine.text) == (Network(alpha=4.0), "given", "mine:3,10gbit")
    with pytest.raises(ValueError, match="network 'other' must be read as a Network, not 'other'"):
        read_network("other", 4)
    with pytest.raises(ValueError, match=r"did you mean 'mine'\? Allowed: paper-10gbe, paper-100gbib, mine, other"):
        read_network("mime:3", 4)
