"""Training under mpirun: what tests/training/test_schedules.py proves over threads holds for processes too."""

from pathlib import Path

import pytest

from dear_mpi.collectives import MismatchError
from dear_mpi.collectives.program.errors import ArgumentError
from dear_mpi.models.networks import ALL_MODELS
from dear_mpi.ranks.world import run_world
from dear_mpi.reporting.units import parse_link, parse_links
from dear_mpi.training.fusion import BY_TIME
from dear_mpi.training.runs.config import Config
from dear_mpi.training.runs.train import Saving, train
from dear_mpi.training.schedules import SCHEDULES
from dear_mpi.training.trainer import TrainingError
from tests.golden.cases import command, parameters, reported, run, trainings
from tests.golden.elementwise import write_data
from tests.rooms import DELETED
from tests.training_checks import KINDS, README, SCHEDULE_CASES, installed, session_script, settings, third
from tests.tuning_checks import RANGE, check_trials, tuned

pytestmark = pytest.mark.mpi
FEW = 3  # ranks; more than cores take long


def trained(threads=None, link=None, saving=None, **choices):
    config = Config.of(settings(**choices))
    return run_world(lambda world: train(config, world, saving=saving), threads=threads, link=link)


@pytest.mark.parametrize("choices", SCHEDULE_CASES, ids=str)
def test_same_bits_under_every_schedule_when_repeated_and_over_threads(comm, choices):
    if comm.size > FEW and choices not in SCHEDULE_CASES[:2]:
        pytest.skip("on few ranks, and on threads")
    names = third(comm.size) if choices["model"] == "mlp" else KINDS  # 1 to 3 ranks have all schedules
    digests = {trained(schedule=schedule, **choices)["params_sha256"] for schedule in (*names, "dear", "dear")}
    digests.add(trained(schedule="dear", threads=comm.size, **choices)["params_sha256"])
    assert len(set().union(*comm.allgather(digests))) == 1


@pytest.mark.parametrize("choices", [
    *({"wire": wire} for wire in installed("int8", "int4", "topk:10%", "blocks:10%")),
    {"wire": "int8", "update": "sharded", "schedule": "dear-eager"},
    *({"schedule": schedule} for schedule in ("local:3", "diloco:3", "diloco:4:delay=2:mix=0.5:staggered=yes")),
], ids=str)  # fmt: skip
def test_codes_and_rounds_have_the_bits_of_threads(comm, choices):
    digests = {trained(fusion="cut:8KB", threads=ranks, **choices)["params_sha256"] for ranks in (None, comm.size)}
    assert len(set().union(*comm.allgather(digests))) == 1


@pytest.mark.parametrize("link", [None, parse_link("10gbit,1us")], ids=["shared memory", "messages"])
def test_same_bits_with_auto(comm, link):
    reports = [trained(algorithm="auto", schedule=schedule, link=link) for schedule in KINDS]
    digests = {report["params_sha256"] for report in reports}
    assert len(set().union(*comm.allgather(digests))) == 1
    assert len({tuple(report["chosen"]) for report in reports}) == 1


def test_an_overflow_of_the_wire_ends_all_ranks_with_the_same_error(comm):
    """A gradient of the head is near 1: scaled up by its inputs, it does not fit into fp16."""
    with pytest.raises(TrainingError, match=r"bucket 0 \(.*summed in float16, .* in update \d+:.*--wire") as error:
        trained(wire="fp16", optimizer="sgd", lr=1e4, iterations=50)
    assert len(set(comm.allgather(str(error.value)))) == 1


@pytest.mark.parametrize("schedule", KINDS)
def test_same_bits_over_an_emulated_link(schedule):
    slow, fast = (trained(schedule=schedule, link=link) for link in (parse_link("10gbit,10us"), None))
    assert slow["params_sha256"] == fast["params_sha256"]
    assert slow["transport"].startswith("EMULATED")
    assert slow["emulated_link"] == "10 Gbit/s, 10 us"
    assert fast["emulated_link"] is None


THEMIS = pytest.param({"algorithm": "themis"}, marks=pytest.mark.skipif("algorithms" in DELETED, reason="was deleted"))
CODED = pytest.param({"wire": "int8:between"}, marks=pytest.mark.mpi(min_size=3))  # on two ranks there is one host


