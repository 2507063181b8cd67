"""Scripts that know nothing of us are watched: what is found of their layers, tensors and iterations."""

import sys
import textwrap
from collections import Counter
from itertools import pairwise

import pytest

torch = pytest.importorskip("torch", reason="advise runs scripts of torch (our extra 'torch')")

from dear_mpi.contrib.advise import torch_watcher  # noqa: E402
from dear_mpi.contrib.advise.assembled import assemble  # noqa: E402
from dear_mpi.contrib.advise.observed import JOB, READY, Wrapped  # noqa: E402
from dear_mpi.contrib.advise.torch_script import watch_script  # noqa: E402
from tests.rooms import ROOT  # noqa: E402

SCRIPTS = ROOT / "docs" / "benchmarks" / "advise"
ITERATIONS = 4
HEAD = """
import sys
import torch
from torch import nn
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 2))
"""
LOOP = """
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for number in range(40):
    optimizer.zero_grad()
    net(torch.randn(3, 4)).square().sum().backward()
    optimizer.step()
"""


@pytest.fixture(autouse=True)
def _process(monkeypatch):
    """What a script changes goes back: it runs in this process, which is faster than one of its own."""
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # torch.distributed has one
    for name, value in JOB.items():
        monkeypatch.setenv(name, value)


def watch_file(script, *arguments):
    midway = []

    def enough(outcome):
        midway.append(outcome)
        sys.exit()  # stands in for the end of the script's process

    sys.argv, sys.path[0] = [str(script), *arguments], str(script.parent)
    at_end = watch_script(script, ITERATIONS, enough)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    (outcome,) = midway or [at_end]
    if outcome.failed:
        print(outcome.trace, file=sys.stderr)
        raise ValueError(outcome.failed)
    return outcome.watched


def watch(tmp_path, code, *arguments):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(code))
    return watch_file(script, *arguments)


@pytest.mark.parametrize(
    ("name", "parameters", "parts"),
    [("resnet", 11_173_962, 1), ("transformer", None, 1), ("accumulating", 6 * 1024 * 1025, 3)],
)
def test_scripts_that_know_nothing_of_us(name, parameters, parts, capfd):
    found = watch_file(SCRIPTS / f"{name}.py", "--steps", "30")
    seen = assemble(found)
    profile = seen.profile
    tensors = {tensor.key: tensor.shape for use in profile.uses for tensor in use.tensors}
    assert parameters in (None, sum(torch.Size(shape).numel() for shape in tensors.values()))
    assert len(tensors) == len(found.tensors)  # all had gradients
    assert profile.accumulate == parts
    assert len(found.watched) == len(found.plain_s) == ITERATIONS
    assert (found.wrapped is None) == (name != "accumulating")
    lengths = sorted(marks[-1].at_s - marks[0].at_s for marks in found.watched)
    hooks_s = 1e-5 * max(map(len, found.watched))
    assert lengths[0] - hooks_s <= seen.sum_s <= lengths[-1]  # nothing of an iteration is lost
    assert "done" not in capfd.readouterr().out  # it was stopped before its end


def test_tied_and_unowned_tensors_and_attention():
    found = watch_file(SCRIPTS / "transformer.py", "--layers", "1")
    named = {each.name: [found.names[use] for use in each.uses] for each in found.tensors}
    assert named["tokens.weight"] == ["tokens", "head"]
    assert named["places"] == ["Gpt"]
    # The projection is a module that never runs by itself.
    assert named["blocks.0.attention.out_proj.weight"] == ["blocks.0.attention"]


