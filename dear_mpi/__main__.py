"""``python -m dear_mpi``, and the command ``dear-mpi``."""

import os
import signal
import sys
import traceback

from dear_mpi.collectives.launch.launcher import launch_of
from dear_mpi.collectives.launch.neighbours import abort_job
from dear_mpi.reporting.files import output


@output()
def main() -> None:
    """Run the command line, with one BLAS thread per rank unless the environment says otherwise."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")  # NumPy's import reads it, before the command line is read
    try:
        from dear_mpi.cli.app import app

        app()
    except BaseException as error:
        launch = launch_of(os.environ)
        if launch.size > 1 and "mpi4py.MPI" not in sys.modules:
            join_the_others(launch.rank, error)
        code = 128 + signal.SIGINT  # Typer's exit code since 0.16
        if launch.size == 1 and (
            KeyboardInterrupt in (type(error), type(error.__cause__))
            or (isinstance(error, SystemExit) and error.code == code)
        ):
            print("rank 0 was interrupted", file=sys.stderr)
            sys.exit(code)
        raise


def join_the_others(rank: int, error: BaseException) -> None:
    """Tell the other ranks, which wait for this one as MPI starts: not every launcher ends a job because of it."""
    if not isinstance(error, SystemExit):
        traceback.print_exception(type(error), error, error.__traceback__)
        abort_job(f"rank {rank} failed: {type(error).__name__}: {error}")
    elif error.code:
        from dear_mpi.cli.run import agreed_on

        agreed_on(ValueError(str(error.__cause__ or "an error before MPI was started")))


if __name__ == "__main__":
    main()