@pytest.mark.parametrize("choices", [{"algorithm": "hierarchical"}, CODED, THEMIS])
def test_same_bits_on_emulated_hosts_as_on_threads(comm, choices):
    choices = {"link": parse_links("10gbit,1us/20gbit,1us,per_host=2"), "segment_bytes": 1024, **choices}
    reports = [trained(schedule=schedule, **choices) for schedule in KINDS]
    reports.append(trained(threads=comm.size, **choices))
    digests = {report["params_sha256"] for report in reports}
    assert len(set().union(*comm.allgather(digests))) == 1
    assert reports[0]["hosts"] == [2] * (comm.size // 2) + [1] * (comm.size % 2)
    assert reports[0]["emulated_link"] == "10 Gbit/s, 1 us inside hosts and 20 Gbit/s, 1 us between them (per_host=2)"


def test_native_collectives_train_too():
    """Their sums may differ in the last bit; the accuracy of the classifier does not."""
    assert trained(algorithm="native", iterations=100)["accuracy"] > 0.9


def test_digits_are_learnt(comm):
    """The main job, at its defaults: at least 97 % of the test digits are read.

    Each number of ranks trains under another schedule, for all of them end with the same bits (tested above).
    """
    if comm.size > FEW:
        pytest.skip("on few ranks: the number does not change what is computed")
    schedule = tuple(SCHEDULES)[comm.size % len(SCHEDULES)]
    if "cnn" not in ALL_MODELS:
        pytest.skip("an extra, which was deleted")
    config = Config.of({"model": "cnn", "fusion": "layers:2", "schedule": schedule})
    report = run_world(lambda world: train(config, world))
    assert report["accuracy"] >= 0.97
    assert report["loss"][-1] < 0.1 < report["loss"][0]


def test_report_has_the_keys_that_scripts_depend_on(comm):
    report = trained()
    promised = "schedule algorithm fusion buckets ranks device emulated_link iterations iteration_s compute_s"
    promised += " exposed_comm_s bound_s loss accuracy params_sha256"
    assert set(promised.split()) <= set(report)
    assert report["ranks"] == comm.size
    assert len(report["iteration_s"]) == len(report["loss"]) == report["iterations"] == 8
    assert all(answer == report for answer in comm.allgather(report))


def test_a_loss_that_is_no_number_ends_all_ranks_with_the_same_error():
    with pytest.raises(TrainingError, match=r"the loss is (nan|inf) in iteration \d+"):
        trained(optimizer="sgd", lr=1e20, iterations=50)


def test_ranks_that_were_asked_for_different_things_all_say_so(comm):
    """Rank 0 alone has another seed."""
    if comm.size > 1:
        with pytest.raises(MismatchError, match="job: seed must be the same on all ranks, not 1 on rank 0; 0 on rank"):
            trained(seed=int(comm.rank == 0))


def test_a_batch_smaller_than_the_ranks_is_refused(comm):
    if comm.size > 1:
        with pytest.raises(ValueError, match=f"batch must be at least the number of ranks, {comm.size}, not 1"):
            trained(batch=1)


@pytest.mark.parametrize("optimizer", ["muon", "lamb"])
def test_owners_of_whole_tensors_have_the_bits_of_whole_updates(comm, optimizer):
    """By processes and by threads."""
    choices = {"optimizer": optimizer, "iterations": 4, "fusion": "none"}
    digests = {trained(update=update, **choices)["params_sha256"] for update in ("full", "sharded")}
    digests.add(trained(update="sharded", threads=comm.size, **choices)["params_sha256"])
    assert len(set().union(*comm.allgather(digests))) == 1


@pytest.mark.parametrize("weights", ["measured", "given"])
def test_weights_leave_the_parameters_of_one_process(comm, weights):
    """To rounding; and the same ones on all ranks, whoever updates."""
    given = "measured" if weights == "measured" else tuple(range(1, comm.size + 1))
    choices = {"dtype": "fp64", "iterations": 6, "batch": 30}
    found = [trained(update=update, weights=given, **choices) for update in ("full", "sharded")]
    digests = {report["params_sha256"] for report in found} if weights == "given" else {found[0]["params_sha256"]}
    assert len(set().union(*comm.allgather(digests))) == 1
    assert found[1]["loss"] == pytest.approx(trained(threads=1, **choices)["loss"], rel=1e-6)


# The script of docs/how-to/model.md under mpirun, on a communicator of mpi4py.


def test_the_script_of_the_page_trains(capsys):
    script, _ = session_script()
    exec(script, {})
    assert float(capsys.readouterr().out.removeprefix("loss ")) < 0.05


# What tests/training/test_tuning.py shows of threads holds for processes: all ranks cut alike, whatever clocks say.


@pytest.mark.parametrize("schedule", ["wfbp", "dear-eager"])
def test_all_ranks_cut_alike(comm, schedule):
    iterations = 90 if schedule == "dear-eager" else 55  # its order is decided in three iterations after each cut
    found = tuned(comm, comm.rank, comm.size, iterations=iterations, fusion=f"bo:{RANGE}", schedule=schedule)
    check_trials(comm.allgather(found), comm.size)


@pytest.mark.parametrize("link", [None, parse_link("10gbit,50us")], ids=["timed", "modelled"])
def test_all_ranks_cut_as_was_predicted(comm, link):
    found = run_world(lambda world: tuned(world, comm.rank, comm.size, iterations=10, fusion="auto"), link=link)
    answers = comm.allgather(found)
    assert answers == answers[:1] * comm.size
    trials, fusion, _, _, over = found
    assert over
    assert fusion in dict(trials)


def test_a_range_without_a_choice_is_refused_on_all_ranks(comm):
    with pytest.raises(ArgumentError, match=r"'bo:1KB..2KB': all sizes from 1KB to 2KB cut this model into") as error:
        tuned(comm, comm.rank, comm.size, iterations=1, fusion="bo:1KB..2KB")
    assert len(set(comm.allgather(str(error.value)))) == 1


# Processes under mpirun have the bits that the golden file has of threads.

SAMPLE = 41  # every so many cases


def test_the_bits_of_threads(comm, tmp_path):
    folder = Path(comm.bcast(str(tmp_path)))
    if comm.rank == 0:
        write_data(folder / "data.npz")
    comm.barrier()
    known = parameters()
    for options in list(trainings())[comm.size :: SAMPLE]:
        wanted = known[f"{options} --threads {comm.size}"]
        by_time = any(f"--fusion {name}" in options for name in BY_TIME)  # buckets and bits vary with measured times
        if len(wanted) == 2 and not by_time:  # trained, and with the same bits on all processors
            assert run(*command(options, folder)).exit_code == 0, options
            comm.barrier()
            assert reported(folder) == wanted, options
            comm.barrier()


# Processes under mpirun have the bits of one thread, on any number of ranks.

CASES = installed(
    {"model": "mlp", "optimizer": "sgd", "algorithm": "auto", "clip": 0.1},
    {"model": "mlp", "optimizer": "adamw", "schedule": "wfbp", "accumulate": 2, "fusion": "25MB"},
    {"model": "cnn", "optimizer": "muon", "schedule": "dear-eager", "update": "sharded", "batch": 16},
    {"model": "gpt", "data": README, "context": 8, "batch": 16, "schedule": "fsdp", "algorithm": "ordered"},
    {"model": "cnn", "optimizer": "adamw", "wire": "fixed32", "algorithm": "ring", "batch": 16, "clip": 0.1},
)


def bits(**choices):
    report = trained(**{"invariant": 8, "iterations": 4} | choices)
    return report["params_sha256"], report["loss"]


@pytest.mark.parametrize("choices", CASES, ids=str)
def test_the_bits_of_one_thread(comm, choices):
    found = comm.allgather(bits(**choices))
    assert found == [bits(threads=1, **choices)] * comm.size


def test_the_bits_do_not_depend_on_hosts(comm):
    link = parse_links("10gbit,1us/1gbit,10us,per_host=2") if comm.size in (2, 4) else None
    assert bits(link=link, algorithm="auto") == bits(threads=1)


def test_a_checkpoint_of_another_number_of_ranks(comm, tmp_path):
    file = comm.bcast(tmp_path / "bits.npz")
    if comm.rank == 0:
        bits(threads=comm.size + 1, saving=Saving(file), iterations=2)
    comm.barrier()
    assert bits(saving=Saving(file, resume=True)) == bits(threads=1)
