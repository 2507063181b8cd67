"""A prediction for a model with prices of one's own, which no network has."""

from dataclasses import replace

from dear_mpi.simulate.sweep import buckets_of
from dear_mpi.training.fabric.rules import Rules
from dear_mpi.training.routes.find import FULL
from dear_mpi.training.schedules import find_schedule
from dear_mpi.training.virtual_trainer import predict


def predicted(model, name, fusion, prices, *, kind=None, route=FULL, judged=False, iterations=1, **costs):
    """An iteration of a schedule; ``prices`` gives the price of some buckets, and ``costs`` are further ones."""
    kind = kind or find_schedule(name)
    buckets = buckets_of(model, kind, route, fusion, prices)
    rules = Rules(name, buckets, kind, judged=judged, route=route)
    return predict(kind, rules, replace(model.costs, price=prices(buckets), **costs), iterations=iterations)
