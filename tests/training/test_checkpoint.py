"""A run that was ended goes on where its last checkpoint was, and comes to the same bits."""

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest

from dear_mpi.collectives.transports.loopback import run_loopback
from dear_mpi.kernels.optimizers import Adam
from dear_mpi.models.layers import Dense, Gelu, SoftmaxCrossEntropy
from dear_mpi.ranks.world import World, run_world
from dear_mpi.reporting.files import named
from dear_mpi.training import Session
from dear_mpi.training.checkpoint import read
from dear_mpi.training.runs.config import Config
from dear_mpi.training.runs.job import Job
from dear_mpi.training.runs.train import Saving, train
from dear_mpi.training.schedules import SCHEDULES
from tests.training_checks import agreed, batch, installed, settings

WAYS = [
    {},
    {"wire": "bf16", "optimizer": "sgd", "momentum": 0.9},
    {"wire": "fp16", "loss_scale": "dynamic", "clip": 1.0},
    {"fusion": "cut:5kB", "accumulate": 2},
]


def run(ranks, iterations, saving=None, **choices):
    """The report of rank 0, or what all ranks say instead."""
    config = Config.of(settings(iterations=iterations, **choices))
    return agreed(lambda transport: train(config, World(transport), saving=saving), ranks)


CASES = [*((3, "dear", choices) for choices in WAYS), *((2, name, WAYS[2]) for name in SCHEDULES), (1, "wfbp", WAYS[1])]


@pytest.mark.parametrize(("ranks", "schedule", "choices"), CASES, ids=str)
def test_the_same_bits_as_without_a_break(ranks, schedule, choices, tmp_path):
    file = tmp_path / "run.npz"
    whole = run(ranks, 8, schedule=schedule, **choices)
    run(ranks, 5, Saving(file), schedule=schedule, **choices)
    rest = run(ranks, 8, Saving(file, resume=True), schedule=schedule, **choices)
    assert rest["params_sha256"] == whole["params_sha256"]
    assert rest["loss"] == whole["loss"]


def test_on_another_number_of_ranks_with_other_buckets(tmp_path):
    """Sums are formed in another order there: the same to rounding, in float64."""
    file = tmp_path / "run.npz"
    whole = run(3, 8, dtype="fp64")
    run(3, 5, Saving(file), dtype="fp64")
    for ranks in (1, 5):
        rest = run(ranks, 8, Saving(file, resume=True), dtype="fp64", fusion="cut:1kB", schedule="wfbp")
        assert rest["loss"] == pytest.approx(whole["loss"], rel=1e-10)
        file.unlink()  # FILE.old has the first 5 iterations


def test_every_so_many_iterations_and_at_the_end(tmp_path):
    file = tmp_path / "run.npz"
    run(2, 7, Saving(file, every=3))
    kept = [json.loads(bytes(np.load(path)["about"])) for path in (file, tmp_path / "run.npz.old")]
    assert [about["iterations"] for about in kept] == [7, 6]
    assert [len(about["notes"]["loss"]) for about in kept] == [7, 6]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.npz", "run.npz.old"]


def saved(tmp_path):
    file = tmp_path / "run.npz"
    run(2, 4, Saving(file, every=2))
    return file


def test_any_damage_names_the_file_and_the_one_before_it(tmp_path):
    """Flipped bits in the directory of the zip file were encryption, or a method that is not supported."""
    file, old = tmp_path / "run.npz", tmp_path / "run.npz.old"

    def body(transport):
        with one(transport=transport) as session:
            session.save(file)

    run_loopback(1, body)
    whole, draw = file.read_bytes(), np.random.default_rng(0)
    kept = read(file)
    old.touch()
    flipped = [
        whole[:at] + bytes([whole[at] ^ 1 << draw.integers(8)]) + whole[at + 1 :] for at in range(0, len(whole), 3)
    ]
    cut = [whole[:length] for length in range(0, len(whole), 50)]
    for content in (*flipped, *cut, b"", b"PK", bytes(len(whole)), whole + b"x", whole[:99] + whole[199:]):
        file.write_bytes(content)
        try:
            found = read(file)
        except ValueError as error:
            assert re.match(f"checkpoint '{file}' is damaged .*: the one before it is '{old}'", str(error))  # noqa: PT017
        else:  # such as the time of an array; a session refuses a file that lacks one
            assert found.keys() <= kept.keys()
            assert all((found[name] == kept[name]).all() for name in found)
    old.unlink()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=f"checkpoint '{file}' is damaged .*[)]$"):
        read(file)


