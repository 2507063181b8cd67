"""``python -m dear_mpi``, and the command ``dear-mpi``."""

import os


def main() -> None:
    """Run the command line, with one BLAS thread per rank unless the environment says otherwise."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")  # read when NumPy is imported, hence before the command line is
    from dear_mpi.cli.app import app

    app()


if __name__ == "__main__":
    main()
