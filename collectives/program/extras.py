"""Find entry points of other packages and our extras, e.g. in the group ``dear_mpi.schedules``.

A group is read on a name that core lacks. A place, ``module:name``, is imported when its name is used.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")
CONTRIB = "dear_mpi.contrib."


@cache
def entry_points_of(group: str) -> dict[str, "EntryPoint"]:
    """Leave out extras in a deleted folder."""
    from importlib.metadata import entry_points  # slow to import

    return {each.name: each for each in entry_points(group=f"dear_mpi.{group}") if not is_deleted(each.value)}


def is_deleted(place: str) -> bool:
    module = place.partition(":")[0]
    try:  # git leaves a folder with byte code, without origin
        return module.startswith(CONTRIB) and getattr(find_spec(module), "origin", None) is None
    except ModuleNotFoundError:  # contrib is gone
        return True


def load_place(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


@cache
def load_extra(group: str, name: str) -> Any:
    """Import an entry point; a ValueError names it and its package."""
    found = entry_points_of(group)[name]
    try:
        return found.load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # sys.exit() as well, which would end the command in silence
        package = found.dist.name if found.dist else "an unknown package"
        what = f"{name!r} of {package} (entry point {found.value!r} in the group 'dear_mpi.{group}')"
        raise ValueError(f"{what} cannot be loaded: {type(error).__name__}: {error}") from error


class WithExtras(Mapping[str, T]):
    """Extend core's table by a group's names, which cannot replace core's.

    ``load`` returns the value of such a name.
    """

    def __init__(self, core: Mapping[str, T], group: str, load: Callable[[str], T] | None = None) -> None:
        self.core, self.group, self.load = core, group, load or partial(load_extra, group)

    def __getitem__(self, name: str) -> T:
        if name in self.core or name not in entry_points_of(self.group):
            return self.core[name]
        return self.load(name)

    def __contains__(self, name: object) -> bool:
        return name in self.core or name in entry_points_of(self.group)

    def __iter__(self) -> Iterator[str]:
        yield from {**self.core, **entry_points_of(self.group)}

    def __len__(self) -> int:
        return len(list(iter(self)))
