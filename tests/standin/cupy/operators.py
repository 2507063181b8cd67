"""Operators of ``ndarray``, its methods that are NumPy's functions, and its conversions to Python's numbers."""

import operator

import numpy as np

from cupy.compute import compute

METHODS = [
    *("sum", "prod", "max", "min", "mean", "std", "var", "argmax", "argmin", "any", "all", "cumsum", "cumprod"),
    *("round", "clip", "dot", "take", "trace", "repeat", "squeeze", "swapaxes", "argsort", "diagonal"),
]

# Binary operators, with the NumPy function of the in-place ones.
BINARY = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "truediv": np.true_divide, "floordiv": np.floor_divide,
    "mod": np.remainder, "pow": np.power, "matmul": np.matmul, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor, "lshift": np.left_shift, "rshift": np.right_shift,
}  # fmt: skip
COMPARISONS = ["eq", "ne", "lt", "le", "gt", "ge"]
UNARY = ["neg", "pos", "abs", "invert"]
NUMBERS = {"float": float, "int": int, "bool": bool, "complex": complex, "index": operator.index}


def give_operators(kind):
    for name in METHODS:
        setattr(kind, name, method(name))
    for name, into in BINARY.items():
        function = getattr(operator, f"__{name}__")
        setattr(kind, f"__{name}__", forward(name, function))
        setattr(kind, f"__r{name}__", backward(name, function))
        setattr(kind, f"__i{name}__", in_place(name, into))
    for name in COMPARISONS:
        setattr(kind, f"__{name}__", forward(name, getattr(operator, name)))
    for name in UNARY:
        setattr(kind, f"__{name}__", unary(name, getattr(operator, name)))
    for name, number in NUMBERS.items():
        setattr(kind, f"__{name}__", conversion(number))


def method(name):
    function = getattr(np, name)
    return lambda self, *args, **kwargs: compute(name, function, (self, *args), kwargs)


def forward(name, function):
    return lambda self, other: compute(name, function, [self, other])


def backward(name, function):
    return lambda self, other: compute(name, function, [other, self])


def in_place(name, into):
    return lambda self, other: compute(name, into, [self, other], {"out": self})


def unary(name, function):
    return lambda self: compute(name, function, [self])


def conversion(number):
    return lambda self: number(self.get()[()])
