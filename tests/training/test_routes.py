"""A route that is accepted trains to the bits of ``sequential``; one that is refused is seen to go wrong."""

import os
import random
from dataclasses import replace
from shutil import copy

import numpy as np
import pytest

from dear_mpi.collectives.program.errors import AgreedError
from dear_mpi.collectives.program.hosts import BETWEEN, INSIDE
from dear_mpi.collectives.transports.loopback import run_loopback
from dear_mpi.models.layers import SoftmaxCrossEntropy
from dear_mpi.ranks.world import run_world
from dear_mpi.training import Adam, Session
from dear_mpi.training.routes import ENGINE, MAIN, Pack, Route, Unpack, Update, all_gather, all_reduce, reduce_scatter
from dear_mpi.training.routes.find import FULL, SHARDED, find_route
from dear_mpi.training.routes.proof import prove
from dear_mpi.training.routes.route import joined
from dear_mpi.training.routes.stages import Collective
from dear_mpi.training.runs.config import Config
from dear_mpi.training.runs.train import Saving, train
from dear_mpi.training.schedules import SCHEDULES
from tests.cli_checks import invoke, succeed
from tests.pages import Page
from tests.rooms import ROOT
from tests.training.route_checks import (
    RANKS,
    Early,
    Late,
    believed,
    check_refused_or_alike,
    layers,
    names_a_place,
    sequential,
    trained,
    verdict,
)
from tests.training_checks import batch, settings, steps

NAMES = {name: f"{ROOT}/tests/routes/{name}.py:{name}" for name in ("half", "local", "int8", "squash")}
USERS = {name: find_route(path) for name, path in NAMES.items()}
OTHER_BUFFER = {"gradients": "values", "values": "gradients"}
OTHER_BUFFER |= {"codes": "values", "first codes": "codes", "delta": "values"}
RANDOM = int(os.environ.get("ROUTES", "200"))
EXACT = sequential()
assert isinstance(EXACT, list), EXACT


def test_ours_have_the_same_bits_as_whole_updates():
    full, sharded = prove(FULL), prove(SHARDED)
    assert (full.alike, full.exact, full.state, full.summed) == (True, True, "equal", True)
    assert (sharded.alike, sharded.exact, sharded.state, sharded.summed) == (True, True, "shard", True)


@pytest.mark.parametrize("when", [{"first": 3}, {"until": 3}, {"every": 2, "first": 1}])
def test_halves_of_other_iterations_are_not_joined(when):
    """One that is late took the gathering of the iterations before along."""
    halves = reduce_scatter("gradients", **when), all_gather("gradients")
    assert joined(halves) == halves
    whole = reduce_scatter("gradients", **when), all_gather("gradients", **when)
    assert joined(whole) == (all_reduce("gradients", **when),)
    averaged = joined((reduce_scatter("values", op="average"), all_gather("values")))
    assert averaged == (all_reduce("values", op="average"),)


def test_users_routes_are_what_they_say():
    found = {name: prove(route) for name, route in USERS.items()}
    assert found["half"].state == "shard"
    assert (found["local"].alike, found["local"].state, found["local"].summed) == (False, "own", False)
    assert (found["int8"].alike, found["int8"].exact, found["int8"].state) == (True, False, "equal")
    assert (found["squash"].alike, found["squash"].exact, found["squash"].state) == (True, False, "shard")


def test_a_stage_of_ones_own_changes_what_is_summed():
    """The stage of the page, at a limit that changes no bit, and at one that changes much."""
    route = USERS["squash"]
    pack, stage, collective = route.out
    mild, strong = (replace(route, out=(pack, replace(stage, limit=limit), collective)) for limit in (1e30, 0.01))
    assert trained(mild) == EXACT != trained(strong)
    shown = {block.partition("\n")[0]: block.partition("\n")[2] for block in Page.of("how-to/route.md").blocks}
    for name in ("half", "local", "int8", "squash"):
        assert shown[f"# my_{name}.py"] == (ROOT / "tests" / "routes" / f"{name}.py").read_text()


def with_stages(route, stages, border):
    """A route with other stages, of which the first so many are on the way out."""
    return replace(route, out=tuple(stages[:border]), back=tuple(stages[border:]))


