"""Set the control variables of the MPI library that this process has loaded, by MPI_T."""

import ctypes
import re
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

from dear_mpi.bench.case import CannotRun

CHARACTERS = 1 << 13  # of a variable's description


@cache
def library() -> ctypes.CDLL:
    """Return the MPI library of this process, with MPI_T. ValueError: it is not found."""
    from mpi4py import MPI  # noqa: F401

    try:
        found = re.search(r"(/\S*/libmpi(?:_abi)?\.so\S*)", Path("/proc/self/maps").read_text("utf-8"))
    except OSError:
        found = None
    if found is None:
        raise ValueError("the library's own algorithms need Linux and a shared libmpi")
    loaded = ctypes.CDLL(found[1])
    called(loaded.MPI_T_init_thread(3, ctypes.byref(ctypes.c_int())))  # MPI_THREAD_MULTIPLE
    return loaded


def called(error: int) -> None:
    if error:
        raise CannotRun(f"MPI_T returns error {error}")


@cache
class Variable:
    """A control variable of the library. CannotRun: it has none of this name."""

    def __init__(self, name: str) -> None:
        self.index, self.handle, count = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int()
        if library().MPI_T_cvar_get_index(name.encode(), ctypes.byref(self.index)):
            raise CannotRun(f"this MPI has no variable {name}")
        called(library().MPI_T_cvar_handle_alloc(self.index, None, ctypes.byref(self.handle), ctypes.byref(count)))

    def setter(self, value: int) -> Callable[[], int]:
        held = ctypes.c_longlong(value)  # as long as any
        return partial(library().MPI_T_cvar_write, self.handle, ctypes.byref(held))

    @property
    def values(self) -> dict[str, int]:
        """Return its values by name: of an enumeration, or as listed in MPICH's description."""
        kind, count, number, length = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int(), ctypes.c_int(CHARACTERS)
        text, ref = ctypes.create_string_buffer(CHARACTERS), ctypes.byref
        # None: not the name and its length, verbosity and datatype; nor binding and scope.
        about = (None, None, None, None, ref(kind), text, ref(length), None, None)
        called(library().MPI_T_cvar_get_info(self.index, *about))
        if listed := re.findall(r"^ *(\w+) +- ", text.value.decode(), re.MULTILINE):
            return {each: number for number, each in enumerate(listed)}
        called(library().MPI_T_enum_get_info(kind, ref(count), None, None))
        found = dict[str, int]()
        for place in range(count.value):
            length.value = CHARACTERS
            called(library().MPI_T_enum_get_item(kind, place, ref(number), text, ref(length)))
            found[text.value.decode()] = number.value
        return found