@pytest.mark.parametrize(("choices", "reported", "said"), [
    ({"fusion": "mgwfbp"}, "25MB", "the first 3 decide an order or a fusion"),
    ({"fusion": "auto", "schedule": "dear-eager"}, "25MB", "the first 12 decide a fusion by trials"),
    ({"fusion": "layers:2", "weights": "measured"}, "layers:2", "the first 3 decide weights"),
])  # fmt: skip
@pytest.mark.parametrize("left", [1, 3])
def test_decisions_from_times_are_left_out_if_iterations_are(choices, reported, said, left, tmp_path, capsys):
    """They were refused, with a number of iterations that nobody had given."""
    file = tmp_path / "run.npz"
    run(2, 21, Saving(file), batch=2)
    capsys.readouterr()
    report = run(2, 21 + left, Saving(file, resume=True), batch=2, **choices)
    assert (report["iterations"], report["fusion"]) == (left, reported)
    note = f"note: too few iterations are left, {left}: {said}"
    assert note in capsys.readouterr().err


@pytest.mark.parametrize(
    ("choices", "said"),
    installed(
        ({"model": "cnn"}, "it is of another model: its parameter 0 is ('dense1.weight', (64, 128)), and here it is"),
        ({"dtype": "fp64"}, "it has the dtype float32, and this run has float64"),
        ({"optimizer": "sgd"}, "it has the optimizer Adam, and this run has SGD"),
        ({"iterations": 4}, "the checkpoint has all of the 4 iterations"),
        ({"seed": 4}, "the checkpoint is of a run with seed 3, not 4"),
        ({"batch": 30}, "the checkpoint is of a run with batch 32, not 30"),
    ),
)
def test_that_of_another_run_is_refused(choices, said, tmp_path):
    file = saved(tmp_path)
    assert said in run(2, choices.pop("iterations", 6), Saving(file, resume=True), **choices)


def test_what_is_not_there_or_no_checkpoint_is_refused(tmp_path):
    assert "is not there: --save FILE --every N writes one" in run(2, 6, Saving(tmp_path / "no.npz", resume=True))
    for content, said in (
        ({"x": np.zeros(3)}, "it must be of format 1, as dear-mpi train --save writes it, not None"),
        ({"about": np.frombuffer(b"[1]", np.uint8)}, "it must be of format 1, as dear-mpi train --save writes it, not"),
        ({"about": np.frombuffer(b"{", np.uint8)}, "its description is wrong: Input data was truncated"),
    ):
        np.savez(file := tmp_path / "other.npz", **content)
        assert f"checkpoint '{file}': {said}" in run(2, 6, Saving(file, resume=True))
    assert "--save" in run(2, 6, Saving(tmp_path))
    os.mkfifo(pipe := tmp_path / "pipe")
    for path in (pipe, Path("/dev/null")):
        assert f"--save '{path}' is no file that a checkpoint can be read from again" in run(2, 6, Saving(path))


def test_a_session_goes_on_from_a_state():
    """Also with a layer that is tied, and a parameter that stays in its own memory."""

    def layers(seed):
        rng = np.random.default_rng(seed)
        first, last = Dense("first", rng.standard_normal((6, 6))), Dense("last", rng.standard_normal((6, 4)))
        last.bias.rebind = False
        return [first, Gelu(), Dense("tied", first.weight.value), last]

    def body(transport):
        def session(seed):
            return Session(layers(seed), SoftmaxCrossEntropy(), transport, optimizer=Adam(0.1))

        def steps(of, numbers):
            return [of.step(*batch(number, transport.rank)) for number in numbers]

        with session(1) as whole:
            wanted = steps(whole, range(6))
            digest = whole.parameters_sha256() if whole.flush() is None else ""
        with session(1) as first:
            losses, state = steps(first, range(3)), first.state({"at": 3})
        with session(2) as other:
            steps(other, range(9, 11))
            assert other.load(state) == {"at": 3}
            losses += steps(other, range(3, 6))
            other.flush()
            assert other.parameters_sha256() == digest
        return losses == wanted

    assert run_loopback(3, body) == [True] * 3