def mutants(route):
    """Each stage left out, doubled, swapped with the next one, of another line or level, on another thread."""
    stages, border = route.stages, len(route.out)
    for number, stage in enumerate(stages):
        before, after = stages[:number], stages[number + 1 :]
        out = number < border
        yield f"{stage} left out", with_stages(route, before + after, border - out)
        yield f"{stage} doubled", with_stages(route, (*before, stage, stage, *after), border + out)
        if after:
            yield f"{stage} swapped", with_stages(route, (*before, after[0], stage, *after[1:]), border)
        line = getattr(stage, "buffer", None)
        if line:
            yield (
                f"{stage} of another line",
                with_stages(route, (*before, replace(stage, buffer=OTHER_BUFFER[line]), *after), border),
            )
        if stage.level:
            for level in (each for each in (INSIDE, BETWEEN, "") if each != stage.level):
                other = replace(stage, level=level)
                yield f"{stage} as if {level or 'all at once'}", with_stages(route, (*before, other, *after), border)
        other = replace(stage, on=MAIN if stage.on == ENGINE else ENGINE)
        yield f"{stage} on another thread", with_stages(route, (*before, other, *after), border)


MUTANTS = [
    (name, what, mutant)
    for name, route in {"full": FULL, "sharded": SHARDED}.items()
    for what, mutant in mutants(route)
]


@pytest.mark.parametrize(("name", "what", "mutant"), MUTANTS, ids=[f"{name}, {what}" for name, what, _ in MUTANTS])
def test_a_mutant_is_refused_or_has_the_same_bits(name, what, mutant):
    found = verdict(mutant)
    if isinstance(found, str):
        assert names_a_place(name, found)
        assert goes_wrong(mutant), found
    else:
        assert found.exact
        assert {tuple(trained(mutant, engine=engine)) for engine in (Early, Late)} == {tuple(EXACT)}


def goes_wrong(route):
    """Whether it trains to other bits, on some engine, or fails."""
    return any(trained(route, engine=engine) != EXACT for engine in (Late, Early))


BETWEEN_HOSTS = {
    route.name: route for route in (find_route(update, wire="int8:between") for update in ("full", "sharded"))
}
USERS_MUTANTS = [
    (name, what, mutant) for name, route in (USERS | BETWEEN_HOSTS).items() for what, mutant in mutants(route)
]


@pytest.mark.parametrize(
    ("name", "what", "mutant"), USERS_MUTANTS, ids=[f"{name}, {what}" for name, what, _ in USERS_MUTANTS]
)
def test_a_mutant_of_another_route_is_refused_or_ranks_end_alike(name, what, mutant):
    check_refused_or_alike(name, mutant, 2 * mutant.period)


def stages_to_draw():
    for on in (MAIN, ENGINE):
        yield from (Pack(on=on), Unpack(on=on), Update(on=on), Update(on=on, shard=True))
    for line in ("gradients", "values"):
        yield from (reduce_scatter(line), all_gather(line), all_reduce(line))


STAGES = tuple(stages_to_draw())


def random_route(number):
    """One of ours, with one to three changes."""
    draw = random.Random(number)
    route = draw.choice((FULL, SHARDED))
    stages, border = list(route.stages), len(route.out)
    for _ in range(draw.randint(1, 3)):
        place = draw.randrange(len(stages))
        change = draw.choice(("drop", "insert", "replace", "swap", "border"))
        if change == "drop" and len(stages) > 2:
            del stages[place]
        elif change == "insert":
            stages.insert(place, draw.choice(STAGES))
        elif change == "replace":
            stages[place] = draw.choice(STAGES)
        elif change == "swap":
            other = draw.randrange(len(stages))
            stages[place], stages[other] = stages[other], stages[place]
        else:
            border = draw.randint(1, len(stages) - 1)
    return with_stages(Route(f"number {number}", (), ()), stages, min(border, len(stages) - 1))


def test_random_routes_are_refused_exactly_where_they_go_wrong():
    accepted = 0
    for number in range(RANDOM):
        route = random_route(number)
        found = verdict(route)
        if isinstance(found, str):
            assert goes_wrong(route), f"{number}: {found}: {route}"
        else:
            accepted += 1
            assert found.exact, f"{number}: {route}"
            assert not goes_wrong(route), f"{number}: {route}"
    assert accepted > RANDOM / 20


# What users do with theirs --------------------------------------------------------------------------------------------


def run(choices, ranks=RANKS, **how):
    config = Config.of(settings(**{"model": "mlp", "schedule": "dear", "iterations": 8} | choices))
    return run_world(lambda world: train(config, world, **how), threads=ranks)


