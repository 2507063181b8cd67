"""A stand-in for CuPy over host memory, for tests on machines without a GPU.

The project's CuPy code runs on it unchanged. Values are computed at once; what is checked is order: an access that
nothing makes wait for an earlier one that it conflicts with raises ``RaceError``, on the first run and every time.

- ``order.py``     vector clocks, races
- ``storage.py``   allocations, pinned memory, addresses
- ``compute.py``   one operation: NumPy's function between unwrapping and wrapping
- ``array.py``     ``ndarray``, with ``operators.py``; ``functions.py`` the functions; ``raw.py`` kernels from source
- ``host.py``      what the host does with memory, as told by tests
- ``cuda/``        devices, streams, events, raw memory, the runtime API

Not in CuPy are ``is_standin``, ``RaceError``, ``races``, ``freed_in_use``, ``launches``, ``unaccounted``,
``check_host_access``, ``begin_host_use``, ``end_host_use`` and ``reset``. Environment: ``STANDIN_DEVICES`` (1),
``STANDIN_STRICT_DEVICE`` (0: with 1, a thread must choose its device before anything else).

What it does not see: plain NumPy access to pinned memory (call ``check_host_access``), and a host thread that relies
on what another one waited for (they share one clock). What it sees too large: a strided view, with the gaps between its
elements. See ``raw.py`` for kernels. More of NumPy is there than of CuPy: the GPU has the last word.
"""

from cupy import functions as _functions
from cupy.array import ndarray
from cupy.cuda import memory as _memory
from cupy.functions import (
    array,
    asarray,
    ascontiguousarray,
    asnumpy,
    empty,
    empty_like,
    full_like,
    get_array_module,
    ones_like,
    zeros_like,
)
from cupy.host import begin_host_use, check_host_access, end_host_use, reset
from cupy.order import RaceError, freed_in_use, races, unaccounted
from cupy.raw import RawKernel, RawModule, launches

from cupy import cuda  # isort: skip

__version__ = "standin"
is_standin = True

__all__ = ["RaceError", "RawKernel", "RawModule", "array", "asarray", "ascontiguousarray", "asnumpy", "begin_host_use"]
__all__ += ["check_host_access", "cuda", "empty", "empty_like", "end_host_use", "freed_in_use", "full_like"]
__all__ += ["get_array_module", "get_default_memory_pool", "is_standin", "launches", "ndarray", "ones_like", "races"]
__all__ += ["reset", "unaccounted", "zeros_like"]


def get_default_memory_pool():
    return _memory.pool


def __getattr__(name):
    if name.startswith("_"):
        raise AttributeError(f"module 'cupy' has no attribute {name!r}")
    globals()[name] = found = _functions.lookup(name)
    return found