def one(factor=1.0, **options):
    """A model with a frozen layer."""
    rng = np.random.default_rng(0)
    layers = [Dense("frozen", factor * rng.standard_normal((6, 6))), Dense("last", rng.standard_normal((6, 4)))]
    for parameter in layers[0].parameters:
        parameter.trained = False
    return Session(layers, SoftmaxCrossEntropy(), World(options.pop("transport")), optimizer=Adam(), **options)


WRONG_STATES = {
    "the checksum of frozen parameters": lambda state: state | {"frozen": None},
    "the array 'state.0.0' of float64[6, 4]": lambda state: state | {"state.0.0": np.zeros((6, 4), np.float32)},
    "the array 'value.0' of float64[6, 4]": lambda state: state | {"value.0": np.zeros((6, 4), np.int64)},
    "the array 'state.1.1' of float64[4]": lambda state: {key: state[key] for key in state if key != "state.1.1"},
    "a mapping of arrays by name, as state() gives it, not None": lambda state: None,
}


@pytest.mark.parametrize("said", WRONG_STATES)
def test_a_state_that_was_tampered_with_is_refused_on_all_ranks(said):
    def body(transport):
        with one(transport=transport) as session:
            state = WRONG_STATES[said](session.state())
        factor = 2.0 if "frozen" in said else 1.0
        with one(factor, transport=transport) as session:
            session.load(state)

    assert said in agreed(body, 2)


def about(state, **changes):
    """A state whose maker has changed what it says of itself."""
    return state | {"about": np.frombuffer(json.dumps(json.loads(bytes(state["about"])) | changes).encode(), np.uint8)}


WRONG_ABOUT = [
    ({"updates": 0}, "it must have more than 0 updates, because its optimiser state is not zero"),
    (
        {"iterations": 10**30},
        "its description is wrong: iterations must be a whole number <= 9007199254740991, not 1000",
    ),
    ({"ranks": 0}, "its description is wrong: ranks must be a whole number >= 1, not 0"),
    ({"loss_scale": {"scale": 0.5}}, "a loss scale must be a finite number of at least 1.0, with counts, not"),
    ({"loss_scale": {"scale": "high"}}, 'loss_scale.scale must be a number, not "high"'),
    ({"loss_scale": "high"}, 'loss_scale must be an object or null, not "high"'),
]


@pytest.mark.parametrize(("changes", "said"), WRONG_ABOUT)
def test_a_state_that_was_made_by_hand_is_refused_on_all_ranks(changes, said):
    def body(transport):
        with one(transport=transport, loss_scale="dynamic") as session:
            session.step(np.ones((2, 6)), np.zeros(2, int))
            state = session.state()
            assert session.load(state) is None
            session.load(about(state, **changes))

    assert said in agreed(body, 2)


def data(path, turned=0):
    rng = np.random.default_rng(0)
    np.savez(path, x=rng.standard_normal((80, 6)), y=np.arange(80) % 4 ^ turned)
    return str(path)


def test_a_run_does_not_go_on_with_other_data_of_the_same_name(tmp_path):
    file, name = tmp_path / "run.npz", data(tmp_path / "data.npz")
    run(2, 3, Saving(file), data=name)
    moved = data(tmp_path / "moved.npz")
    assert len(run(2, 4, Saving(file, resume=True), data=moved)["loss"]) == 4, "it is the same data"
    data(tmp_path / "data.npz", turned=3)
    said = run(2, 5, Saving(file, resume=True), data=name)
    assert f"the checkpoint is of a run on other data: data '{moved}' had the SHA-256 " in said
    assert "give --data the file of before, or begin a new run with another --save" in said