@pytest.mark.parametrize("route", USERS)
def test_a_users_route_trains_under_every_schedule_to_the_same_bits(route):
    schedules = [name for name in SCHEDULES if route != "local" or name != "fsdp"]
    choices = {"route": NAMES[route], "fusion": "cut:8KB"}
    found = [run({"schedule": name, **choices}) for name in schedules]
    assert len({report["params_sha256"] for report in found}) == 1
    assert found[0]["loss"][-1] < found[0]["loss"][0]


@pytest.mark.parametrize("route", USERS)
def test_it_goes_on_from_a_checkpoint(route, tmp_path):
    """To the same bits on as many ranks; on others it goes on."""
    choices = {"route": NAMES[route], "optimizer": "adam"}
    whole, file = run({**choices, "iterations": 12}), tmp_path / "c.npz"
    run({**choices, "iterations": 4}, saving=Saving(file))
    copy(file, tmp_path / "other.npz")
    again = run({**choices, "iterations": 12}, saving=Saving(file, resume=True))
    assert again["params_sha256"] == whole["params_sha256"]
    other = run({**choices, "iterations": 12}, ranks=2, saving=Saving(tmp_path / "other.npz", resume=True))
    assert other["loss"][4] == pytest.approx(whole["loss"][4], rel=0.3)
    assert other["loss"][-1] < other["loss"][4]


def test_what_codes_have_lost_is_shared_out_on_another_number_of_ranks():
    def body(transport, state=None):
        with Session(layers(), SoftmaxCrossEntropy(), transport, route=NAMES["int8"]) as session:
            if state is not None:
                session.load(state)
            else:
                steps(session, 1)
            return session.state(), session.group.arena.buffers["residual"].copy()

    before = run_loopback(3, body)
    after = run_loopback(2, lambda transport: body(transport, before[0][0]))
    lost, shared = (sum(line[:200] for _, line in found) for found in (before, after))
    assert abs(lost).max() > 0
    assert np.allclose(lost, shared, atol=1e-15)


@pytest.mark.parametrize(("choices", "said"), [
    ({"clip": 1.0}, "the route 'local' does not have them"),
    ({"schedule": "fsdp"}, "on the route 'local' they differ between rounds"),
    ({"schedule": "local:4"}, "schedule 'local:4' sets the route: leave out route"),
    ({"route": NAMES["int8"], "loss_scale": "dynamic"}, "what codes have lost would be of another scale"),
    ({"update": "sharded"}, "both say what buckets go through: leave out update .sharded., and the route"),
    ({"route": ""}, "route '' is unknown. Allowed: full, sharded"),
    ({"route": "mine.py:none"}, "does not exist: write it like path/to/mine.py:my_route"),
])  # fmt: skip
def test_what_does_not_go_together_is_refused(choices, said):
    with pytest.raises((AgreedError, ValueError), match=said):
        run({"route": NAMES["local"], **choices})


def test_a_round_ends_where_parameters_are_looked_at():
    """To the average of values; and the next round ends where it would have ended."""

    def body(transport):
        hashes = []
        with Session(layers(), SoftmaxCrossEntropy(), transport, route=NAMES["local"]) as session:
            for iteration in range(8):
                session.step(*batch(iteration, transport.rank))
                if iteration == 5:
                    session.check_alike()
                session.flush()
                hashes.append(session.parameters_sha256())
        return hashes

    found = zip(*run_loopback(3, body), strict=True)
    assert [len(set(each)) == 1 for each in found] == [False, False, False, True, False, True, False, True]


@pytest.mark.parametrize(
    ("choices", "taken"),
    [({}, "sharded"), ({"wire": "fp16"}, "full"), ({"algorithm": "recursive_doubling", "schedule": "wfbp"}, "full")],
)
def test_auto_takes_shards_where_that_gives_the_same_bits(choices, taken):
    report = run({"update": "auto", **choices})
    assert (report["update"], report["route"]) == (taken, taken)
    assert report["params_sha256"] == run({"update": "full", **choices})["params_sha256"]


def written(folder, out):
    (folder / "mine.py").write_text(
        f"from dear_mpi.training.routes import *\nmine = Route('mine', out={out}, back=(Update(), Unpack()))\n"
    )
    return f"{folder}/mine.py:mine"


def test_explain_shows_a_route_and_what_was_found(tmp_path):
    shown = succeed("explain", "--route", NAMES["local"])
    assert "all_gather values" in shown.output
    assert "after each round of 4 iterations all ranks have the same values" in shown.output
    wrong = invoke("explain", "--route", written(tmp_path, "(Pack(),)"))
    assert wrong.exit_code == 2
    assert "stage 1 (update all on the engine thread), at buffer 'values' of bucket 0" in wrong.output