def test_ddp_is_seen_through(tmp_path):
    ddp = HEAD + "torch.distributed.init_process_group('gloo')\n"
    usual = "net = nn.parallel.DistributedDataParallel(net)\n"
    found = watch(tmp_path, ddp + usual + LOOP)
    assert (found.model, found.names) == ("Sequential", ["0", "1", "2"])
    assert found.wrapped == Wrapped(None, synced=True)
    asked = "net = nn.parallel.DistributedDataParallel(net, bucket_cap_mb=2, find_unused_parameters=True)\n"
    assert watch(tmp_path, ddp + asked + LOOP).wrapped == Wrapped(2 << 20, True, ("find_unused_parameters",))
    found = watch_file(SCRIPTS / "accumulating.py")
    assert found.wrapped == Wrapped(4 << 20, synced=False)


def test_what_has_no_gradient_or_no_module_is_told(tmp_path):
    code = HEAD.replace("net = ", "free, idle = nn.Parameter(torch.ones(1)), nn.Linear(1, 1)\nnet = ")
    code += LOOP.replace("net.parameters()", "[*net.parameters(), free, *idle.parameters()]")
    found = watch(tmp_path, code.replace(".square()", ".mul(free)"))
    assert len(found.notes) == 2
    assert "no gradient came" in found.notes[0]
    assert "no module that ran" in found.notes[1]
    (lost,) = [number for number, each in enumerate(found.tensors) if each.shape == (1,) and not each.uses][:1]
    uses = assemble(found).profile.uses
    assert [use.name for use in uses if lost in [tensor.key for tensor in use.tensors]] == ["2"]


def test_a_compiled_module_is_one_layer(tmp_path):
    """The class stands in for what torch.compile returns: inside it no hook runs."""
    compiled = """
class OptimizedModule(nn.Module):
    def __init__(self):
        super().__init__()
        self._orig_mod = net
    def forward(self, x):
        return self._orig_mod.forward(x)
"""
    run = "torch.nn.Sequential.forward = lambda self, x: self[2].forward(self[1].forward(self[0].forward(x)))\n"
    code = HEAD + compiled + run + LOOP.replace("net(torch", "compiled(torch")
    code = code.replace("optimizer = ", "compiled = OptimizedModule()\noptimizer = ")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.Sequential, "forward", torch.nn.Sequential.forward)  # goes back
        found = watch(tmp_path, code)
    (use,) = assemble(found).profile.uses
    assert (use.name, len(use.tensors)) == ("OptimizedModule", 4)
    assert "torch.compile" in " ".join(found.notes)


