"""Stands for NumPy in a browser, where there is none: names can be read, and nothing can be computed.

The virtual fabric, routes and their proof need no array: their clock is one number where all ranks are alike. But the
modules around them name NumPy's types. Whoever computes with arrays gets a sentence.
"""

from typing import Any

NONE_HERE = "there is no NumPy in this page: what computes with arrays needs dear-mpi on your machine"


class Named:
    """A type or a function that is only named."""

    def __init__(self, name: str) -> None:
        self.name = self.__name__ = name

    def __getattr__(self, name: str) -> "Named":
        if name.startswith("__"):
            raise AttributeError(name)
        return Named(f"{self.name}.{name}")

    def __getitem__(self, key: object) -> "Named":
        return self

    def __or__(self, other: object) -> "Named":
        return self

    __ror__ = __or__

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return ()

    def __hash__(self) -> int:
        return hash(self.name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Named) and self.name == other.name

    def __call__(self, *args: object, **named: object) -> Any:
        raise RuntimeError(f"numpy.{self.name}: {NONE_HERE}")


class dtype(Named):
    """Types of numbers are asked for when modules are loaded."""

    name: str
    itemsize = 0

    def __init__(self, kind: object, **named: object) -> None:
        super().__init__(str(getattr(kind, "name", kind)))

    def __class_getitem__(cls, key: object) -> type["dtype"]:
        return cls


class Nothing:
    """An array without elements."""

    size = 0

    def __len__(self) -> int:
        return 0

    def __getitem__(self, part: slice) -> "Nothing":
        return self


def zeros(count: int, dtype: object = None) -> Nothing:
    """What travels on the virtual fabric: nothing."""
    if count:
        raise RuntimeError(f"numpy.zeros: {NONE_HERE}")
    return Nothing()


def ndim(value: object) -> int:
    return 0


def array(values: object, dtype: object = None) -> Named:
    """Tables of constants are made when modules are loaded."""
    return Named("array")


def finfo(kind: object) -> Named:
    return Named("finfo")


def __getattr__(name: str) -> Named:
    if name.startswith("__"):
        raise AttributeError(name)
    return Named(name)
