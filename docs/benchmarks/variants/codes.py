"""Codes of gradients: how long iterations wait, how far sums are off, and what is learned with them."""

from collections.abc import Callable
from statistics import median

import numpy as np

from dear_mpi.ranks.world import run_world
from dear_mpi.training.routes.find import find_code
from dear_mpi.training.runs.compare import Comparison
from dear_mpi.training.runs.config import Config
from docs.benchmarks.variants.target import HOSTS, NEAR, SLOW, Target, accuracy, late_loss, mean_ms, trained
from tests.training.route_checks import bytes_between


def share(of: dict, base: dict) -> float:
    return of["exposed_comm_s"] / base["exposed_comm_s"]


def int8_exposed() -> tuple[str, bool]:
    """The median of three pairs of runs, which differ by a tenth."""
    pairs = [[trained(60, link=SLOW, wire=wire, seed=seed) for wire in ("fp32", "int8")] for seed in range(3)]
    found = median(share(codes, dense) for dense, codes in pairs)
    return f"{found:.2f}", found <= 0.35


def between_hosts() -> tuple[str, bool]:
    """All have one bucket, with which all were fastest."""
    how = {"link": HOSTS, "fusion": "25MB", "algorithm": "hierarchical"}
    dense, flat, codes = (mean_ms(trained(60, wire=wire, **how)) for wire in ("fp32", "int4", "int4:between"))
    return f"{dense / codes:.2f} (int4: {dense / flat:.2f})", dense / codes >= 3


def sent_between_hosts() -> tuple[str, bool]:
    dense, flat, codes = (bytes_between(wire, [0] * 4 + [1] * 4) for wire in ("fp32", "int4", "int4:between"))
    return f"{codes / flat:.2f} and {codes / dense:.2f}", codes <= 0.41 * flat and codes <= 0.13 * dense


def error_of_sums(wire: str, most: float) -> Callable[[], tuple[str, bool]]:
    def measure() -> tuple[str, bool]:
        found = [relative_error(wire, ranks) for ranks in (2, 8, 64)]
        return " / ".join(f"{each:.4f}" for each in found), max(found) < most

    return measure


def relative_error(wire: str, ranks: int, count: int = 1 << 16) -> float:
    """L2 error of a sum of normal numbers in two shots, over the norm of the sum."""
    code, draw = find_code(wire).wire, np.random.default_rng(0)
    row, part = np.empty(code.nbytes(count), np.uint8), np.empty(count, np.float32)
    exact, total = np.zeros(count), np.zeros(count, np.float32)
    for _ in range(ranks):
        x = draw.standard_normal(count).astype(np.float32)
        exact += x
        code.encode(x, row)
        code.decode(row, part)
        total += part
    code.encode(total, row)
    code.decode(row, part)
    return float(np.linalg.norm(part - exact) / np.linalg.norm(exact))


def as_accurate(wire: str, most: float = 1.0, link: str | None = None) -> Callable[[], tuple[str, bool]]:
    def measure() -> tuple[str, bool]:
        dense, codes = (accuracy(trained(link=link, wire=each)) for each in ("fp32", wire))
        return f"{codes:.1f} % beside {dense:.1f} %", codes >= dense - most

    return measure


def blocks_exposed() -> tuple[str, bool]:
    dense, blocks = (trained(40, link=SLOW, model="cnn", wire=wire) for wire in ("fp32", "blocks:10%"))
    found = share(blocks, dense)
    return f"{found:.2f}", found <= 0.2


def blocks_accuracy() -> tuple[str, bool]:
    runs = ((150, "fp32"), (300, "blocks:10%"))
    dense, blocks = (trained(count, link=None, model="cnn", wire=wire) for count, wire in runs)
    found = accuracy(blocks) - accuracy(dense)
    return f"{accuracy(blocks):.1f} % beside {accuracy(dense):.1f} %", found >= -1.0


def feedback(wire: str) -> Callable[[], tuple[str, bool]]:
    def measure() -> tuple[str, bool]:
        choices = {"optimizer": "sgd", "lr": 0.1, "momentum": 0.5}
        with_it, without = (late_loss(trained(link=None, wire=each, **choices)) for each in (wire, f"{wire}:error=no"))
        return f"{with_it:.3f} beside {without:.3f}", with_it < without

    return measure


def low_rank_bytes(wire: str, most: float, model: str = "mlp") -> Callable[[], tuple[str, bool]]:
    """In one bucket: each of them is padded. Of two iterations on average, as ACP-SGD sends either factor in turn."""

    def measure() -> tuple[str, bool]:
        dense, factors = (sent_bytes(each, model) for each in ("fp32", wire))
        return f"{factors / dense:.1%}", factors <= most * dense

    return measure


def sent_bytes(wire: str, model: str) -> float:
    config = Config.of({"model": model, "iterations": 4, "wire": wire, "fusion": "25MB"})
    (row,) = run_world(lambda world: Comparison(config, world, ["dear"]).run(), threads=4)
    return row["sent_bytes"]


TARGETS = [
    Target("int8", f"at {SLOW}, exposed at most .35 of fp32", int8_exposed),
    Target("int8", "error of a sum below .011 on 2 / 8 / 64 ranks", error_of_sums("int8", 0.011)),
    Target("int8", "accuracy within 1 point of fp32", as_accurate("int8")),
    Target("int4", "error of a sum below .2 on 2 / 8 / 64 ranks", error_of_sums("int4", 0.2)),
    Target("int4", "accuracy within 1 point of fp32", as_accurate("int4")),
    Target("int4:between", f"at {HOSTS}, an iteration 3 times as fast as hierarchical in fp32", between_hosts),
    Target("int4:between", "2 hosts of 4: .41 of the bytes of int4 between them, .13 of fp32's", sent_between_hosts),
    Target("int4:between", "accuracy within 1 point of fp32", as_accurate("int4:between", link=NEAR)),
    Target("topk:10%", "loss with error feedback below that without", feedback("topk:10%")),
    Target("blocks:10%", f"cnn at {SLOW}, exposed at most .2 of fp32", blocks_exposed),
    Target("blocks:10%", "cnn, accuracy at most 1 point below fp32 after twice the iterations", blocks_accuracy),
    Target("blocks:10%", "loss with error feedback below that without", feedback("blocks:10%")),
    Target("powersgd:4:after=50", "accuracy within 1 point of fp32", as_accurate("powersgd:4:after=50")),
    Target("powersgd:4", "bytes at most 11 % of those of fp32", low_rank_bytes("powersgd:4", 0.11)),
    Target(
        "powersgd:4", "cnn, whose normalisations are vectors: at most 36 %", low_rank_bytes("powersgd:4", 0.36, "cnn")
    ),
    Target("acp:4:after=50", "accuracy within 1 point of fp32", as_accurate("acp:4:after=50")),
    Target("acp:4", "bytes at most 6 % of those of fp32", low_rank_bytes("acp:4", 0.06)),
]
