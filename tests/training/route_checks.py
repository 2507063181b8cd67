"""A small model, trained on any route, proved or not, by an engine that is as early, or as late, as it can be."""

from contextlib import contextmanager
from functools import cache

import numpy as np

import dear_mpi.training.choice
import dear_mpi.training.session
from dear_mpi.collectives.program.cost import Network
from dear_mpi.collectives.transports.loopback import run_loopback
from dear_mpi.collectives.transports.transport import Wrapper
from dear_mpi.models.layers import Dense, Gelu, SoftmaxCrossEntropy
from dear_mpi.training import SGD, Session
from dear_mpi.training.fabric.live import Engine
from dear_mpi.training.fabric.plan_cost import plan_costs
from dear_mpi.training.routes.find import FULL, ROUTES
from dear_mpi.training.routes.proof import Proof, RouteError, prove
from tests.training_checks import Wide, steps

RANKS = 3
MINE = "mine"


class OnHosts(Wrapper):
    """A transport whose ranks are on these hosts, as they are told."""

    def __init__(self, below, hosts):
        super().__init__(below)
        self.hosts = tuple(hosts)


class OwnThread(Engine):
    """Carries out what is started on the thread that starts it, or that waits for it."""

    def __init__(self, streams):
        super().__init__(streams)
        self.queue, self.items = self, []

    def serve(self):
        """Nothing: the thread ends."""

    def put(self, item):
        if item is not None:
            self.items.append(item)
            _, handle = item
            wait = handle.wait
            handle.wait = lambda: (self.run(), wait())

    def run(self):
        while self.items:
            turn, handle = self.items.pop(0)
            handle.run(self.log, turn)
            if turn.ends:
                handle.end()


class Early(OwnThread):
    """As soon as it is started."""

    def put(self, item):
        super().put(item)
        self.run()


class Late(OwnThread):
    """When somebody waits."""


def layers():
    draw = np.random.default_rng(1)
    found = [Dense("first", draw.standard_normal((6, 20))), Gelu(), Dense("last", draw.standard_normal((20, 4)))]
    found[0].parameters[0].rebind = False  # packed and unpacked
    return found


@contextmanager
def believed(route):
    """Let a route be found by the name ``MINE``, as if it were proved."""
    ROUTES[MINE] = route
    proved = dear_mpi.training.choice.prove
    dear_mpi.training.choice.prove = lambda _: Proof(True, True, True, "equal", True)
    try:
        yield
    finally:
        del ROUTES[MINE]
        dear_mpi.training.choice.prove = proved


@contextmanager
def engines(kind):
    """Let sessions have this engine."""
    dear_mpi.training.session.Engine = kind
    try:
        yield
    finally:
        dear_mpi.training.session.Engine = Engine


def trained(route, *, schedule="dear", engine=Engine, iterations=3, ranks=RANKS):
    """The parameters of each rank, or what went wrong. The last rank is on a host of its own."""

    def body(transport):
        transport = OnHosts(transport, [*[0] * (ranks - 1), 1])
        options = {"schedule": schedule, "route": MINE, "algorithm": "ring", "fusion": "cut:512B"}
        options["optimizer"] = SGD(0.1, momentum=0.9)
        with Session(layers(), SoftmaxCrossEntropy(), transport, **options) as session:
            session.check_alike = lambda place: session.flush()  # the caller looks at each rank
            return steps(session, iterations)

    with believed(route), engines(engine):
        try:
            return run_loopback(ranks, body)
        except Exception as error:
            return f"{type(error).__name__}: {error}"


@cache
def verdict(route):
    """What is said of a route, or its proof."""
    try:
        return prove(route)
    except RouteError as error:
        return str(error)


def names_a_place(name, found):
    """A refusal of this route has its name, a buffer and a bucket."""
    return found.startswith(f"route '{name}': ") and "buffer '" in found and " of bucket 0" in found


def check_refused_or_alike(name, mutant, iterations):
    """A mutant of a route whose sums are not exact: if it is proved, all ranks have the same values."""
    found = verdict(mutant)
    if isinstance(found, str):
        assert names_a_place(name, found)
    else:
        (alike,) = {tuple(trained(mutant, engine=engine, iterations=iterations)) for engine in (Early, Late)}
        assert len(set(alike)) == 1


def sequential(**how):
    """What all must come to."""
    return trained(FULL, schedule="sequential", **how)


def bytes_between(wire, hosts, count=1 << 16):
    """That all ranks send to other hosts in an iteration of so many gradients, by the programs of ``hierarchical``."""

    def body(transport):
        how = {"wire": wire, "algorithm": "hierarchical", "fusion": "25MB"}
        layers, transport = [Wide(np.zeros(count, np.float32))], OnHosts(transport, hosts)
        with Session(layers, SoftmaxCrossEntropy(), transport, **how) as of:
            (schedule,), fabric = of.group.schedules.values(), of.group.fabric
            stages = (stage for name in schedule.collectives for stage in fabric.route.collectives(name))
            plans = [fabric.plan(stage, fabric.buckets[0]) for stage in stages]
            sent = [pair for each in plan_costs(plans, Network()) for pair in each.link_nbytes.items()]
            return sum(nbytes for (sender, receiver), nbytes in sent if hosts[sender] != hosts[receiver])

    return run_loopback(len(hosts), body)[0]
