"""Stands for msgspec in a browser: structures can be made, and no file is read into them."""

from dataclasses import dataclass
from typing import Any, NoReturn


class Struct:
    """A data class."""

    def __init_subclass__(cls, *, frozen: bool = False, **options: bool) -> None:
        dataclass(frozen=frozen)(cls)


class Meta:
    """What is said of a type."""

    def __init__(self, **said: Any) -> None: ...


def convert(content: object, kind: type) -> NoReturn:
    raise RuntimeError("this page reads no files: that needs dear-mpi on your machine")
