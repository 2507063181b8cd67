"""Links that change while a job trains."""

import json
from itertools import permutations
from types import SimpleNamespace

import numpy as np
import pytest

from dear_mpi.collectives.plans.notes import Noted, Part
from dear_mpi.collectives.program.errors import ArgumentError
from dear_mpi.contrib.networks import watch
from dear_mpi.contrib.networks.emulate import read_link
from dear_mpi.contrib.networks.graph import Graph, Port, read_graph
from dear_mpi.contrib.networks.watch import FEWEST, Links, Times, Watcher, passages_of, times_of
from dear_mpi.models.layers import Dense, SoftmaxCrossEntropy
from dear_mpi.ranks.world import run_world
from dear_mpi.training import Session
from dear_mpi.training.events.spans import Flow, Rank, Run
from dear_mpi.training.fabric import live
from tests.contrib.networks.test_graph import all_pairs, measured
from tests.training_checks import batch

RATE = 5e5  # bytes/s: a message takes milliseconds
RING = {(0, 1): 1000.0, (1, 2): 1000.0, (2, 0): 500.0}


def seen(runs):
    """The messages that ranks have noted."""
    return Run("", tuple(Rank("", (), (), rank, tuple(noted)) for rank, noted in runs.items()), len(runs)).flows


def test_a_message_begins_at_the_last_of_three_events():
    """Its start, its receive's start, and the end of the message before it."""
    send, receive = Part("starting", 0, 0, 1, False, 0, 100), Part("starting", 0, 0, 0, True, 0, 100)
    wait = receive._replace(kind="ending")
    runs = {0: [], 1: []}
    for number in range(FEWEST):
        at_s = 10.0 * number
        runs[0].append(Noted(number, {}, [send], [at_s + 1.0, at_s + 1.1]))
        runs[1].append(Noted(number, {}, [receive, wait], [at_s + 0.0, at_s + 0.1, at_s + 4.0]))
    passages = list(passages_of(seen(runs)))
    assert [(each.pair, each.nbytes, each.known) for each in passages] == [((0, 1), 100, True)] * FEWEST
    assert [each.end_s - each.begin_s for each in passages] == [3.0] * FEWEST
    late = {0: runs[0], 1: [noted.earlier(-0.5) for noted in runs[1]]}  # a clock that is behind
    assert [each.end_s - each.begin_s for each in passages_of(seen(late))] == [3.5] * FEWEST


def test_messages_that_nobody_waited_for_show_nothing():
    send, receive = Part("starting", 0, 0, 1, False, 0, 100), Part("starting", 0, 0, 0, True, 0, 100)
    wait = receive._replace(kind="ending")
    runs = range(FEWEST)
    flows = seen(
        {
            0: [Noted(number, {}, [send], [1.0, 1.1]) for number in runs],
            1: [Noted(number, {}, [receive, wait], [0.0, 3.99999, 4.0]) for number in runs],
        }
    )
    assert times_of(flows, Graph(3, RING)) == {}


ALL = dict.fromkeys(permutations(range(3), 2), 1000.0)
PORTS = tuple(Port((rank,), 1000.0, 1000.0) for rank in range(3))


def flow(pair, begin_s, seconds, nbytes):
    return Flow(pair[0], begin_s, pair[1], begin_s + seconds, Part("ending", nbytes=nbytes), begin_s, begin_s)


def exchanges(**slower):
    """Each rank sends to both others at once through its port, which takes twice as long; then to one of them."""
    for number in range(FEWEST):
        for pair in ALL:
            factor = slower.get(f"link{pair[0]}{pair[1]}", 1.0)
            yield flow(pair, 2.0 * number, max(2.0, factor) * 0.1, 100)
            yield flow(pair, 2.0 * number + 0.9, 0.002 * factor, 1)
            if pair[1] == (pair[0] + 1) % 3:
                yield flow(pair, 2.0 * number + 1.0, factor * 0.1, 100)


