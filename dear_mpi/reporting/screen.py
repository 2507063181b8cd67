"""Whether people see what this process writes. Under a launcher its own streams do not tell.

Open MPI gives each rank a terminal as standard output, whether its own goes to one or to a file, and a pipe as standard
error; MPICH gives pipes. So the launcher's streams are looked at, in /proc. Where that cannot be done, as on another
host than the launcher's, we take it that nobody looks on: output is plain, and there are no progress bars.
"""

import os
from typing import TextIO

from dear_mpi.collectives.launch.launcher import OPEN_MPI, launch_of, launcher_process

UNKNOWN_COLUMNS = 80  # of a terminal that does not tell


def columns_of(stream: TextIO) -> int | None:
    """How wide the terminal is on which this standard stream is seen; None if it ends elsewhere or that is unknown."""
    try:
        number, launcher = stream.fileno(), launch_of(os.environ).launcher
        process = None if launcher == "none" else launcher_process()
        if process is None:
            return None if launcher == OPEN_MPI else width_of(number)
        # Opened anew, as it is another process's: without waiting for a reader, and never as our own terminal.
        opened = os.open(process / "fd" / str(number), os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            return width_of(opened)
        finally:
            os.close(opened)
    except OSError:  # no such descriptor, no terminal, or a process that we may not look into
        return None


def width_of(descriptor: int) -> int:
    """An OSError says that this is no terminal."""
    return os.get_terminal_size(descriptor).columns or UNKNOWN_COLUMNS