@pytest.mark.parametrize(("stage", "said"), [
    (
        all_reduce("foo"),
        "stage 1 (all_reduce foo), at buffer 'foo' of bucket 0, must be of one of the buffers gradients, values",
    ),
    (all_reduce("state"), "must be of one of the buffers gradients, values"),
    (Collective(name="broadcast", buffer="gradients"), "must be one of reduce_scatter, all_gather, all_reduce"),
    (all_gather("gradients", every=0), "must have a whole number above 0 in every, not 0"),
    (all_gather("gradients", every=2.5), "must have a whole number above 0 in every, not 2.5"),
])  # fmt: skip
def test_stages_that_cannot_be_are_refused(stage, said):
    route = replace(FULL, out=(FULL.out[0], stage, *FULL.out[1:]))
    assert said in verdict(route)


class Undeclared(Update):
    """Reads what no stage has said to be there."""

    reads = ("gradients", "control")


def test_stages_without_a_comma_are_no_tuple(tmp_path):
    with pytest.raises(ValueError, match="must have a tuple of stages in out, not Pack"):
        find_route(written(tmp_path, "(Pack())"))


def test_a_line_that_no_stage_declares_is_refused():
    route = replace(FULL, back=(*(Undeclared(on=MAIN) if isinstance(stage, Update) else stage for stage in FULL.back),))
    assert "buffer 'control' of bucket 0, must have this buffer in buffers, with its kind" in verdict(route)


def test_codes_need_their_wire_and_are_gathered():
    codes = USERS["int8"]
    assert "must be an all_to_all or an all_gather: codes do not add up" in verdict(
        replace(codes, out=(*codes.out[:2], all_reduce("codes"), codes.out[3]))
    )
    other = replace(codes.out[3], wire=type(codes.out[3].wire)())
    assert "must have the wire that encodes this buffer, the same object" in verdict(
        replace(codes, out=(*codes.out[:3], other))
    )


def test_a_race_of_the_two_threads_is_refused():
    """Right where the engine is early, and where it is late; wrong where the update is between its two stages."""
    out = (Pack(), reduce_scatter("values", op="average"), all_gather("values"))
    back = (Update(alone=True, on=MAIN), all_reduce("values", op="average"), Unpack())
    assert "buffer 'values' of bucket 0" in verdict(Route("race", out, back))


def test_buckets_are_cut_anew_on_a_users_route():
    def body(transport):
        with Session(layers(), SoftmaxCrossEntropy(), transport, route=NAMES["int8"], fusion="none") as session:
            for number, fusion in enumerate(["none", "25MB", "cut:256B", "none"]):
                session.cut(fusion)
                for part in range(2):
                    session.step(*batch(2 * number + part, transport.rank))
            session.flush()
            return session.parameters_sha256()

    assert len(set(run_loopback(3, body))) == 1


def test_a_round_begins_where_training_goes_on():
    """Whatever was trained before, by whichever schedules."""

    def body(transport):
        def step(session, schedule, number):
            session.iterate(schedule, *batch(number, transport.rank), 4 * transport.size)

        with Session(layers(), SoftmaxCrossEntropy(), transport, schedules=["wfbp", "dear"]) as session:
            for number in range(6):
                step(session, ("wfbp", "dear")[number % 2], number)
            state = session.state()
        with Session(layers(), SoftmaxCrossEntropy(), transport, route=NAMES["local"]) as session:
            session.load(state)
            session.check_alike()
            for number in range(4):
                step(session, "dear", number)
            session.check_alike()
            return session.parameters_sha256()

    assert len(set(run_loopback(3, body))) == 1


def test_updates_are_counted_where_values_are_seldom_unpacked():
    """Adam's steps: the bits of a run without a break."""
    route = Route("seldom", FULL.out, (*FULL.back[:2], Unpack(every=2)))

    def body(transport, state=None, iterations=8):
        own = layers()
        own[0].parameters[0].rebind = True
        options = {"route": "mine", "optimizer": Adam(0.01)}
        with Session(own, SoftmaxCrossEntropy(), transport, **options) as session:
            begin = session.load(state) if state is not None else 0
            return steps(session, begin, begin + iterations), session.state(begin + iterations)

    with believed(route):
        whole = run_loopback(2, body)
        half = run_loopback(2, lambda each: body(each, None, 4))
        resumed = run_loopback(2, lambda each: body(each, half[0][1], 4))
    assert whole[0][0] == resumed[0][0]
