"""Each misuse of ``DistributedOptimizer`` is an error that names what to do."""

import copy
import functools
import io
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="DistributedOptimizer needs torch (our extra 'torch')")

from torch import nn  # noqa: E402

from dear_mpi.collectives.program.errors import AgreedError  # noqa: E402
from dear_mpi.collectives.transports.loopback import run_loopback  # noqa: E402
from tests.launch import mpis_at_hand  # noqa: E402
from tests.torch.looping import alike, bits, loss_of, step, wrapped  # noqa: E402

ANEW = r"close\(\) this one, change your own optimizer, and wrap that again"
SYNCHRONIZE = r"was changed after backward\(\) had sent it: call optimizer\.synchronize\(\) before"
ROWS = []


def refused(message, marks=(), **options):
    """Decorate a misuse ``f(transport, module, make)``; ``make`` wraps an optimiser of the module."""
    return lambda misuse: ROWS.append(pytest.param(misuse, message, options, id=misuse.__name__, marks=marks))


def backward(own, rank=0):
    loss_of(own, 0, rank).backward()


def after_backward(change):
    """A step after a change of gradients."""

    @functools.wraps(change)
    def misuse(transport, own, make):
        optimizer = make()
        step(optimizer, own, 0, transport.rank)
        optimizer.zero_grad()
        backward(own)
        change(own)
        optimizer.step()

    return misuse


def between(change):
    """A change after the first step."""

    @functools.wraps(change)
    def misuse(transport, own, make):
        optimizer = make()
        step(optimizer, own, 0, transport.rank)
        change(own)
        step(optimizer, own, 1, transport.rank)

    return misuse


@refused("the gradient of head.weight " + SYNCHRONIZE)
@after_backward
def assigned(own):
    own.head.weight.grad = torch.ones_like(own.head.weight)


@refused(SYNCHRONIZE)
@after_backward
def zeroed(own):
    for each in own.parameters():
        if each.grad is not None:
            each.grad.zero_()


@refused(r"a scaler must see the same gradients on all ranks: call optimizer\.synchronize\(\) before")
def scaler_alone(transport, own, make):
    optimizer, scaler = make(), torch.amp.GradScaler("cpu")
    scaler.scale(loss_of(own, 0, 0)).backward()
    scaler.step(optimizer)


@refused(SYNCHRONIZE)
def unscaled(transport, own, make):
    optimizer, scaler = make(), torch.amp.GradScaler("cpu")
    scaler.scale(loss_of(own, 0, 0)).backward()
    scaler.unscale_(optimizer)
    optimizer.synchronize()


@refused(f"^head.bias, head.weight of the model were added, removed or replaced: {ANEW}")
@between
def replaced(own):
    own.head = nn.Linear(8, 4).double()


@refused(f"^head.weight of the model were added, removed or replaced: {ANEW}")
@between
def weight_replaced(own):
    own.head.weight = nn.Parameter(own.head.weight.detach().clone())


@refused("^head.bias, head.weight of the model were added, removed or replaced")
@between
def held_elsewhere(own):
    """No hook would see that module start."""
    head = nn.Linear(8, 4).double()
    head.weight, head.bias, own.head = own.head.weight, own.head.bias, head


@refused(r"^unused\.bias, unused\.weight of the model were added, removed")
@between
def removed(own):
    del own.unused


@refused(f"parameter head.bias was unfrozen later: {ANEW}")
def unfrozen(transport, own, make):
    own.head.bias.requires_grad_(False)
    optimizer = make()
    step(optimizer, own, 0, transport.rank)
    own.head.bias.requires_grad_(True)
    step(optimizer, own, 1, transport.rank)


@refused(r"parameter \S+ was bound to other memory: use copy_ instead")
@between
def bound(own):
    own.head.weight.data = own.head.weight.data.clone()


@refused("parameter head.weight was changed through another view while its update was in flight: call flush")
def older_view(transport, own, make):
    optimizer = make()
    step(optimizer, own, 0, transport.rank)
    view = own.head.weight.detach()
    step(optimizer, own, 1, transport.rank)
    view.clamp_(-0.1, 0.1)
    step(optimizer, own, 2, transport.rank)


@refused(f"a parameter group cannot be added later: {ANEW}")
def group(transport, own, make):
    make().add_param_group({"params": [nn.Parameter(torch.ones(2))]})


@refused(r"model has a DistributedOptimizer already: close\(\) that one before")
def model_wrapped_twice(transport, own, make):
    make()
    make()


