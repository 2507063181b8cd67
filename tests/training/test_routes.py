"""A route that is accepted trains to the bits of ``sequential``; one that is refused is seen to go wrong."""

import os
import random
from dataclasses import replace
from functools import cache

import pytest

from dear_mpi.training.routes import MAIN, WIRE, Pack, Route, Unpack, Update, all_gather, all_reduce, reduce_scatter
from dear_mpi.training.routes.find import FULL, SHARDED, find_route
from dear_mpi.training.routes.proof import RouteError, prove
from tests.rooms import ROOT
from tests.training.route_checks import Early, Late, sequential, trained

USERS = {name: find_route(f"{ROOT}/tests/routes/{name}.py:{name}") for name in ("half", "local", "int8")}
OTHER_LINE = {"gradients": "values", "values": "gradients", "codes": "values"}
RANDOM = int(os.environ.get("ROUTES", "200"))
EXACT = sequential()
assert isinstance(EXACT, list), EXACT


def test_ours_have_the_same_bits_as_whole_updates():
    full, sharded = prove(FULL), prove(SHARDED)
    assert (full.alike, full.exact, full.state, full.summed) == (True, True, "equal", True)
    assert (sharded.alike, sharded.exact, sharded.state, sharded.summed) == (True, True, "shard", True)


def test_users_routes_are_what_they_say():
    found = {name: prove(route) for name, route in USERS.items()}
    assert found["half"].state == "shard"
    assert (found["local"].alike, found["local"].state, found["local"].summed) == (False, "own", False)
    assert (found["int8"].alike, found["int8"].exact, found["int8"].state) == (True, False, "equal")


def with_legs(route, legs, border):
    """A route with other legs, of which the first so many are on the way out."""
    return replace(route, out=tuple(legs[:border]), back=tuple(legs[border:]))


def mutants(route):
    """Each leg left out, doubled, swapped with the next one, of another line, on another thread."""
    legs, border = route.legs, len(route.out)
    for number, leg in enumerate(legs):
        before, after = legs[:number], legs[number + 1 :]
        out = number < border
        yield f"{leg} left out", with_legs(route, before + after, border - out)
        yield f"{leg} doubled", with_legs(route, (*before, leg, leg, *after), border + out)
        if after:
            yield f"{leg} swapped", with_legs(route, (*before, after[0], leg, *after[1:]), border)
        line = getattr(leg, "line", None)
        if line:
            yield (
                f"{leg} of another line",
                with_legs(route, (*before, replace(leg, line=OTHER_LINE[line]), *after), border),
            )
        other = replace(leg, on=MAIN if leg.on == WIRE else WIRE)
        yield f"{leg} on another thread", with_legs(route, (*before, other, *after), border)


@cache
def verdict(route):
    """What is said of a route, or its proof."""
    try:
        return prove(route)
    except RouteError as error:
        return str(error)


MUTANTS = [
    (name, what, mutant)
    for name, route in {"full": FULL, "sharded": SHARDED}.items()
    for what, mutant in mutants(route)
]


@pytest.mark.parametrize(("name", "what", "mutant"), MUTANTS, ids=[f"{name}, {what}" for name, what, _ in MUTANTS])
def test_a_mutant_is_refused_or_has_the_same_bits(name, what, mutant):
    found = verdict(mutant)
    if isinstance(found, str):
        assert found.startswith(f"route '{name}': ")
        assert "line '" in found
        assert " of bucket 0" in found
        assert goes_wrong(mutant), found
    else:
        assert found.exact
        assert {tuple(trained(mutant, engine=engine)) for engine in (Early, Late)} == {tuple(EXACT)}


def goes_wrong(route):
    """Whether it trains to other bits, on some engine, or fails."""
    return any(trained(route, engine=engine) != EXACT for engine in (Late, Early))


USERS_MUTANTS = [(name, what, mutant) for name, route in USERS.items() for what, mutant in mutants(route)]


@pytest.mark.parametrize(
    ("name", "what", "mutant"), USERS_MUTANTS, ids=[f"{name}, {what}" for name, what, _ in USERS_MUTANTS]
)
def test_a_mutant_of_a_users_route_is_refused_or_ranks_end_alike(name, what, mutant):
    found = verdict(mutant)
    if isinstance(found, str):
        assert "line '" in found
        assert " of bucket 0" in found
    else:
        iterations = 2 * mutant.period
        (alike,) = {tuple(trained(mutant, engine=engine, iterations=iterations)) for engine in (Early, Late)}
        assert len(set(alike)) == 1


def legs_to_draw():
    for on in (MAIN, WIRE):
        yield from (Pack(on=on), Unpack(on=on), Update(on=on), Update(on=on, shard=True))
    for line in ("gradients", "values"):
        yield from (reduce_scatter(line), all_gather(line), all_reduce(line))


LEGS = tuple(legs_to_draw())


def random_route(number):
    """One of ours, with one to three changes."""
    draw = random.Random(number)
    route = draw.choice((FULL, SHARDED))
    legs, border = list(route.legs), len(route.out)
    for _ in range(draw.randint(1, 3)):
        place = draw.randrange(len(legs))
        change = draw.choice(("drop", "insert", "replace", "swap", "border"))
        if change == "drop" and len(legs) > 2:
            del legs[place]
        elif change == "insert":
            legs.insert(place, draw.choice(LEGS))
        elif change == "replace":
            legs[place] = draw.choice(LEGS)
        elif change == "swap":
            other = draw.randrange(len(legs))
            legs[place], legs[other] = legs[other], legs[place]
        else:
            border = draw.randint(1, len(legs) - 1)
    return with_legs(Route(f"number {number}", (), ()), legs, min(border, len(legs) - 1))


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