def test_messages_that_share_a_port_are_not_slow():
    graph = Graph(3, ALL, PORTS)
    found = times_of(exchanges(), graph)
    assert found[0, 2, 100] == [(pytest.approx(1.0), pytest.approx(2.0))] * FEWEST
    assert Links(graph).changed(found) == {}


def test_later_messages_of_another_link_do_not_excuse_a_slow_one():
    """Ranks 0 and 1 share a port into rank 2 only until the first messages would have passed."""
    graph, flows = Graph(3, ALL, PORTS), []
    for at_s in range(FEWEST):
        flows += [flow((0, 2), at_s, 0.4, 100), *(flow((1, 2), at_s + 0.1 * number, 0.1, 100) for number in range(3))]
    assert times_of(flows, graph)[0, 2, 100] == [(pytest.approx(2.0), pytest.approx(4.0))] * FEWEST


@pytest.mark.parametrize("slow", [(0, 1), (0, 2)])
def test_a_link_that_is_slow_from_the_beginning_is_found_through_ports(slow):
    graph = Graph(3, ALL, PORTS)
    times = times_of(exchanges(**{f"link{slow[0]}{slow[1]}": 4.0}), graph)
    assert Links(graph).changed(times) == {slow: pytest.approx(4.0)}


def times(machine=1.0, nbytes=100, **slower):
    """Times of messages on each link of the ring, and of small ones that show the overhead."""
    return {(0, 1, 1): FEWEST * [Times(2.0, 2.0)]} | {
        (*pair, nbytes): FEWEST * [Times(*[machine * slower.get(f"link{pair[0]}{pair[1]}", 1.0)] * 2)] for pair in RING
    }


def test_a_link_that_slows_down_has_changed():
    links = Links(Graph(3, RING))
    assert links.changed(times(1.2)) == {}
    assert links.changed(times(1.2, link01=1.4)) == {}
    changed = links.changed(times(1.2, link01=2.0))
    assert changed == {(0, 1): pytest.approx(2.0)}
    links.take(changed)
    assert links.graph.links == {**RING, (0, 1): pytest.approx(500.0)}
    for _ in range(3):
        assert links.changed(times(1.2)) == {}  # as predicted from now on
    assert links.changed(times(1.2, link01=0.5)) == {(0, 1): pytest.approx(0.5)}  # and back


@pytest.mark.parametrize(("before", "now", "found"), [
    (1.0, Times(1.4, 2.0), [(0, 1)]),  # ports that others share explain a part
    (2.0, Times(1.4, 2.0), []),  # it has always been so
    (1.0, Times(1.1, 2.0), []),  # they explain it
])  # fmt: skip
def test_a_link_with_shared_ports_is_compared_with_its_past(before, now, found):
    links = Links(Graph(3, RING))
    assert links.changed(times() | {(0, 1, 100): FEWEST * [Times(1.0, before)]}) == {}
    assert [*links.changed(times() | {(0, 1, 100): FEWEST * [now]})] == found


