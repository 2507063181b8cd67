#!/bin/bash
# The first run on a cluster: doctor, links, bench and train, each under the launcher that is given. The first that fails
# ends it; docs/cluster.md says how to read them. Figures go into the folder RESULTS; STEPS says which of the four to run.
#
#     hostfiles/first-run.sh srun --mpi=pmix -N 2 --ntasks-per-node=4 --cpus-per-task=2 --cpu-bind=cores
set -e
[ $# -ge 1 ] || { echo "usage: $0 LAUNCHER [FLAG...]" >&2; exit 2; }
command -v dear-mpi > /dev/null || { echo "$0: there is no dear-mpi on PATH: . .venv/bin/activate" >&2; exit 2; }
results=${RESULTS:-results}
mkdir -p "$results"
for step in ${STEPS:-doctor links bench train}; do
    case $step in
    bench) flags=(--algorithms "native-best,ring,hierarchical,auto" --sizes 4B:64MiB) ;;
    train) flags=(--model mlp --schedule dear) ;;
    *) flags=() ;;
    esac
    echo "== dear-mpi $step ${flags[*]}"
    "$@" "$(command -v dear-mpi)" "$step" "${flags[@]}" --json "$results/$step.json"
done
