"""Models of users: the page docs/how-to/model.md does what it says, and every mistake is one error on all ranks."""

import pytest

from dear_mpi.ranks.world import World, run_world
from dear_mpi.see.tables import show_training
from dear_mpi.training.runs.config import Config
from dear_mpi.training.runs.train import train
from tests.pages import Page, output_of
from tests.training_checks import README, on_all, settings

PAGE = Page.of("how-to/model.md")
CODE = PAGE.blocks[0]


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """Writes mine.py into the working directory; its name as a model."""

    def write(code):
        (tmp_path / "mine.py").write_text(code)
        return "mine.py:build"

    monkeypatch.chdir(tmp_path)
    return write


def trained(model, *, ranks=3, **choices):
    """The reports of all ranks, or what they say of an error. ``model`` may be a function of the rank."""

    def body(transport):
        name = model(transport.rank) if callable(model) else model
        return train(Config.of(settings(model=name, iterations=4) | choices), World(transport))

    return on_all(body, ranks)


def refusal(model, **choices):
    said, *others = trained(model, **choices)
    assert isinstance(said, str), "it trains"
    assert {*others} == {said}
    return said


def test_the_model_of_the_page_trains_with_the_same_bits_under_every_schedule(mine):
    name = mine(CODE)
    assert len([line for line in CODE.splitlines() if line]) <= 25
    digests = {trained(name, schedule=each)[0]["params_sha256"] for each in ("sequential", "wfbp", "dear")}
    assert len(digests) == 1
    (report,) = trained(name, ranks=1, iterations=150)
    assert report["accuracy"] > 0.9


@pytest.mark.parametrize(("ranks", "command"), PAGE.commands)
def test_the_commands_of_the_page_run(mine, ranks, command):
    assert mine(CODE) in output_of(ranks, command)


def test_the_page_shows_what_a_mistake_says(mine):
    said = refusal(mine(CODE.replace("np.ones(64, dtype)", "np.ones(32, dtype)")))
    assert PAGE.shows(said)


IMPORTS = """
import numpy as np
from dear_mpi.models.layers import Dense, Parameter, Relu, Reshape

def dense(rng, rows, columns, dtype=np.float32):
    return Dense("dense", rng.normal(0, rows**-0.5, (rows, columns)).astype(dtype))

def classifier(rng, classes=10, inputs=64):
    return [Reshape((inputs,)), dense(rng, inputs, classes)]

class Identity:
    parameters = ()
    def forward(self, x): return x
    def backward(self, dy): return dy

"""

SQUARED_ERROR = """
class SquaredError:
    def forward(self, y, targets):
        self.error = y - np.eye(10, dtype=y.dtype)[targets]
        return (self.error**2).sum()

    def backward(self, scale):
        return 2 * scale * self.error

def build(shape, classes, rng, dtype):
    return tuple(classifier(rng)), SquaredError()
"""


def test_a_loss_of_ones_own_has_no_accuracy(mine, capsys):
    name = mine(IMPORTS + SQUARED_ERROR)
    config = Config.of(settings(model=name, iterations=30))
    report = run_world(lambda world: train(config, world), threads=2)
    assert report["accuracy"] is None
    assert report["loss"][-1] < report["loss"][0] / 2
    run_world(lambda world: show_training(world, report), threads=1)
    assert "accuracy" not in capsys.readouterr().out


RIGHT = {
    "a text": (
        "class Lookup(Dense):\n"
        "    def forward(self, x): return super().forward(np.eye(256, dtype=np.float32)[x])\n"
        "def build(shape, classes, rng, dtype):\n"
        "    rows = rng.normal(0, 0.1, (classes, 16)).astype(dtype)\n"
        "    return Lookup('e', rows), dense(rng, 16, classes)\n",
        {"data": README, "context": 8},
    ),
    "fp64": (
        "build = lambda shape, classes, rng, dtype: [Reshape((64,)), dense(rng, 64, 10, dtype)]",
        {"dtype": "fp64"},
    ),
    "a layer that runs twice": (
        "def build(shape, classes, rng, dtype):\n"
        "    twice = dense(rng, 64, 64)\n"
        "    return [Reshape((64,)), twice, Relu(), twice, dense(rng, 64, 10)]\n",
        {},
    ),
    "a frozen parameter of another type": (
        "def build(*args):\n"
        "    frozen = Identity()\n"
        "    frozen.parameters = [Parameter('f', np.ones(3), np.ones(3), trained=False)]\n"
        "    return [frozen, *classifier(args[2])]\n",
        {},
    ),
}


@pytest.mark.parametrize("what", RIGHT)
def test_it_trains(mine, what):
    code, choices = RIGHT[what]
    reports = trained(mine(IMPORTS + code), **choices)
    assert [type(report["loss"][-1]) for report in reports] == [float] * 3


def returning(expression):
    return f"build = lambda shape, classes, rng, dtype: {expression}"


