"""The host's side: what it touches that the stand-in cannot see, because it is a NumPy array or MPI."""

from cupy import order, storage
from cupy.cuda.device import Device
from cupy.cuda.stream import Stream, by_pointer, check_context
from cupy.raw import launches


def check_host_access(array_or_address, nbytes=None, write=False, name="the host"):
    """The host touches these bytes now: everything that devices do with them must have been waited for.

    Args:
        array_or_address: a device array, a NumPy array (nothing is checked unless it is pinned) or an address.
        nbytes: with an address, how many.

    Raises:
        RaceError: something pending was not waited for.
    """
    span = storage.span(array_or_address, nbytes)
    if span is not None:
        order.check_host(*span, write, name)


def begin_host_use(array_or_address, nbytes=None, write=False, name="a use by the host"):
    """As ``check_host_access``, and from now on until ``end_host_use`` the bytes are in use.

    Returns:
        what ``end_host_use`` takes.
    """
    span = storage.span(array_or_address, nbytes)
    if span is None:
        return None
    shadow, start, stop = span
    if shadow.kind != "pinned":
        check_context()  # MPI's cuda_ipc works with the device of the calling thread
    return shadow, order.begin_use(shadow, start, stop, write, name)


def end_host_use(use):
    if use is not None:
        order.end_use(*use)


def reset():
    """Between tests: all work is over, this thread is on device 0 and its null stream, nothing was counted."""
    storage.reset()
    order.reset([stream.own for stream in by_pointer.values()])
    launches.clear()
    Device(0).use()
    Stream.null.use()