def different_rates(optimizer, own, transport, name="lr"):
    step(optimizer, own, 0, transport.rank)
    optimizer.param_groups[0][name] *= 1 + transport.rank
    step(optimizer, own, 1, transport.rank)


class ClippedSGD(torch.optim.SGD):
    def step(self):
        nn.utils.clip_grad_norm_([each for group in self.param_groups for each in group["params"]], 0.1)
        super().step()


@refused("model must be on one device, not on cpu and meta")
def two_devices(transport, own, make):
    own.register_buffer("elsewhere", torch.ones(2, device="meta"))
    make()


@refused("parameter odd must have one of the types fp64, fp32, fp16, bf16, not complex64")
def complex_parameter(transport, own, make):
    own.odd = nn.Parameter(torch.ones(2, dtype=torch.complex64))
    step(make(), own, 0, 0)


@refused("has a DataParallel in it: give it the module inside")
def parallel(transport, own, make):
    own.head = nn.DataParallel(own.head)
    make()


@refused("has a compiled Branches in it: layers would no longer start one by one")
def compiled(transport, own, make):
    own.compile()
    make()


@refused("torch.compile found a module of a DistributedOptimizer: layers would", pytest.mark.filterwarnings("ignore"))
def compiled_later(transport, own, make):
    make()
    torch.compile(own, backend="eager")(torch.ones(2, 6, dtype=torch.float64))


@refused(
    r"step\(\) has no new gradients: .* since the last step\(\)\. Call it once .*; for an empty batch pass tokens=0"
)
def step_twice(transport, own, make):
    optimizer = make()
    step(optimizer, own, 0, transport.rank)
    optimizer.step()


@refused(r"step\(\) has no new gradients: backward\(\) has reached no parameter")
def no_trained_parameter(transport, own, make):
    optimizer = make()
    (own.stem(torch.ones(1, 6, dtype=torch.float64)).detach() * torch.ones(8, requires_grad=True)).sum().backward()
    optimizer.step()


@refused(r"backward\(\) was called 2 times before step\(\): pass accumulate=2 \(or more\)")
def backward_twice(transport, own, make):
    make()
    backward(own)
    backward(own)


@refused(r"backward\(\) was called 3 times .*: pass accumulate=3 \(or more\) .*, not 2", accumulate=2)
def backward_thrice(transport, own, make):
    make()
    for _ in range(3):
        backward(own)


@refused("your optimizer is in a DistributedOptimizer: call step")
def own_step(transport, own, make):
    optimizer = make()
    backward(own)
    optimizer.optimizer.step()


@refused(r"step\(\) came after close\(\): step your own optimizer, or wrap it again")
def closed(transport, own, make):
    optimizer = make()
    step(optimizer, own, 0, transport.rank)
    optimizer.close()
    step(optimizer, own, 1, transport.rank)


@refused(f"optimizer is a DistributedOptimizer already: {ANEW}")
def wrapped_after_close(transport, own, make):
    optimizer = make()
    optimizer.close()
    make(optimizer)


@refused(f"an earlier step.* failed .ranks have different lr .*: {ANEW}")
def continued(transport, own, make):
    optimizer = make()
    different_rates(optimizer, own, transport)
    with pytest.raises(AgreedError, match="ranks have different lr"):
        optimizer.flush()
    before = bits(own)  # parameters are those before the step
    optimizer.zero_grad()
    try:
        step(optimizer, own, 2, transport.rank)
    finally:
        optimizer.close()
        assert before == bits(own)


@refused(r"synchronize\(\) has no new gradients")
def synchronize_twice(transport, own, make):
    optimizer = make()
    backward(own)
    optimizer.synchronize()
    optimizer.synchronize()


@refused(r"tokens belong to synchronize\(tokens=n\)")
def late_tokens(transport, own, make):
    optimizer = make()
    backward(own)
    optimizer.synchronize()
    optimizer.step(tokens=3)


@refused(r"tokens must be given to step\(\) on all ranks, and be above zero, not on 1 of 2 ranks, 3 together")
def some_tokens(transport, own, make):
    optimizer = make()
    backward(own)
    optimizer.step(**({"tokens": 3} if transport.rank else {}))
    optimizer.flush()


@refused(r"tokens must be given to step\(\) on all ranks, and be above zero, not on 2 of 2 ranks, 0 together")
def no_tokens(transport, own, make):
    optimizer = make()
    backward(own)
    optimizer.step(tokens=0)
    optimizer.flush()