def test_a_few_late_messages_change_no_link():
    links, seen = Links(Graph(3, RING)), times()
    seen[0, 1, 100][: FEWEST // 2] = [Times(5.0, 5.0)] * (FEWEST // 2)
    assert links.changed(seen) == {}


def test_a_few_messages_that_seem_quick_change_no_link():
    """If the end of a message is noted late, the next one on its link seems to begin late (seen under load)."""
    links, seen = Links(Graph(3, RING)), times()
    for sort in ((1, 2, 100), (2, 0, 100)):
        seen[sort][:2] = [Times(0.4, 0.4)] * 2
    assert links.changed(seen) == {}
    assert links.changed(times(link01=2.0)) == {(0, 1): pytest.approx(2.0)}


def test_small_messages_show_no_link():
    """Most of their time is no link's, also if it is known as the graph's latency."""
    links = Links(Graph(3, RING, alpha=0.01))
    seen = {sort: FEWEST * [Times(1.0, 1.0)] for sort in ((1, 2, 5), (1, 2, 100), (2, 0, 5), (2, 0, 100))}
    assert links.changed(seen | {(0, 1, 5): FEWEST * [Times(3.0, 3.0)]}) == {}


def test_rare_messages_are_counted_over_several_checks():
    links, one = Links(Graph(3, RING)), {sort: all_s[:1] for sort, all_s in times(link01=2.0).items()}
    found = [links.changed(one) for _ in range(FEWEST)]
    assert found == [{}] * (FEWEST - 1) + [{(0, 1): pytest.approx(2.0)}]


@pytest.mark.parametrize("machines", [(1.0, 3.0, 3.0, 0.5, 0.5), (3.0, 1.0, 3.0)])
def test_a_slow_machine_changes_no_link(machines):
    links = Links(Graph(3, RING))
    for machine in machines:
        assert links.changed(times(machine)) == {}
    assert links.changed(times(3.0, link01=0.5)) == {}  # a quick link among slow ones


def test_a_link_that_messages_first_take_later_is_compared_with_the_graph():
    """As fast as predicted is usual, in units of the machine; half of it is not."""
    links, seen = Links(Graph(3, RING)), times(1.3)
    assert links.changed({sort: all_s for sort, all_s in seen.items() if sort[0] != 2}) == {}
    assert links.changed(times(1.3, nbytes=400)) == {}
    assert links.changed(times(1.3, nbytes=800, link20=2.0)) == {(2, 0): pytest.approx(2.0)}


def write_links(path, changes=(), ranks=4):
    links = [[*pair, RATE] for pair in permutations(range(ranks), 2)]
    path.write_text(json.dumps({"ranks": ranks, "links": links, "changes": [*changes]}), "utf-8")
    return str(path)


def layers():
    rng = np.random.default_rng(0)
    shapes = ((6, 64), (64, 64), (64, 4))
    return [Dense(f"dense{number}", rng.standard_normal(shape) / 8) for number, shape in enumerate(shapes)]


def trained(path, iterations, watched=Watcher, algorithm=None, ranks=4, *, threads=True):
    """Of each rank here: last iteration, changes, algorithms of plans, and parameters; ends soon after a change."""
    found = {}

    def body(world):
        options = {"algorithm": algorithm or f"synth:{path}", "schedule": "dear", "fusion": "none"}
        with Session(layers(), SoftmaxCrossEntropy(), world, **options) as session:
            watcher = watched(session, iterations, 2)
            for number in range(1, iterations + 1):
                session.step(*batch(number, world.rank))
                watcher.look(number)
                if watcher.changes and number > watcher.changes[0]["iteration"] + 2:
                    break
            session.flush()
            plans = {plan.algorithm for plan in session.group.fabric.plans.values()}
            found[world.rank] = number, watcher.found("run"), plans, session.parameters_sha256()

    run_world(body, threads=ranks if threads else None, link=read_link(path))
    return found


def test_all_ranks_switch_to_a_new_algorithm_if_a_link_slows_down(tmp_path, capsys):
    path = write_links(tmp_path / "links.json", [{"after_s": 1.0, "link": [2, 1], "rate": RATE / 2}])
    found = trained(path, 100)
    number, changes, plans, _ = found[0]
    assert all(each == found[0] for each in found.values())
    (change,) = changes
    (link,) = change["links"]
    assert tuple(link["link"]) == (2, 1)
    assert link["from"] == RATE
    assert link["to"] == pytest.approx(RATE / 2, rel=0.35)
    assert plans == {change["algorithm"]} == {f"synth:{tmp_path}/links-1.json"}
    assert read_graph(plans.pop().removeprefix("synth:")).links[2, 1] == link["to"]
    assert number > change["iteration"]
    said = " ".join(capsys.readouterr().err.split())
    assert "from rank 2 to rank 1 from 4 Mbit/s to" in said
    assert f"from iteration {change['iteration']} on synth:" in said


def test_a_link_that_is_slower_than_measured_is_found(tmp_path):
    """Files of other graphs stay, and a folder may have the ending of Python files in its name."""
    folder = tmp_path / "run.pytest"
    folder.mkdir()
    for number in (1, 2):
        (folder / f"measured-{number}.json").write_text("mine")
    link = write_links(folder / "links.json", [{"after_s": 0, "link": [2, 1], "rate": RATE / 3}])
    (folder / "measured.json").write_text(json.dumps(measured(all_pairs(4, RATE * 1e-9), [*"abcd"])))
    found = trained(link, 60, algorithm=f"synth:{folder}/measured.json")
    ((change,), *_) = [changes for _, changes, _, _ in found.values()]
    assert [tuple(link["link"]) for link in change["links"]] == [(2, 1)]
    assert change["links"][0]["to"] == pytest.approx(RATE / 3, rel=0.35)
    assert change["algorithm"] == f"synth:{folder}/measured-3.json"
    assert {(folder / f"measured-{number}.json").read_text() for number in (1, 2)} == {"mine"}


def test_a_folder_that_cannot_be_written_is_refused_at_the_start(tmp_path, monkeypatch):
    def refuse(flag, path):
        raise ValueError(f"{flag} {str(path)!r} cannot be written: it is read-only")

    monkeypatch.setattr(watch, "check_writable", refuse)
    path = write_links(tmp_path / "links.json")
    with pytest.raises(ArgumentError, match=r"--watch '.*links-1.json' cannot be written"):
        trained(path, 1)


def test_without_a_change_nothing_is_switched(tmp_path):
    found = trained(write_links(tmp_path / "links.json"), 40)
    assert {(number, len(changes), *plans) for number, changes, plans, _ in found.values()} == {
        (40, 0, f"synth:{tmp_path}/links.json")
    }


@pytest.mark.parametrize("place", ["proof", "plans"])
def test_a_session_keeps_its_algorithm_if_another_one_is_refused(tmp_path, monkeypatch, place):
    """By its proof, or later, as plans are made."""
    path, made = write_links(tmp_path / "links.json"), live.make_plan

    def refused(*arguments, algorithm, **options):
        if algorithm == "pairwise" and place == "plans":
            raise ArgumentError("no plan")
        return made(*arguments, algorithm=algorithm, **options)

    monkeypatch.setattr(live, "make_plan", refused)

    def body(world):
        with Session(layers(), SoftmaxCrossEntropy(), world, schedule="dear", algorithm="ring") as session:
            session.step(*batch(0, world.rank))
            with pytest.raises(ArgumentError, match=r"has no program|no plan|serves"):
                session.switch("pairwise" if place == "plans" else "recursive_doubling")
            session.step(*batch(1, world.rank))
            return {plan.algorithm for plan in session.group.fabric.plans.values()}, session.options.algorithm

    assert run_world(body, threads=4, link=read_link(path)) == ({"ring"}, "ring")


class Failing(Watcher):
    """Sees a change in each check, and cannot write the graph."""

    def look(self, number):
        self.links.changed = lambda seen: {(0, 1): 2.0}
        super().look(number)

    def remade(self):
        raise ArgumentError("no room")


def test_the_algorithm_stays_if_no_other_one_can_be_made(tmp_path, capsys):
    path = write_links(tmp_path / "links.json")
    for number, changes, plans, _ in trained(path, 5, Failing).values():
        assert (number, changes, plans) == (5, [], {f"synth:{path}"})
    assert "and the algorithm stays: no room" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("algorithm", "ranks", "said"),
    [("ring", 4, "--watch needs an algorithm made from a graph"), ("synth:{}", 3, "has 4 ranks, and the job 3")],
)
def test_what_cannot_be_watched_is_refused(tmp_path, algorithm, ranks, said):
    path, link = write_links(tmp_path / "links.json"), write_links(tmp_path / "link.json", ranks=ranks)

    class Other(Watcher):
        def __post_init__(self):
            self.session.options = SimpleNamespace(algorithm=algorithm.format(path), elastic=False)
            super().__post_init__()

    with pytest.raises(ArgumentError, match=said):
        trained(link, 1, Other, "ring", ranks)
