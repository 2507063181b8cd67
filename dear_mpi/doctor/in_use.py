"""Which parts of the MPI library carry messages in this job, as far as it says so; not what it was only built with.

Open MPI    the pml that it has selected in this process (ob1, ucx, or cm with an mtl), and for ob1 the smsc, which
            copies from process to process; it has no call that names them, so its variables are read
MPICH       the netmod and the provider, which a process of its own prints if asked for a summary
"""

import ctypes
import re
from contextlib import suppress

from dear_mpi.collectives.launch.mpi_facts import loaded, said_by_child

NAMES = {12: 16, 40: 32, 84: 64}  # where a component of Open MPI has the names of project, kind and itself; their bytes
SMSCS = ("cma", "xpmem", "knem", "accelerator")


def in_use(library: str) -> str | None:
    """What carries messages; None where that is not known."""
    if library.startswith("Open MPI"):
        return of_open_mpi()
    if library.startswith("MPICH"):
        return of_summary(said_by_child("from mpi4py import MPI", MPIR_CVAR_DEBUG_SUMMARY="1"))
    return None


def of_open_mpi() -> str | None:
    pml = component("pml", variable("libmpi", "mca_pml_base_selected_component"))
    if pml == "cm":
        mtl = component("mtl", pointer("libmpi", "ompi_mtl_base_selected_component"))
        return f"pml cm, mtl {mtl}" if mtl else "pml cm"
    module = pointer("libopen-pal", "mca_smsc") if pml == "ob1" else None
    copying = [name for name in SMSCS if module and variable("libopen-pal", f"mca_smsc_{name}_module") == module]
    return pml and f"pml {pml}" + "".join(f", single copies by smsc {name}" for name in copying[:1])


def variable(library: str, name: str) -> int | None:
    """The address of a variable of this process's library; None if the library keeps it elsewhere, or otherwise."""
    for path in loaded(library):
        with suppress(OSError, ValueError):
            return ctypes.addressof(ctypes.c_char.in_dll(ctypes.CDLL(path), name))
    return None


def pointer(library: str, name: str) -> int | None:
    address = variable(library, name)
    return ctypes.c_void_p.from_address(address).value if address else None


def component(kind: str, address: int | None) -> str | None:
    """The name of the component that is at an address, if it is one of this kind."""
    names = [ctypes.string_at(address + at, size).partition(b"\0")[0] for at, size in NAMES.items()] if address else []
    return names[2].decode(errors="replace") if names[:2] == [b"ompi", kind.encode()] else None


def of_summary(text: str) -> str | None:
    """What MPICH's summary says.

    >>> of_summary("==== UCX netmod Capability ===="), of_summary("libfabric provider: tcp - 192.0.2.0/24")
    ('netmod ucx', 'netmod ofi, provider tcp')
    """
    provider = re.search(r"^libfabric provider: (\S+)", text, re.MULTILINE)
    netmod = re.search(r"==== (\w+) netmod", text)
    return f"netmod ofi, provider {provider[1]}" if provider else netmod and f"netmod {netmod[1].lower()}"