@refused("ranks have different lr in optimizer.param_groups", update="sharded", fusion="layers:1")
def different_rates_of_shards(transport, own, make):
    """Also a rank whose shard is empty finds out."""
    own.stem, own.head = nn.Linear(6, 8), nn.Linear(8, 1, bias=False).double()
    own.stem.double()
    optimizer = make()
    own.forward = lambda x: own.head(own.stem(x)).expand(-1, 4)
    different_rates(optimizer, own, transport)
    optimizer.flush()


@refused("ranks have different weight_decay in optimizer.param_groups: compute it from equal values")
def different_decays(transport, own, make):
    optimizer = make()
    different_rates(optimizer, own, transport, "weight_decay")
    optimizer.flush()


@refused("ranks have different hyperparameters in optimizer.param_groups")
def different_news(transport, own, make):
    optimizer = make()
    step(optimizer, own, 0, transport.rank)
    optimizer.param_groups[0]["new"] = transport.rank
    step(optimizer, own, 1, transport.rank)
    optimizer.flush()


@refused(
    r"tensor 17 of the model must be the same .*, not none on rank 0; more\.weight torch\.float64\[3, 3\] on rank 1"
)
def different_models(transport, own, make):
    if transport.rank:
        own.more = nn.Linear(3, 3).double()
    make()


@refused(
    r"tensor 1 of the model must be the same .*, not stem\.weight torch\.float64\[8, 6\] on rank 0; "
    r"stem\.weight torch\.float64\[8, 7\] on rank 1"
)
def different_shapes(transport, own, make):
    if transport.rank:
        own.stem = nn.Linear(7, 8).double()
    make()


@refused("DistributedOptimizer: optimizer must be the same on all ranks, not AdamW on rank 0; SGD on rank 1")
def different_kinds(transport, own, make):
    make("sgd" if transport.rank else "adamw")


@refused("DistributedOptimizer: schedule must be the same on all ranks, not dear on rank 0; wfbp on rank 1")
def different_schedules(transport, own, make):
    wrapped(transport, own, schedule="wfbp" if transport.rank else "dear")


@refused("parameters of group 0 must be the same on all ranks")
def different_orders(transport, own, make):
    parameters = list(own.parameters())
    make(torch.optim.SGD(parameters[:: 1 - 2 * transport.rank]))


@refused(r"synchronize\(\) needs the averages of each step on each rank, not the route 'sharded'", update="sharded")
def sharded(transport, own, make):
    optimizer = make()
    backward(own)
    optimizer.synchronize()


@refused(
    "option 'loss_scale' does not apply to your loop, which has its batches, optimizer and scaler", loss_scale="dynamic"
)
def scaled(transport, own, make):
    make()


@refused("has a gradient twice in one backward pass: checkpoints must be of the kind use_reentrant=False")
def reentrant_twice(transport, own, make):
    optimizer = make()
    step(optimizer, own, 0, 0)
    optimizer.zero_grad()
    x = own.stem(torch.ones(2, 6, dtype=torch.float64))
    for _ in range(2):
        x = torch.utils.checkpoint.checkpoint(own.blocks[0], x, use_reentrant=True)
    x.sum().backward()


@refused(r"step\(\) needs a backward\(\) for each of this rank's 2 micro-batches", invariant=4)
def too_few_micro_batches(transport, own, make):
    step(make(), own, 0, transport.rank)


@refused(r"backward\(\) was called after this rank's 1 micro-batches: call step\(\)", invariant=2)
def too_many_micro_batches(transport, own, make):
    make()
    backward(own)
    backward(own)


@refused("invariant needs parameters of one type, not of", invariant=2)
def mixed_types(transport, own, make):
    own.head.float()
    own.head.register_forward_pre_hook(lambda _, given: (given[0].float(),))
    make()
    backward(own)


def zero(parameter):
    parameter.grad.zero_()


def hooked(transport, own, make):
    """Buckets are copied at their borders: what a later hook changes would be sent of some parameters only."""
    optimizer = make()
    step(optimizer, own, 0, transport.rank)
    for each in own.parameters():
        each.register_post_accumulate_grad_hook(zero)
    step(optimizer, own, 1, transport.rank)


