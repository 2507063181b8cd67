"""Recipes of users: a loss with parameters of its own, and TAMUNA, beside references in float64."""

import numpy as np
import pytest

from dear_mpi.collectives.program.errors import AgreedError
from dear_mpi.contrib.recipes import auc, logistic, participants
from dear_mpi.contrib.recipes.participants import WHO, Participants
from dear_mpi.contrib.recipes.tamuna import Masks
from dear_mpi.ranks.world import run_world
from dear_mpi.training import SGD, Session
from dear_mpi.training.routes.find import find_route
from dear_mpi.training.routes.proof import prove
from tests.rooms import ROOT
from tests.training_checks import on_all as run_on_all

FILE = f"{ROOT}/dear_mpi/contrib/recipes/tamuna.py"


def test_a_saddle_descends_and_ascends():
    """All gradients are differences in float64; alpha's has the other sign."""
    draw = np.random.default_rng(3)
    layers, loss = auc.build((5,), 2, draw, np.dtype("float64"), p=0.2)
    x, targets = draw.standard_normal((9, 5)), (np.arange(9) < 3).astype(int)
    layers[-1].own.value[...] = 0.3, -0.2, 0.4

    def value():
        rows = x
        for layer in layers:
            rows = layer.forward(rows)
        return float(loss.forward(rows, targets))

    value()
    dy = loss.backward(2.0)
    for layer in reversed(layers):
        dy = layer.backward(dy)
    for parameter in (parameter for layer in layers for parameter in layer.parameters):
        signs = np.ones_like(parameter.value)
        if parameter is layers[-1].own:
            signs[2] = -1
        for at in [*np.ndindex(parameter.value.shape)][:12]:
            before = parameter.value[at]
            either = []
            for step in (1e-6, -1e-6):
                parameter.value[at] = before + step
                either.append(value())
            parameter.value[at] = before
            expected = 2.0 * (either[0] - either[1]) / 2e-6 * signs[at]
            assert parameter.grad[at] == pytest.approx(expected, rel=1e-5, abs=1e-7), parameter.name


def test_the_saddle_is_where_the_paper_says():
    """For fixed scores a and b are the means of both classes, and alpha is their difference."""
    h, targets, p = np.array([0.9, 0.6, 0.1, 0.3, 0.2]), np.array([1, 1, 0, 0, 0]), 0.4
    best = np.array([0.75, 0.2, 0.2 - 0.75])
    loss = auc.AucLoss(p)
    loss.forward(np.column_stack([h, np.broadcast_to(best, (5, 3))]), targets)
    assert np.abs(loss.backward(1.0)[:, 1:].sum(0)).max() < 1e-12


def test_the_auc_counts_pairs():
    assert auc.auc(np.array([3.0, 1.0, 2.0, 1.0]), np.array([1, 1, 0, 0])) == (1 + 1 + 0 + 0.5) / 4


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_what_the_loss_trains_is_averaged_with_the_rest(ranks):
    """Between the ends of rounds each rank has its own a, b and alpha; afterwards the mean of all."""

    def body(world):
        (x, y), _ = auc.rare()
        layers, loss = auc.build(x.shape[1:], 2, np.random.default_rng(0), x.dtype)
        found = []
        with Session(layers, loss, world, schedule="local:3", optimizer=SGD(lr=1.0)) as session:
            draw = np.random.default_rng(world.rank)
            for _ in range(3):
                some = draw.integers(0, len(x), 16)
                session.step(x[some], y[some])
                session.flush()
                found.append(layers[-1].own.value.copy())
        return found

    found = run_on_all(body, ranks)
    within, after = (np.array([each[at] for each in found]) for at in (1, 2))
    assert len(np.unique(within, axis=0)) == ranks
    assert (after == after[0]).all()
    assert after[0].all()


