"""Write the golden files anew: ``python -m tests.golden [parameters|commands|predictions] ...``.

Parameters are computed twice, the second time as on an older processor. Where the two differ (matrix products, roots of
sums), the file keeps only the loss, to 1e-4.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.golden.cases import HERE, RANKS, cases, command_facts, predict, predictions, trainings

OLDER = {"OPENBLAS_CORETYPE": "Nehalem", "NPY_DISABLE_CPU_FEATURES": "AVX2 FMA3 AVX512F AVX512CD AVX512_SKX"}
COMPUTE = """
import json, sys, tempfile
from pathlib import Path
from tests.golden.cases import cases, train
with tempfile.TemporaryDirectory() as folder:
    json.dump({case: train(case, Path(folder)) for case in cases()}, open(sys.argv[1], "w"))
"""


def parameters(folder):
    here, older = folder / "here.json", folder / "older.json"
    jobs = [
        subprocess.Popen([sys.executable, "-c", COMPUTE, str(path)], env=os.environ | extra)
        for path, extra in ((here, {}), (older, OLDER))
    ]
    if any(job.wait() for job in jobs):
        raise SystemExit("a run of the cases failed")
    first, second = (json.loads(path.read_text()) for path in (here, older))
    both = {case: first[case] if first[case] == second[case] else first[case][1:] for case in cases()}
    return {options: [both[f"{options} --threads {ranks}"] for ranks in RANKS] for options in trainings()}


def write(name, found):
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in found.items())
    (HERE / f"{name}.json").write_text(f"{{\n{lines}\n}}\n")


def main():
    asked = sys.argv[1:] or ["parameters", "commands", "predictions"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if "parameters" in asked:
            write("parameters", parameters(folder))
        if "commands" in asked:
            write("commands", command_facts(folder))
        if "predictions" in asked:
            write("predictions", {options: predict(options, folder) for options in predictions()})


if __name__ == "__main__":
    main()