NAME = "model 'mine.py:build'"
GOES = "def forward(self, x): return x"
WRONG = {
    "no function": ("build = 3", "model file mine.py has no function or class 'build'; it has dense, classifier"),
    "a file that fails": ("1 / 0", "mine.py' fails: ZeroDivisionError: division by zero"),
    "a function that refuses": (
        "def build(shape, classes, rng, dtype): raise ValueError('it takes (C, H, W)')",
        f"job: {NAME} fails for samples of shape (8, 8) and 10 classes: ValueError: it takes (C, H, W)",
    ),
    "a function that ends the process": (
        "def build(*args): raise SystemExit(0)",
        f"{NAME} fails for samples of shape (8, 8) and 10 classes: SystemExit: 0",
    ),
    "no layers": (returning("None"), f"{NAME} must return a sequence of layers, or (layers, loss), not NoneType"),
    "one layer": (returning("dense(rng, 64, 10)"), "or (layers, loss), not Dense"),
    "none": (returning("[]"), f"{NAME} must have a parameter that is trained, and its 0 layers have none"),
    "nothing to train": (returning("[Relu()]"), "that is trained, and its 1 layers have none"),
    "a name for a layer": (
        returning("['relu', dense(rng, 64, 10)]"),
        f"the parameters of layer 0 (str) of {NAME} fail: AttributeError: 'str' object has no attribute 'parameters'",
    ),
    "no backward": (
        f"class Half:\n    parameters = ()\n    {GOES}\n" + returning("[Half(), *classifier(rng)]"),
        f"layer 0 (Half) of {NAME}: backward(float32[1, 8, 8]) fails: AttributeError",
    ),
    "no parameters": (
        "class Half(Identity):\n    parameters = property()\n" + returning("[Half(), *classifier(rng)]"),
        f"the parameters of layer 0 (Half) of {NAME} fail: AttributeError",
    ),
    "arrays as parameters": (
        "class Half(Identity):\n    parameters = [np.ones(2)]\n" + returning("[Half(), *classifier(rng)]"),
        f"the parameters of layer 0 (Half) of {NAME} fail: AttributeError: 'numpy.ndarray' object has no attribute",
    ),
    "another type": (
        returning("[Reshape((64,)), dense(rng, 64, 10, np.float64)]"),
        f"parameter dense.weight of {NAME} must be of dtype float32 (--dtype), not float64",
    ),
    "a class for a layer": (
        returning("[Relu, *classifier(rng)]"),
        f"layer 0 (type) of {NAME}: forward(float32[1, 8, 8]) fails: TypeError: Relu.forward() missing 1",
    ),
    "layers that do not fit": (
        returning("[Reshape((64,)), dense(rng, 64, 32), dense(rng, 64, 10)]"),
        f"layer 2 (Dense) of {NAME}: forward(float32[1, 32]) fails: ValueError: cannot reshape",
    ),
    "a forward without return": (
        "class Half(Identity):\n    def forward(self, x): ...\n" + returning("[Half(), *classifier(rng)]"),
        f"layer 0 (Half) of {NAME}: forward(float32[1, 8, 8]) fails: TypeError: it must return an array, not None",
    ),
    "a backward that fails": (
        "class Half(Identity):\n    def backward(self, dy): dy[5]\n" + returning("[*classifier(rng), Half()]"),
        f"layer 2 (Half) of {NAME}: backward(float32[1, 10]) fails: IndexError",
    ),
    "a gradient of another shape": (
        "class Half(Identity):\n    def backward(self, dy): return dy.sum(0)\n"
        + returning("[*classifier(rng), Half()]"),
        "fails: ValueError: it must return the gradient of its input, of shape [1, 10], not [10]",
    ),
    "as many outputs as inputs": (
        returning("[dense(rng, 8, 10)]"),
        f"the loss of {NAME} fails for outputs of shape [1, 8, 10] and targets of [1]: ValueError: targets must have",
    ),
    "no loss": (
        returning("(classifier(rng), 3)"),
        f"the loss of {NAME} fails for outputs of shape [1, 10] and targets of [1]: AttributeError",
    ),
    "a loss that is a text": (
        "class Each(Identity):\n    def forward(self, y, targets): return 'a'\n"
        + returning("(classifier(rng), Each())"),
        "targets of [1]: ValueError: it must return the sum over all examples, one number, not 'a'",
    ),
    "too few outputs": (
        returning("[Reshape((64,)), dense(rng, 64, 9)]"),
        f"{NAME} must have 10 outputs, one for each class, not [9]",
    ),
    "an error of several lines": (
        "class Bad(Identity):\n    def forward(self, x): raise ValueError('one\\ntwo')\n"
        + returning("[*classifier(rng), Bad()]"),
        "fails: ValueError: one two",
    ),
    "a loss for each": (
        "class Each(Identity):\n    def forward(self, y, targets): return y[0]\n"
        + returning("(classifier(rng), Each())"),
        "targets of [1]: ValueError: it must return the sum over all examples, one number, not array([",
    ),
    "a loss without a gradient": (
        "class Each(Identity):\n    def forward(self, y, targets): return 0.0\n"
        + returning("(classifier(rng), Each())"),
        f"the loss of {NAME}: backward(1.0) fails: TypeError: it must return an array, not 1.0",
    ),
    "a generator of its own": (
        returning("classifier(np.random.default_rng())"),
        "job: parameters (SHA-256; give all ranks one seed, or the values of rank 0) must be the same on ",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_told_by_all_ranks(mine, what):
    code, said = WRONG[what]
    assert said in refusal(mine(IMPORTS + code))


def test_where_there_is_no_file(mine):
    mine("")
    assert "none.py' does not exist: write it like path/to/mine.py:build" in refusal("none.py:build")
    said = "model 'mine.py' lacks a name after the file: write mine.py:build, and define build there"
    assert said in refusal("mine.py")


def test_ranks_compare_the_file_and_not_its_path(tmp_path):
    def place(content):
        for rank in range(3):
            (tmp_path / str(rank)).mkdir(exist_ok=True)
            (tmp_path / str(rank) / "mine.py").write_text(IMPORTS + returning("classifier(rng)") + content(rank))
        return lambda rank: f"{tmp_path}/{rank}/mine.py:build"

    assert len({report["params_sha256"] for report in trained(place(lambda rank: ""))}) == 1
    said = refusal(place(lambda rank: f"\n# {rank // 2}"))
    assert said.startswith("job: model must be the same on all ranks, not build of a file with checksum ")