@pytest.mark.parametrize("count", [1, 7, 16])
@pytest.mark.parametrize(("ranks", "clients", "senders"), [(2, None, 2), (5, None, 2), (5, 4, 3), (8, 4, 4)])
def test_masks_share_each_coordinate_among_the_clients(ranks, clients, senders, count):
    masks = Masks(3, senders, clients)
    rounds = [[at.tolist() for at in masks.places(count, ranks, update, (40, 1))] for update in range(12)]
    assert rounds[0] == rounds[1] == rounds[2]
    if clients:
        assert any(rounds[0] != other for other in rounds[3:])
    for places in rounds:
        assert np.bincount(np.concatenate(places).astype(int), minlength=count).tolist() == [senders] * count
        assert sum(bool(at) for at in places) <= (clients or ranks)
        assert max(map(len, places)) <= -(-count * senders // (clients or ranks))


def reference(problem, masks, ranks, rounds, count):
    """TAMUNA as its authors write it, in float64: x and h of all clients, with masks as arrays of 0 and 1."""
    x, h, d = np.zeros((ranks, count)), np.zeros((ranks, count)), problem.best.size
    shard, p = count // ranks, 1 / masks.steps
    eta = p * ranks * (masks.senders - 1) / (masks.senders * (ranks - 1))
    for number in range(rounds):
        for _ in range(masks.steps):
            g = np.zeros_like(x)
            for client in range(ranks):
                g[client, :d] = problem.gradient(problem.x[client], x[client, :d])
            x = x - problem.gamma * (g + problem.mu * x - h)
        q = np.zeros_like(x)
        for owner in range(ranks):
            for client, at in enumerate(masks.places(shard, ranks, number * masks.steps, (0, owner))):
                q[client, owner * shard + at] = 1
        mean = (q * x).sum(0) / masks.senders
        h = h + eta / problem.gamma * q * (mean - x)
        x = np.broadcast_to(mean, x.shape)
    return mean[:d], h


def user_route(folder, spelt):
    (folder / "mine.py").write_text(f"from dear_mpi.contrib.recipes.tamuna import tamuna\n\nroute = tamuna({spelt})\n")
    return f"{folder / 'mine.py'}:route"


@pytest.mark.parametrize(("ranks", "spelt", "masks"), [
    (2, "3, 2", Masks(3, 2)),
    (3, "4, 2", Masks(4, 2)),
    (5, "2, 3", Masks(2, 3)),
    (5, "3, 2, clients=3", Masks(3, 2, 3)),
])  # fmt: skip
def test_tamuna_is_the_algorithm_of_its_authors(ranks, spelt, masks, tmp_path):
    problem = logistic.Problem(clients=ranks, features=30, kappa=100)
    route = user_route(tmp_path, spelt)

    def body(world):
        margin = logistic.Margin(30)
        how = {"route": route, "optimizer": SGD(lr=problem.gamma, weight_decay=problem.mu)}
        with Session([margin], logistic.Logistic(), world, schedule="dear", **how) as session:
            for _ in range(5 * masks.steps):
                session.step(problem.x[world.rank], np.ones(50))
            session.flush()
            control = session.group.arena.buffers["control"].copy()
        return margin.w.value.copy(), control

    found = run_on_all(body, ranks)
    values, h = reference(problem, masks, ranks, 5, len(found[0][1]))
    for rank, (own, control) in enumerate(found):
        assert np.array_equal(own, found[0][0])
        assert np.allclose(own, values, rtol=1e-10, atol=1e-13)
        assert np.allclose(control, problem.gamma * h[rank], rtol=1e-9, atol=1e-13)
    assert np.abs(sum(control for _, control in found)).max() < 1e-13


def test_it_comes_to_the_optimum_where_averaging_stays_away(tmp_path):
    """Clients have data of their own, so that averages of local steps go to another place."""
    problem, mine = logistic.Problem(clients=4, features=20, kappa=50), user_route(tmp_path, "5, 2")
    rounds, _ = run_world(lambda world: logistic.train(world, problem, mine, 5, most=200), threads=4)
    assert rounds < 200
    local = f"{ROOT}/tests/routes/local.py:local"
    _, values = run_world(lambda world: logistic.train(world, problem, local, 4, most=rounds), threads=4)
    assert problem.error(values) > 1e-6


def test_control_variates_are_in_checkpoints(tmp_path):
    """A run that goes on comes to the bits of one that did not stop, within a round, too."""
    problem, route = logistic.Problem(clients=3, features=20, kappa=100), user_route(tmp_path, "4, 2")

    def run(world, iterations, *, at=None, resume=False):
        margin = logistic.Margin(20)
        how = {"route": route, "optimizer": SGD(lr=problem.gamma, weight_decay=problem.mu)}
        with Session([margin], logistic.Logistic(), world, schedule="dear", **how) as session:
            if resume:
                session.resume(tmp_path / "state.npz")
            for number in iterations:
                session.step(problem.x[world.rank], np.ones(50))
                if number == at:
                    session.save(tmp_path / "state.npz")
        return margin.w.value.copy()

    for at in (7, 9):
        whole = run_world(lambda world, at=at: run(world, range(16), at=at), threads=3)
        again = run_world(lambda world, at=at: run(world, range(at + 1, 16), resume=True), threads=3)
        assert np.array_equal(whole, again)


def test_the_routes_of_the_files_are_proved():
    for name in ("route", "half", "fewer"):
        proof = prove(find_route(f"{FILE}:{name}"))
        assert (proof.alike, proof.exact, proof.state) == (False, False, "own")
    for name in WHO:
        proof = prove(find_route(f"{participants.__file__}:{name}"))
        assert (proof.alike, proof.exact, proof.state) == (False, False, "own")


def test_ranks_send_their_share_of_the_floats():
    """A row of each shard for each rank: s / c of them, rounded up to 16 bytes."""
    route = find_route(f"{FILE}:fewer")
    assert route.nbytes("sent", 8192, wire=4, values=4, ranks=8) == 8192 * 4 * 2 / 8
    assert route.nbytes("mean", 8192, wire=4, values=4, ranks=8) == 8192 * 4


@pytest.mark.parametrize(("spelt", "ranks"), [("3, 1", 3), ("3, 3", 2), ("3, 2, clients=4", 3), ("3, 3, clients=2", 3)])
def test_masks_that_cannot_be_are_refused_on_all_ranks(spelt, ranks, tmp_path):
    problem, route = logistic.Problem(clients=ranks, features=8, kappa=10), user_route(tmp_path, spelt)
    with pytest.raises(AgreedError, match="2 <= senders <= clients <= ranks must be, not"):
        run_world(lambda world: logistic.train(world, problem, route, 3, most=1), threads=ranks)


def rounds_of(folder, spelt):
    """A file of a user with a route of rounds in which some take part."""
    head = "from dear_mpi.contrib.recipes.participants import Participants, rounds\n\n"
    (folder / "mine.py").write_text(f"{head}route = rounds(Participants({spelt}), 3)\n")
    return f"{folder / 'mine.py'}:route"


@pytest.mark.parametrize(("ranks", "spelt", "who"), [
    (1, "1", Participants(1)),
    (3, "2", Participants(2)),
    (4, "4", Participants(4)),
    (5, "3, seed=7", Participants(3, seed=7)),
    (5, "2, seconds=(3, 1, 2, 9, 4)", Participants(2, (3, 1, 2, 9, 4))),
])  # fmt: skip
def test_a_round_ends_with_the_mean_of_those_that_take_part(ranks, spelt, who, tmp_path):
    problem = logistic.Problem(clients=ranks, features=30, kappa=100)
    route, lr = rounds_of(tmp_path, spelt), 0.1

    def body(world):
        margin, own = logistic.Margin(30), np.zeros((ranks, 30))
        how = {"route": route, "optimizer": SGD(lr=lr)}
        with Session([margin], logistic.Logistic(), world, schedule="dear", **how) as session:
            for number in range(4):
                for _ in range(3):
                    session.step(problem.x[world.rank], np.ones(50))
                    for each, x in zip(own, problem.x, strict=True):
                        each -= lr * problem.gradient(x, each)
                session.flush()
                own[:] = own[sorted(who.of(number, ranks))].mean(0)
        return margin.w.value.copy(), own[0]

    found = run_on_all(body, ranks)
    for values, expected in found:
        assert np.array_equal(values, found[0][0])
        assert np.allclose(values, expected, rtol=1e-10, atol=1e-13)


def test_the_fastest_take_part_or_others_in_each_round():
    assert Participants(2, (3, 1, 2, 9, 4)).of(5, 5) == {1, 2}
    drawn = [Participants(2).of(number, 5) for number in range(20)]
    assert {len(each) for each in drawn} == {2}
    assert set.union(*drawn) == set(range(5))


@pytest.mark.parametrize(("spelt", "message"), [
    ("4", "participants must be from 1 to the number of ranks, 3, not 4"),
    ("0", "participants must be from 1 to the number of ranks, 3, not 0"),
    ("1, seconds=(1, 2)", "seconds must be a number for each of 3 ranks, not 2 numbers"),
])  # fmt: skip
def test_participants_that_cannot_be_are_refused_on_all_ranks(spelt, message, tmp_path):
    problem, route = logistic.Problem(clients=3, features=8, kappa=10), rounds_of(tmp_path, spelt)
    with pytest.raises(AgreedError, match=message):
        run_world(lambda world: logistic.train(world, problem, route, 3, most=1), threads=3)


def test_slow_ranks_that_take_no_part_are_no_loss_to_the_others():
    """As many rounds, or a few more: like data, three quarters of the examples."""
    rounds = [run_world(lambda world, name=name: participants.train(world, name)[0], threads=8) for name in WHO]
    assert max(rounds) <= 1.5 * min(rounds) < 50
