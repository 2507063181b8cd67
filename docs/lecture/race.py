"""A board that ranks algorithms of a class: proof first, then measured time; the predicted time stands beside it.

    python -m docs.lecture.race anna.py:my_ring ben.py:doubling --threads 4         without MPI: ranks are threads
    mpirun -n 4 python -m docs.lecture.race anna.py:my_ring ben.py:doubling         under it

Each is proved for the number of ranks of the race and priced on a network, in a process that is killed if it does not
end (``referee.py``), and timed by the benchmark (``dear-mpi bench``) beside ``ring``. What is not proved is not run: it
stands last, with the proof's sentence. The board also has the other numbers of ranks, up to 8, on which an algorithm is
right. ``--link 1gbit,50us`` slows messages down to that link. Points are the mean, over the sizes, of how many times as
long as the fastest one an algorithm takes.
"""

import argparse
import sys
from collections.abc import Sequence
from math import exp, log
from typing import NoReturn

from rich.table import Table
from typer import Exit

from dear_mpi.bench.run import bench
from dear_mpi.bench.suite import Suite
from dear_mpi.cli.flags import MOST_THREADS
from dear_mpi.cli.run import complaining
from dear_mpi.collectives.program.cost import Network
from dear_mpi.collectives.program.program import COLLECTIVES
from dear_mpi.collectives.transports.agree import said_by_rank_0
from dear_mpi.kernels.lookup import lookup
from dear_mpi.ranks.world import World, run_world
from dear_mpi.reporting.declared import parsed
from dear_mpi.reporting.terminal import console
from dear_mpi.reporting.units import format_bytes, format_numbers, parse_link, parse_sizes
from docs.lecture.desk.algorithms import NETWORK
from docs.lecture.referee import Pricing, Runner, proved

PACER = "ring"  # takes part in every race


def race(world: World, names: Sequence[str], collective: str, sizes: Sequence[int], network: Network) -> list[Runner]:
    """Collective: everybody who takes part, the winner first; raises as ``bench``."""
    pricing = Pricing(sizes, network)
    runners = said_by_rank_0(
        world.transport,
        "the race",
        lambda: [proved(name, collective, world.size, pricing) for name in dict.fromkeys((PACER, *names))],
        asleep=True,
    )
    right = [each for each in runners if not each.fault]
    suite = Suite(algorithms=tuple(each.name for each in right), sizes=tuple(sizes), collectives=(collective,))
    for row in bench(suite, world).rows:
        runner = next(each for each in right if each.name == row.algorithm)
        runner.measured_s[row.bytes] = row.p50_us * 1e-6
        runner.interval[row.bytes] = max(row.ci_high_us - row.p50_us, row.p50_us - row.ci_low_us) * 1e-6
        if row.wrong:
            runner.fault = f"{row.wrong} elements were wrong"
    for runner in right:
        runner.points = points(runner, right)
    return sorted(runners, key=lambda each: (bool(each.fault), each.points))


def points(runner: Runner, others: Sequence[Runner]) -> float:
    """The geometric mean of how many times as long as the fastest it takes: 1 is the fastest at every size."""
    times = [runner.measured_s[size] / min(each.measured_s[size] for each in others) for size in runner.measured_s]
    return exp(sum(map(log, times)) / len(times)) if times else float("inf")


def board(found: Sequence[Runner], title: str) -> Table:
    """The board; what is wrong stands last."""
    sizes = next(list(each.measured_s) for each in found if each.measured_s)
    table = Table(title=title, caption="us: predicted, measured (95 %); points: 1 is best")
    for head in ("", "algorithm", "right on", "points"):
        table.add_column(head, overflow="fold")  # no name is cut
    for size in sizes:
        table.add_column(format_bytes(size), justify="right")
    for place, runner in enumerate(found, 1):
        if runner.fault:
            table.add_row("-", runner.name, "refused", *[""] * (len(sizes) + 1), style="red")
            continue
        cells = [
            f"{in_us(runner.predicted_s[size])}, {in_us(runner.measured_s[size])} ±{in_us(runner.interval[size])}"
            for size in sizes
        ]
        table.add_row(str(place), runner.name, format_numbers(sorted(runner.right_on)), f"{runner.points:.2f}", *cells)
    return table


def in_us(seconds: float) -> str:
    return f"{seconds * 1e6:.0f}"


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message)  # one rank says it


def arguments(given: Sequence[str]) -> argparse.Namespace:
    parser = Parser(prog="race", description="Rank algorithms by proof, cost and measured time.")
    parser.add_argument("names", nargs="+", metavar="FILE.py:FUNCTION", help="who takes part, also names of ours")
    parser.add_argument("--threads", type=int, help="ranks as threads of this process, without MPI")
    parser.add_argument("--collective", default="all_reduce", help=f"one of {', '.join(COLLECTIVES)}")
    parser.add_argument("--sizes", default="1KiB,64KiB,4MiB", help="of the buffer")
    parser.add_argument("--link", help="emulate one between ranks, such as 1gbit,50us")
    return parser.parse_args(given)


def run(how: argparse.Namespace) -> None:
    """Race, and show the board on rank 0; a ValueError, or what all ranks raise alike, if that cannot be done."""
    lookup("collective", how.collective, COLLECTIVES)
    if how.threads is not None and not 1 <= how.threads <= MOST_THREADS:
        raise ValueError(f"--threads must be from 1 to {MOST_THREADS}, not {how.threads}")
    sizes = parsed("--sizes", parse_sizes, how.sizes)
    link = None if how.link is None else parsed("--link", parse_link, how.link)
    network = NETWORK if link is None else Network(alpha=link.latency_s, beta=1 / link.bandwidth)

    def body(world: World) -> None:
        found = race(world, how.names, how.collective, sizes, network)
        screen = console(world)
        screen.print(board(found, f"{how.collective} on {world.size} ranks over {world.transport.name}"))
        for runner in found:
            if runner.fault:
                screen.print(f"{runner.name}: {runner.fault}", style="red", markup=False, soft_wrap=True)

    run_world(body, threads=how.threads, link=link)


def main() -> None:
    try:
        with complaining("race", mpi=False):
            run(arguments(sys.argv[1:]))
    except Exit as error:
        raise SystemExit(error.exit_code) from None


if __name__ == "__main__":
    main()