def test_what_has_changed_is_said_in_one_line(tmp_path, capsys):
    """Once, by rank 0; and nothing where nothing has."""
    file = tmp_path / "run.npz"
    run(2, 2, Saving(file))
    run(2, 3, Saving(file, resume=True), schedule="wfbp", update="sharded")
    assert capsys.readouterr().err == ""
    run(2, 4, Saving(file, resume=True), lr=0.01, optimizer="adam:beta1=0.5", clip=1.0, decay="cosine")
    said = capsys.readouterr().err
    changes = "lr is 0.01, and was 0.003; beta1 is 0.5, and was 0.9; clip is 1.0, and was None; decay is cosine,"
    assert said == f"note: the run goes on, but {changes} and was none\n"
    run(2, 3, Saving(tmp_path / "other.npz"), algorithm="ring", fusion="none")
    run(2, 4, Saving(tmp_path / "other.npz", resume=True), algorithm="ordered", fusion="layers:2")
    changes = "fusion is layers:2, and was none; algorithm is ordered, and was ring"
    assert capsys.readouterr().err == f"note: the run goes on, but {changes}\n"


@pytest.mark.parametrize(
    ("before", "after", "lost"),
    installed(
        ({"wire": "int4"}, {"wire": "int8"}, None),
        ({"wire": "int8"}, {}, "line residual"),
        ({"wire": "powersgd:1"}, {"wire": "int8:error=no"}, "line residual, line factors"),
        ({"schedule": "diloco:4"}, {"schedule": "diloco:2"}, None),
        ({"schedule": "diloco:4"}, {"schedule": "local:4"}, "line outer momentum"),
    ),
)
def test_lines_that_the_route_does_not_keep_are_named(before, after, lost, tmp_path, capsys):
    """They were dropped in silence."""
    file = tmp_path / "run.npz"
    run(2, 4, Saving(file), **before)
    capsys.readouterr()
    assert run(2, 5, Saving(file, resume=True), **after)["iterations"] == 1
    said = [line for line in capsys.readouterr().err.splitlines() if "is lost" in line]
    route = f"full over {after['wire']}" if "wire" in after else after.get("schedule", "full")
    whole = f"note: the run goes on, but the route '{route}' does not keep what checkpoint '{file}' has of {lost}: "
    assert said == ([] if lost is None else [whole + "it is lost"])


@pytest.mark.parametrize(("choices", "said"), [
    ({"wire": "int8"}, "an equal share of the sum of line residual"),
    ({"schedule": "local:2", "momentum": 0.9, "optimizer": "sgd"}, "the mean of the optimiser's states"),
    ({}, None),
])  # fmt: skip
def test_what_other_ranks_had_for_themselves_is_shared_out_and_it_says_so(choices, said, tmp_path, capsys):
    file = tmp_path / "run.npz"
    run(2, 4, Saving(file), **choices)
    capsys.readouterr()
    run(3, 6, Saving(file, resume=True), **choices)
    whole = f"note: checkpoint '{file}' is of 2 ranks: each of these ranks gets {said}\n"
    assert capsys.readouterr().err == ("" if said is None else whole)


def test_notes_that_json_cannot_hold_on_one_rank_are_refused_on_all():
    def body(transport):
        with one(transport=transport) as session:
            session.state({1, 2} if transport.rank else [1, 2])

    assert "notes: TypeError: Object of type set is not JSON serializable, on rank 1" in agreed(body, 2)


def test_what_a_killed_run_was_writing_is_gone_behind_the_next_checkpoint(tmp_path):
    """But not what another run left, whose name ends alike, and no file of the user."""
    file = tmp_path / "run.npz"
    others = {named(tmp_path / "my-run.npz", (1 << 22) + 1), ".2024-run.npz"}
    for name in (named(file, (1 << 22) + 1), *others):
        (tmp_path / name).write_bytes(b"a part of it")
    run(2, 2, Saving(file))
    assert {path.name for path in tmp_path.iterdir()} == {"run.npz", *others}


def test_that_of_a_script_is_refused_by_a_run(tmp_path):
    file = tmp_path / "run.npz"

    def body(world):
        with Job(Config.of(settings()), world, ["dear"]) as job:
            job.save(file)

    run_world(body, threads=2)
    assert "the checkpoint is of a script" in run(2, 6, Saving(file, resume=True))
