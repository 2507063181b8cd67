"""What adapters of PyTorch refuse: one line, the same on all ranks, before anything is sent."""

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="adapters of PyTorch need torch (our extra 'torch')")

from torch import nn  # noqa: E402

from dear_mpi.adapters.torch_session import TorchLoss, TorchSession  # noqa: E402
from dear_mpi.adapters.torch_tensors import array_of, tensor_of  # noqa: E402
from dear_mpi.collectives.program.errors import AgreedError  # noqa: E402
from dear_mpi.collectives.transports.loopback import run_loopback  # noqa: E402
from dear_mpi.kernels.optimizers import SGD  # noqa: E402
from tests.adapters.test_torch_session import whole  # noqa: E402
from tests.adapters.torch_models import LOSS, batch, new  # noqa: E402


def said(module, loss=LOSS, **options):
    """What all of two ranks say, where rank 1 alone has this module, if it is a function of the rank."""

    def body(transport):
        mine = module(transport.rank) if callable(module) and not isinstance(module, nn.Module) else module
        given = {"example": np.zeros((2, 6)), **options}
        try:
            TorchSession(mine, loss, transport, **given)
        except AgreedError as error:
            return str(error)

    first, second = run_loopback(2, body)
    assert first == second
    assert "\n" not in first
    return first


def with_parameter(dtype, *, trained=True):
    module = nn.Linear(6, 4).double()
    module.odd = nn.Parameter(torch.ones(2, dtype=dtype), requires_grad=trained)
    return module


def with_gradients(dtype):
    module = nn.Linear(6, 4).double()
    module.weight.grad_dtype = dtype
    return module


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 4).double()

    def forward(self, x):
        return self.inner(x), x


REFUSED = [
    (nn.Tanh(), "session: module Tanh has no parameter that is trained (requires_grad)"),
    (nn.Linear(6, 4).double().requires_grad_(False), "module Linear has no parameter that is trained"),
    (nn.Linear(6, 4).double().eval(), "module Linear is in eval mode: call train() on it before it is trained"),
    ("a model", "module must be a torch.nn.Module, not 'a model'"),
    (nn.DataParallel(nn.Linear(6, 4).double()), "has a DataParallel in it, which communicates by itself: unwrap it"),
    (Pair(), "module Pair must return one tensor, not tuple: wrap it in a module that returns the tensor"),
    (with_parameter(torch.complex64), "parameter odd must have one of the types fp64, fp32, fp16, bf16, not complex64"),
    (
        with_gradients(torch.float32),
        "parameter weight: grad_dtype must be torch.float64, like the parameter, not torch.float32",
    ),
    (nn.Linear(6, 4, device="meta"), "parameter weight: tensors must be dense and in the host's memory, not on meta"),
    (nn.Linear(5, 4).double(), "mat1 and mat2 shapes cannot be multiplied"),
    (lambda rank: nn.Linear(6, 4 + rank).double(), "session: model must be the same on all ranks"),
    (
        lambda rank: nn.Tanh() if rank else nn.Linear(6, 4).double(),
        "module Tanh has no parameter that is trained (requires_grad), on rank 1",
    ),
    (lambda rank: nn.Linear(6, 4).double(), "session: parameters (SHA-256; give all ranks one seed, or the"),
]


@pytest.mark.parametrize(("module", "message"), REFUSED)
def test_modules_that_cannot_be_trained_are_refused(module, message):
    assert message in said(module)


OPTIONS = [
    ({"loss": nn.CrossEntropyLoss()}, "loss must be the sum over its examples, not their 'mean'"),
    ({"loss": nn.functional.cross_entropy}, "give it reduction='sum'"),
    ({"loss": "sum"}, "loss must be a function of outputs and targets, not 'sum'"),
    ({"device": "cuda"}, "device must be 'cpu' for modules of PyTorch, not 'cuda'"),
    ({"uses": [0]}, "uses must not be given, because the module itself says what runs when: [0]"),
    ({"fusoin": "none"}, "option 'fusoin' is unknown: did you mean 'fusion'?"),
]


@pytest.mark.parametrize(("options", "message"), OPTIONS)
def test_options_that_do_not_fit_are_refused(options, message):
    assert message in said(lambda rank: new("sequential"), **options)


def test_compiled_modules_are_refused():
    module = nn.Sequential(nn.Linear(6, 4).double())
    module[0]._orig_mod = None  # as torch.compile marks what it returns; compiling itself takes a compiler
    assert "module Sequential has a compiled one in it (Linear): give it as it was before" in said(module)
    module = nn.Sequential(nn.Linear(6, 4).double())
    module[0]._compiled_call_impl = print  # as module.compile() does
    assert "module Sequential has a compiled one in it (Linear)" in said(module)


PACKED = nn.utils.rnn.pack_sequence([torch.ones(3, 6), torch.ones(2, 6)])
INPUTS = [
    ({"x": torch.ones(2, 6)}, "dict"),
    ((torch.ones(2, 6), torch.ones(2, 6)), "tuple"),
    ([np.ones((2, 6)), np.ones((2, 3))], "list"),
    ([[1.0, 2.0], [3.0]], "list"),
    (PACKED, "PackedSequence"),
    (None, "NoneType"),
    ("text", "str"),
]


