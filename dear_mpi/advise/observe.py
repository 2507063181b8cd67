"""From a script, or the file of one that was observed before, to an observation."""

from collections.abc import Sequence
from pathlib import Path

from dear_mpi.advise.assembled import assemble
from dear_mpi.advise.observation import Observation, read_observation

ITERATIONS = 10


def observe(script: Path, arguments: Sequence[str], iterations: int = ITERATIONS) -> Observation:
    """Run the script, or read the file.

    Raises:
        ValueError: there is no such file; PyTorch is missing; or as for ``watch_script`` and ``read_observation``.
    """
    if not script.is_file():
        wrong = "it is a folder" if script.is_dir() else "there is no such file"
        raise ValueError(f"script {str(script)!r}: {wrong}")
    if script.suffix == ".json":
        if arguments:
            raise ValueError(f"{str(script)!r} was observed before: it takes no arguments, as {arguments[0]!r}")
        return read_observation(script)
    try:
        from dear_mpi.adapters.torch_script import watch_script  # PyTorch is optional, and takes a second
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        advice = "pip install torch; or give FILE.json, which advise --save wrote elsewhere"
        raise ValueError(f"advise runs scripts of PyTorch, which is not installed: {advice}") from None
    return assemble(watch_script(script, arguments, iterations))
