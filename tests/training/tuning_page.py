"""Searches on the virtual fabric: the models and networks of docs/tuning.md and of its tests.

python -m tests.training.tuning_page
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from dear_mpi.collectives.plans.tuning import default_segment
from dear_mpi.models.synthetic import load_modules
from dear_mpi.reporting.stats import median
from dear_mpi.reporting.units import parse_bytes
from dear_mpi.simulate.model import synthetic_model
from dear_mpi.simulate.network import read_network
from dear_mpi.simulate.prices import Prices
from dear_mpi.training.fabric.costs import Costs
from dear_mpi.training.fabric.rules import Rules
from dear_mpi.training.fusion import fused
from dear_mpi.training.schedules import SCHEDULES
from dear_mpi.training.tuning.search import METHODS, START, Search, Trial, cut_by, distinct_sizes, size_text
from dear_mpi.training.tuning.tuned_fusion import HIGH, LOW, candidates, fewest_buckets
from dear_mpi.training.virtual_trainer import VirtualTrainer
from tests.training.trials import PANEL_INCHES, TITLE, draw_order, draw_sizes, points

DOCS = Path(__file__).parents[2] / "docs"
MODELS = {"resnet50": 0.05, "densenet201": 0.04, "bert_base": 0.25}  # seconds of forward; backward takes twice that
NETWORKS = ("10gbit,50us", "25gbit,200us")
RANKS = 16
GREY = "0.6"
FINER = 64  # sizes between each power of two and the next, of which the best is what searches are held against
SEEDS = range(5)


@dataclass(frozen=True)
class Problem:
    """A model on a network under a schedule: what an iteration takes by the size of buckets."""

    model: str
    network: str
    schedule: str = "dear"

    @cached_property
    def synthetic(self):
        forward_s, modules = MODELS[self.model], load_modules(self.model)
        return synthetic_model(self.model, modules, ranks=RANKS, forward_s=forward_s, backward_s=2 * forward_s)

    @property
    def layout(self):
        return self.synthetic.layout

    @cached_property
    def costs(self):
        segment = default_segment(range(RANKS))
        prices = Prices(read_network(self.network, RANKS).network, ranks=RANKS, segment_bytes=segment)

        def price(leg, bucket):
            key = "ring", leg.name, bucket.nbytes
            return prices.found[key] if key in prices.found else float(prices.seconds(*key[:2], key[2:])[0])

        return Costs(forward_s=self.synthetic.costs.forward_s, backward_s=self.synthetic.costs.backward_s, price=price)

    def predicted_s(self, fusion):
        """Seconds of an iteration."""
        schedule = SCHEDULES[self.schedule]
        rules = Rules(self.schedule, fused(fusion, self.layout), schedule)
        return VirtualTrainer(schedule, rules, self.costs).mean_s()

    def sizes(self, **how):
        return distinct_sizes(self.layout, LOW, HIGH, **how)

    @cached_property
    def known(self):
        return {}

    def seconds(self, fusion):
        """The same; computed once for each cut."""
        cut = cut_by(self.layout, parse_bytes(fusion))
        if cut not in self.known:
            self.known[cut] = self.predicted_s(fusion)
        return self.known[cut]

    @cached_property
    def best_s(self):
        """The least of a grid that is finer than the one of the searches."""
        return min(map(self.seconds, map(size_text, self.sizes(per_octave=FINER))))

    def search(self, method, seed=0, noise=None):
        """A search after its trials; ``noise`` is a function that gives factors."""
        search = Search(self.sizes(), start=START, method=method, seed=seed)
        while not search.over:
            fusion = search.ask()
            search.tell(fusion, self.seconds(fusion) * (1.0 if noise is None else noise()))
        return search

    def missed(self, search):
        """By how much the choice of a search is slower than the best one."""
        return self.seconds(search.best.fusion) / self.best_s - 1


PROBLEMS = [Problem(model, network) for network in NETWORKS for model in MODELS]


def main():
    print("| model, network | 25MB | best | " + " | ".join(METHODS) + " | auto |")
    print("|---" * (len(METHODS) + 4) + "|")
    for problem in PROBLEMS:
        missed = {kind: [problem.missed(problem.search(kind, seed)) for seed in SEEDS] for kind in METHODS}
        cells = [f"{median(each).value:.1%} ({max(each):.1%})" for each in missed.values()]
        trials = [Trial(fusion, problem.predicted_s(fusion)) for fusion in candidates(problem.layout)]
        auto = fewest_buckets(trials, problem.layout)
        first = f"{problem.seconds(size_text(START)) * 1e3:.0f} ms | {problem.best_s * 1e3:.0f} ms"
        last = f"{problem.predicted_s(auto) / problem.best_s - 1:.1%}: {auto}"
        print(f"| {problem.model}, {problem.network} | {first} | {' | '.join(cells)} | {last} |")
    draw(PROBLEMS[: len(MODELS)], DOCS / "tuning.png")


def draw(problems, path):
    """The trials of one tuner beside all sizes, which are grey; two panels for each problem."""
    from dear_mpi.contrib.pictures.figure import legend_below, panels, scale_by_powers, write_figure

    heading = f"PREDICTED: dear on {RANKS} ranks, ring, {NETWORKS[0]}"
    figure, axes = panels(2 * len(problems), columns=2, inches=PANEL_INCHES, title=TITLE, notes=heading)
    for problem, by_size, by_trial in zip(problems, axes[::2], axes[1::2], strict=True):
        trials = [(trial.fusion, trial.seconds) for trial in problem.search("bayesian").trials]
        sizes, times = points([(fusion, problem.seconds(fusion)) for fusion in map(size_text, problem.sizes())])
        by_size.plot(sizes, times, color=GREY, linewidth=1, label="all sizes")
        draw_sizes(by_size, trials, f"{problem.model}, bo")
        scale_by_powers(by_size, [2**power for power in range(12) if sizes[0] <= 2**power <= sizes[-1]])
        draw_order(by_trial, trials)
        by_trial.axhline(min(times), color=GREY, linewidth=1)
    legend_below(figure)
    write_figure("--plot", path, figure)


if __name__ == "__main__":
    main()