@pytest.mark.parametrize(("given", "kind"), INPUTS)
def test_inputs_and_targets_must_be_one_tensor(given, kind):
    """Two tensors of one shape were silently stacked; the others ended in an error about object arrays."""
    wanted = f"must be one tensor or array of numbers, not {kind}: pass one padded, stacked or concatenated tensor, and"
    assert f"session: example {wanted} let a module around the model take it apart" in said(
        lambda rank: new("sequential"), example=given
    )

    def body(transport):
        with whole(new("sequential"), transport) as session:
            for name, arguments in {"x": (given, [0, 1]), "targets": (np.ones((2, 6)), given)}.items():
                with pytest.raises(ValueError, match=f"^{name} {wanted}"):
                    session.step(*arguments)
            return session.step([[0.5] * 6, [1.0] * 6], [0, 1])  # lists of numbers are arrays

    assert len(set(run_loopback(2, body))) == 1


def test_a_loss_must_be_one_number():
    loss = TorchLoss(lambda outputs, targets: outputs - targets)
    with pytest.raises(ValueError, match=r"loss must be one number, the sum over its examples, not tensor\(\["):
        loss.forward(np.ones(3), np.ones(3))


def test_a_loss_that_needs_more_than_outputs_is_refused():
    """The gradient of a penalty on weights was lost, and the loss was said with it."""
    module = new("sequential")

    def penalised(outputs, targets):
        return LOSS(outputs, targets) + 0.1 * sum(each.square().sum() for each in module.parameters())

    for loss in (penalised, lambda outputs, targets: LOSS(module(outputs.new_zeros(len(targets), 6)), targets)):
        with pytest.raises(ValueError, match="loss depends on parameters, or on other tensors with gradients, whose"):
            TorchLoss(loss).forward(np.zeros((2, 4)), np.zeros(2, "i8"))
    assert TorchLoss(LOSS).forward(np.zeros((2, 4)), np.zeros(2, "i8")) == pytest.approx(2 * np.log(4))


@pytest.mark.parametrize("frozen", [True, False])
def test_what_is_frozen_stays_so_during_a_session(frozen):
    """A momentum went on moving what was frozen, and what was to be trained again never was."""

    def body(transport):
        module = new("sequential")
        module[0].weight.requires_grad_(not frozen)
        with whole(module, transport, optimizer=SGD(0.1, momentum=0.9)) as session:
            session.step(*batch(0, 0))
            module[0].weight.requires_grad_(frozen)
            with pytest.raises(ValueError, match=r"parameter 0\.weight is (frozen|to be trained) since"):
                session.step(*batch(1, 0))

    run_loopback(1, body)


BOUND_ANEW = [
    (lambda module: module.float(), "its value was bound to another array; change it in place"),
    (lambda module: module.load_state_dict(copy.deepcopy(module.state_dict()), assign=True), "0.weight, 2.bias: added"),
]


@pytest.mark.parametrize(("change", "message"), BOUND_ANEW)
def test_parameters_that_were_bound_anew_are_named(change, message):
    def body(transport):
        module = new("sequential")
        with TorchSession(module, LOSS, transport, example=batch(0, 0)[0]) as session:
            session.step(*batch(0, transport.rank))
            session.flush()
            change(module)
            dtype = next(module.parameters()).detach().numpy().dtype
            session.step(*batch(1, transport.rank, dtype=dtype))

    def caught(transport):
        try:
            body(transport)
        except AgreedError as error:
            return str(error)

    first, second = run_loopback(2, caught)
    assert first == second
    assert message in first


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int64", "uint8", "bool"])
def test_arrays_and_tensors_share_their_memory(dtype):
    array = np.arange(6).astype(dtype).reshape(2, 3)[:, ::2]
    tensor = tensor_of(array)
    assert array_of(tensor).ctypes.data == array.ctypes.data == tensor.data_ptr()
    np.testing.assert_array_equal(array_of(tensor), array)
    frozen = np.arange(3.0)
    frozen.flags.writeable = False
    assert tensor_of(frozen).tolist() == tensor_of(frozen[::-1]).tolist()[::-1] == [0, 1, 2]


def test_bf16_crosses_too():
    tensor = torch.tensor([[1.5, -2.0], [0.25, 3.0]], dtype=torch.bfloat16).T
    array = array_of(tensor)
    assert array.dtype.name == "bfloat16"
    assert array.astype("f4").tolist() == tensor.float().tolist()
    assert tensor_of(array).data_ptr() == tensor.data_ptr()
    with pytest.raises(ValueError, match=r"tensors must be dense and in the host's memory, not of torch\.sparse_coo"):
        array_of(torch.zeros(2, 2).to_sparse())


def test_a_step_in_eval_mode_is_refused():
    """What is forgotten after a validation."""
    same = nn.Linear(4, 3)

    def body(transport):
        module, x, targets = copy.deepcopy(same), torch.zeros(2, 4), torch.zeros(2, dtype=torch.int64)
        loss = nn.CrossEntropyLoss(reduction="sum")
        with TorchSession(module, loss, transport, example=x) as session:
            session.step(x, targets)
            module.eval()
            with pytest.raises(ValueError, match=r"module Linear is in eval mode: call train\(\)"):
                session.step(x, targets)
            module.train()
            return session.step(x, targets)

    assert len(run_loopback(2, body)) == 2
