"""Optima and certificates: against brute force on 4 ranks, and on random graphs with ports."""

import os

import pytest

from dear_mpi.contrib.networks.bound import cut_bound, least_steps
from dear_mpi.contrib.networks.exact import improved
from dear_mpi.contrib.networks.greedy import Schedule, search
from tests.contrib.networks.graphs import check_schedule, fewest_steps, random_graph

pytest.importorskip("ortools.sat.python.cp_model", reason="needs OR-tools: pip install dear-mpi[synth]")
EVERY = bool(os.environ.get("EVERY"))
SMALL, LARGE = (200, 100) if EVERY else (12, 6)


def best(graph, parts, **how):
    least = least_steps(graph, parts, cut_bound(graph))
    return improved(graph, search(graph, parts, least), least, **how)


def test_brute_force_agrees_on_four_ranks():
    for seed in range(SMALL):
        graph = random_graph(4, seed, caps=(1, 1, 2), extra=seed % 3, port=(None, 1, 2)[seed % 3])
        schedule, needed = best(graph, 1)
        check_schedule(graph, schedule)
        assert schedule.steps == needed == fewest_steps(graph), seed


def test_without_greedys_help_too():
    """A bad schedule is improved to the optimum."""
    for seed in range(SMALL // 4):
        graph = random_graph(4, seed, extra=2, port=2)
        known = search(graph, 1, 0)
        schedule, needed = improved(graph, Schedule(1, known.steps + 3, known.moves), 1)
        assert schedule.steps == needed == fewest_steps(graph), seed


def test_optima_of_five_to_eight_ranks_are_found_and_certified():
    """With ports, two chunks per rank and unequal links."""
    solved = 0
    for seed in range(LARGE):
        graph = random_graph(5 + seed % 4, seed, port=2)
        schedule, needed = best(graph, 2)
        check_schedule(graph, schedule)
        solved += schedule.steps == needed
    assert solved >= 0.95 * LARGE


def test_a_limit_leaves_what_is_known():
    graph = random_graph(8, 1, port=2)
    known = search(graph, 2, 0)
    schedule, needed = improved(graph, known, 1, limit=1e-6)
    assert schedule.steps <= known.steps
    assert needed <= schedule.steps