for name, message, misuse, options in [  # an expression each
    *((f"hooked {fusion}", SYNCHRONIZE, hooked, {"fusion": fusion}) for fusion in ("layers:1", "buckets:1", "none")),
    ("clipped", SYNCHRONIZE, after_backward(lambda own: nn.utils.clip_grad_norm_(own.parameters(), 0.1)), {}),
    ("halved", "the gradient of head.weight " + SYNCHRONIZE,
     after_backward(lambda own: own.head.weight.grad.mul_(0.5)), {}),
    ("halved_data", "the gradient of head.weight " + SYNCHRONIZE,
     after_backward(lambda own: own.head.weight.grad.data.mul_(0.5)), {}),
    ("local", r"schedule 'local:2' updates during backward\(\), without your optimizer", lambda _, own, make: make(),
     {"schedule": "local:2"}),
    ("text", "broadcast_buffers must be True or False, not 'no'", lambda _, own, make: make(),
     {"broadcast_buffers": "no"}),
    ("added", r"^blocks\.2\.bias, blocks\.2\.weight of the model were added",
     between(lambda own: own.blocks.append(nn.Linear(8, 8).double())), {}),
    ("tied", r"^blocks\.1\.right\.weight of the model were added",
     between(lambda own: setattr(own.blocks[1].right, "weight", own.blocks[0].right.weight)), {}),
    ("frozen", f"parameter head.weight was frozen later: {ANEW}",
     between(lambda own: own.head.requires_grad_(False)), {}),
    ("converted", r"parameter \S+ was bound to other memory: use copy_", between(lambda own: own.float().double()), {}),
    ("halved_model", rf"parameter \S+ was bound .* of type torch\.float16, as by half\(\) or to\(\): {ANEW}",
     between(lambda own: own.register_forward_pre_hook(lambda *_: own.double()) and own.half()), {}),
    ("other", "optimizer has 2 parameters that are not the model's: make it from model.parameters",
     lambda _, own, make: make(torch.optim.SGD(nn.Linear(2, 2).parameters())), {}),
    ("wrapped_twice", "optimizer is a DistributedOptimizer already", lambda _, own, make: make(make()), {}),
    ("no_optimizer", "optimizer must be one of torch.optim, not 0.1", lambda _, own, make: make(0.1), {}),
    ("lbfgs", "optimizer LBFGS looks at all parameters at once and runs the model several times: take another",
     lambda _, own, make: make(torch.optim.LBFGS(own.parameters())), {}),
    ("sparse_adam", "optimizer SparseAdam takes sparse gradients, which travel as dense ones: take Adam",
     lambda _, own, make: make(torch.optim.SparseAdam(own.parameters())), {}),
    ("dependent", "optimizer ClippedSGD updates parameters that depend on each other: take another",
     lambda _, own, make: make(ClippedSGD(own.parameters())), {}),
    ("nothing_trained", "optimizer has no parameter that is trained",
     lambda _, own, make: make(torch.optim.SGD(own.requires_grad_(False).parameters())), {}),
    ("accumulate_nothing", "accumulate must be at least 1, not 0", lambda _, own, make: make(), {"accumulate": 0}),
    ("different_optimizers", r"lr of the optimizer must be the same on all ranks, not \[0\.1\] on rank 0; \[1\.1\] on",
     lambda transport, own, make: make(torch.optim.SGD(own.parameters(), lr=0.1 + transport.rank)), {}),
    *((f"early {name}", rf"DistributedOptimizer: schedule '{name}' updates shards while backward\(\) runs",
       lambda _, own, make: make(), {"update": "sharded", "schedule": name}) for name in ("wfbp", "bytescheduler")),
    *((f"unknown {name} {text}", f"DistributedOptimizer: .*{message}", lambda _, own, make: make(), {name: text})
      for name, text, message in (
          ("fusion", "x", "fusion 'x': size 'x' cannot be read: write it like 25MB"),
          ("fusion", "25", "fusion '25': size '25' has no unit: write it like 25MB"),
          ("fusion", "layers:0", "fusion 'layers:0' needs a whole number above zero"),
          ("algorithm", "rings", "algorithm 'rings' is unknown: did you mean 'ring'"),
          ("algorithm", "binomial", "algorithm 'binomial' serves all_reduce, broadcast, reduce, not"),
          ("route", "x", "route 'x' is unknown. Allowed: full, sharded"),
          ("wire", "x", "wire 'x' is unknown"),
          ("wire", "int8", "wire 'int8' carries gradients of fp32, fp16, bf16, not of fp64"),
      )),
    *((f"tokens {tokens!r}", f"tokens must be a finite number of at least 0, not {tokens!r}",
       lambda _, own, make, tokens=tokens: make().step(tokens=tokens), {})
      for tokens in ("3", -1, float("nan"), float("inf"), True)),
    ("misspelt", "option 'fusoin' is unknown: did you mean 'fusion'", lambda _, own, make: make(), {"fusoin": "none"}),
    ("odd_invariant", "invariant must be a power of two from 1 to 16384, not 6", lambda _, own, make: make(),
     {"invariant": 6}),
    ("small_invariant", "invariant must be at least 2, so that each rank has a micro-batch, not 1",
     lambda _, own, make: make(), {"invariant": 1}),
    ("accumulate_invariant", "accumulate must be left out with invariant", lambda _, own, make: make(),
     {"invariant": 4, "accumulate": 2}),
    ("lossy_invariant", "wire must be left out with invariant, or be fp64, the type in which each rank adds up",
     lambda _, own, make: backward(make() and own),
     {"invariant": 2, "wire": "int8"}),
    ("elastic", r"elastic needs ranks that may die: pass comm=world of run_world\(f, elastic=True\)",
     lambda _, own, make: make(), {"elastic": True}),
    ("negative_clip", "clip must be a norm above zero, not -1", lambda _, own, make: make(), {"clip": -1}),
    ("copied", "a DistributedOptimizer can neither be copied nor saved: take its state_dict",
     lambda _, own, make: copy.deepcopy(make()), {}),
    ("pickled", "a DistributedOptimizer can neither be copied nor saved: take its state_dict",
     lambda _, own, make: torch.save(make(), io.BytesIO()), {}),
]:  # fmt: skip
    ROWS.append(pytest.param(misuse, message, options, id=name))


