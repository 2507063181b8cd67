"""Logistic regression with a bad condition number, on 8 clients with own examples, by TAMUNA.

mpirun -n 8 python -m dear_mpi.contrib.recipes.logistic
"""

from pathlib import Path
from typing import Any

import numpy as np

from dear_mpi.kernels.array import Array
from dear_mpi.models.layers import Parameter
from dear_mpi.training import SGD, Session, run_world


class Margin:
    """w . x for each example; one of label -1 comes as -x."""

    def __init__(self, features: int) -> None:
        self.w = Parameter.of("w", np.zeros(features))
        self.parameters = [self.w]

    def forward(self, x: Array) -> Array:
        self.x = x
        return x @ self.w.value

    def backward(self, dy: Array) -> Array:
        self.w.grad[...] = dy @ self.x
        return dy[:, None] * self.w.value


class Logistic:
    """log(1 + exp(-margin))."""

    def forward(self, margins: Array, targets: Array) -> float:
        self.margins = margins
        return float(np.logaddexp(0, -margins).sum())

    def backward(self, scale: float) -> Array:
        return -scale / (1 + np.exp(self.margins))


class Problem:
    """Logistic regression with a condition number of kappa: examples of each client, mu, gamma and the optimum."""

    def __init__(
        self, clients: int = 8, features: int = 100, examples: int = 50, kappa: float = 1e4, seed: int = 0
    ) -> None:
        draw = np.random.default_rng(seed)
        x = draw.standard_normal((clients, examples, features))
        self.x = x * np.sign(x @ draw.standard_normal(features))[..., None]
        smooth = max(np.linalg.eigvalsh(each.T @ each)[-1] for each in self.x) / (4 * examples)
        self.mu = smooth / (kappa - 1)
        self.gamma = 2 / (smooth + 2 * self.mu)  # 2 / (L + mu), L = smooth + mu
        self.best = self.newton()

    def gradient(self, x: Array, w: Array) -> Array:
        """Of the mean, without mu's term."""
        return -(x / (1 + np.exp(x @ w))[:, None]).mean(0)

    def newton(self) -> Array:
        x = self.x.reshape(-1, self.x.shape[-1])
        w = np.zeros(x.shape[1])
        for _ in range(30):
            s = 1 / (1 + np.exp(x @ w))
            hessian = (x * (s * (1 - s))[:, None]).T @ x / len(x) + self.mu * np.eye(len(w))
            w -= np.linalg.solve(hessian, self.gradient(x, w) + self.mu * w)
        return w

    def error(self, w: Array) -> float:
        return float(((w - self.best) ** 2).sum() / (self.best**2).sum())

    def descent(self, to: float) -> int:
        """Return gradient descent's rounds, with a sum of gradients in each."""
        x, w, rounds = self.x.reshape(-1, self.x.shape[-1]), np.zeros_like(self.best), 0
        while self.error(w) > to:
            w -= self.gamma * (self.gradient(x, w) + self.mu * w)
            rounds += 1
        return rounds


def train(
    world: Any, problem: Problem, route: str, steps: int, *, to: float = 1e-8, most: int = 1000
) -> tuple[int, Array]:
    """Return the rounds until the error is so small, and the values then."""
    margin, x = Margin(problem.best.size), problem.x[world.rank]
    optimizer = SGD(lr=problem.gamma, weight_decay=problem.mu)
    with Session([margin], Logistic(), world, schedule="dear", route=route, optimizer=optimizer) as session:
        rounds = 0
        while rounds < most and problem.error(margin.w.value) > to:
            for _ in range(steps):
                session.step(x, np.ones(len(x)))
            session.flush()
            rounds += 1
        return rounds, margin.w.value.copy()


if __name__ == "__main__":
    problem = Problem()
    route = str(Path(__file__).with_name("tamuna.py")) + ":route"
    rounds, _ = run_world(lambda world: train(world, problem, route, steps=71))
    print(f"{rounds} rounds; gradient descent {problem.descent(1e-8)}")
