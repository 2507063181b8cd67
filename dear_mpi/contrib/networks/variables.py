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
        ref, numbers = ctypes.byref, [ctypes.c_int() for _ in range(3)]
        name, text = (ctypes.create_string_buffer(CHARACTERS) for _ in range(2))
        long, longer = (ctypes.c_int(CHARACTERS) for _ in range(2))
        datatype, kind = ctypes.c_void_p(), ctypes.c_void_p()
        verbosity, bind, scope = map(ref, numbers)
        about = (name, ref(long), verbosity, ref(datatype), ref(kind), text, ref(longer), bind, scope)
        called(library().MPI_T_cvar_get_info(self.index, *about))
        if listed := re.findall(r"^ *(\w+) +- ", text.value.decode(), re.MULTILINE):
            return {each: number for number, each in enumerate(listed)}
        called(library().MPI_T_enum_get_info(kind, ref(numbers[0]), name, ref(long)))
        found = dict[str, int]()
        for place in range(numbers[0].value):
            long.value = CHARACTERS
            called(library().MPI_T_enum_get_item(kind, place, ref(numbers[1]), name, ref(long)))
            found[name.value.decode()] = numbers[1].value
        return found