@pytest.mark.parametrize(("misuse", "message", "options"), ROWS)
def test_misuse(misuse, message, options):
    models = alike("branches", 2)

    def body(transport):
        own = models[transport.rank]
        with pytest.raises(Exception, match=message):
            misuse(transport, own, lambda kind="sgd": wrapped(transport, own, kind, **options))

    run_loopback(2, body)


def test_a_cuda_graph_is_refused(monkeypatch):
    def body(transport):
        (own,) = alike("branches", 1)
        with wrapped(transport, own):
            for name in ("is_initialized", "is_current_stream_capturing"):
                monkeypatch.setattr(torch.cuda, name, lambda: True)
            with pytest.raises(ValueError, match="a CUDA graph cannot repeat messages"):
                loss_of(own, 0, 0)

    run_loopback(1, body)


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setattr("dear_mpi.torch.entry_points_of", lambda group: {})
    with pytest.raises(ImportError, match="init_process_group is in the extra 'process_group', which is not installed"):
        from dear_mpi.torch import init_process_group  # noqa: F401
    with pytest.raises(ImportError, match="cannot import name 'init_group'"):
        from dear_mpi.torch import init_group  # noqa: F401


EXIT = """
import torch
import dear_mpi.torch as dear

def wrong(model):
    optimizer = dear.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model)
    for iteration in range(2):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.param_groups[0]["lr"] *= 1 + iteration * dear.rank()
        optimizer.step()
    return optimizer

model = torch.nn.Linear(2, 2)
optimizer = wrong(model)
if {caught}:
    try:
        optimizer.flush()
    except RuntimeError as error:
        print("caught", error)
    model = torch.nn.Linear(2, 2)
    optimizer = dear.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
print("the end")
"""


@pytest.mark.parametrize("caught", [False, True])
def test_a_step_that_fails_at_exit_fails_the_job(caught, tmp_path):
    """Python ignores errors of exit callbacks."""
    if not (found := mpis_at_hand()):
        pytest.skip("there is no MPI")
    (script := tmp_path / "script.py").write_text(EXIT.format(caught=caught))
    command = [*found[0].mpirun, "-n", "2", sys.executable, "-m", "mpi4py", str(script)]
    environment = found[0].environment(2) | {"OMP_NUM_THREADS": "1"}
    job = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert "once too often" not in job.stderr
    assert job.stdout.count("the end") == 2
    assert job.stdout.count("caught ranks have different lr") == 2 * caught
    if caught:
        assert job.returncode == 0, job.stderr
        assert "Traceback" not in job.stderr
    else:
        assert job.returncode == 1
        assert job.stderr.count("rank 0 failed: AgreedError: ranks have different lr") == 1
        assert "rank 1 failed" not in job.stderr