ONCE = (
    HEAD
    + """
class Scaled(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = weight
    def forward(self, x):
        return x * self.weight

weight = nn.Parameter(torch.ones(2))
def make():
    return nn.ReLU(), nn.MSELoss(), nn.MSELoss(), Scaled(weight)
made = make()
optimizer = torch.optim.SGD([*net.parameters(), weight], lr=0.1)
for number in range(40):
    pass  # EPOCH
    for part in range(2):
        pass  # PART
        relu, loss, other, scaled = made
        x = scaled(net[2](relu(net[0](torch.randn(3, 4)))))
        (loss(x, torch.ones(3, 2)) + other(x, torch.zeros(3, 2))).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
)


def folded(watched):
    """What iterations are made of, apart from names and seconds."""
    profile = assemble(watched).profile
    uses = [[tensor.shape for tensor in use.tensors] for use in profile.uses]
    return uses, profile.accumulate, profile.iterations


@pytest.mark.parametrize(("place", "anew"), [
    ("# PART", "made = make()"),
    ("# EPOCH", "made = make()"),
    ("# EPOCH", "made = make() if number % 3 == 0 else made"),
    ("# PART", "made = (*made[:2], nn.MSELoss(), made[3])"),
    ("# EPOCH", "optimizer = torch.optim.SGD([*net.parameters(), weight], lr=0.1)"),
])  # fmt: skip
def test_modules_made_anew_count_as_one(tmp_path, place, anew):
    """Many scripts make their loss in each step: nine of ten iterations were dropped as running other layers."""
    once = watch(tmp_path, ONCE)
    found = watch(tmp_path, ONCE.replace(f"pass  {place}", anew))
    assert (folded(found), found.notes) == (folded(once), once.notes)
    assert folded(found)[2] == ITERATIONS
    names = [[use.name for use in assemble(each).profile.uses] for each in (found, once)]
    assert names[0] == names[1]


def test_validation_and_checkpoints_are_no_passes(tmp_path):
    step, validation = "    optimizer.step()", "    with torch.no_grad(): net(torch.ones(1, 4))\n"
    code = HEAD + LOOP.replace(step, validation + step)
    checkpoint = "torch.utils.checkpoint.checkpoint(net, torch.randn(3, 4, requires_grad=True), use_reentrant=False)"
    code = code.replace("net(torch.randn(3, 4))", checkpoint)
    code = code.replace("import sys", "import sys, torch.utils.checkpoint")
    profile = assemble(watch(tmp_path, code)).profile
    assert ([use.name for use in profile.uses], profile.accumulate) == (["0", "1", "2"], 1)


def test_a_script_is_left_as_it_would_run_alone(tmp_path, capfd):
    (tmp_path / "beside.py").write_text("VALUE = 7\n")
    told = "beside.VALUE, sys.argv[1:], [float(each.detach().sum()) for each in net.parameters()]"
    code = HEAD + LOOP.replace("40", "10") + f"import beside\nprint({told})\n"
    watch(tmp_path, code, "--epochs", "1")
    watched = capfd.readouterr().out
    assert watched.startswith("7 ['--epochs', '1'] [")
    sys.modules.pop("beside")
    namespace = {"__name__": "__main__"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["script.py", "--epochs", "1"])
        patch.syspath_prepend(str(tmp_path))
        exec(code, namespace)
    assert capfd.readouterr().out == watched  # the same numbers
    assert not namespace["net"]._forward_hooks


@pytest.mark.parametrize(("code", "said"), [
    ("print(1)", r"called step\(\) of no optimiser of PyTorch"),
    (HEAD + LOOP.replace("40", "5"), "ended after 5 iterations: advise needs 9, of which 3 do not count"),
    (HEAD + "raise ZeroDivisionError('on purpose')", "ended with ZeroDivisionError, after 0 iterations"),
    ("raise SystemExit(3)", "ended with exit code 3"),
    (HEAD + LOOP.replace("net(torch.randn(3, 4)).square().sum().backward()", ""), "called no module of PyTorch"),
])  # fmt: skip
def test_scripts_that_end_too_early(tmp_path, capfd, code, said):
    with pytest.raises(ValueError, match=said):
        watch(tmp_path, code)
    errors = capfd.readouterr().err
    assert ("ZeroDivisionError: on purpose" in errors) == ("on purpose" in code)
    assert "torch_script.py" not in errors  # the traceback is the script's own


@pytest.mark.parametrize(("steps", "said"), [(9, ["watched 3 of 4 iterations: the script ended after 9"]), (11, [])])
def test_a_script_that_ends_before_all_were_watched_is_told(tmp_path, steps, said):
    assert watch(tmp_path, HEAD + LOOP.replace("40", str(steps))).notes == tuple(said)


class Event:
    """Stands in for an event of CUDA: its time is a count."""

    now_ms = 0.0

    def __init__(self, *, enable_timing):
        assert enable_timing

    def record(self):
        Event.now_ms += 1.0
        self.at_ms = Event.now_ms

    def elapsed_time(self, end):
        return end.at_ms - self.at_ms


def test_on_a_gpu_moments_are_events(tmp_path, monkeypatch):
    waited = []
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waited.append(True))
    monkeypatch.setattr(torch_watcher, "HostClock", torch_watcher.CudaClock)
    found = watch(tmp_path, HEAD + LOOP)
    assert found.device == "cuda"
    assert waited
    for marks in found.watched:
        steps = {round((after.at_s - mark.at_s) * 1e3) for mark, after in pairwise(marks)}
        assert steps == {1}
        assert Counter(mark.kind for mark in marks)[READY] == 4
