"""Run ``dear-mpi convert``: find the reader by IN's content, and the writer by OUT's ending.

IN                                          OUT
algorithm, MSCCL .xml, TE-CCL .json         .xml (MSCCL), .json (MSCCL++), .goal (LogGOPSim), .et (Chakra, one per rank)
InfraGraph .json or .yaml, lstopo .xml      .json: a graph for synth: and --network graph:
ASTRA-sim .txt                              .json: a table for --model synthetic:
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dear_mpi.cli.flags import Flags, argument, check_files, flag
from dear_mpi.cli.run import with_flags, write_json
from dear_mpi.collectives import programs, verify
from dear_mpi.collectives.program import Program
from dear_mpi.collectives.program.errors import ProgramError
from dear_mpi.collectives.program.json_file import reading
from dear_mpi.collectives.program.program import COLLECTIVES
from dear_mpi.contrib.networks.formats.astra import read_astra
from dear_mpi.contrib.networks.formats.exports import write_chakra, write_goal, write_msccl
from dear_mpi.contrib.networks.formats.machines import read_infragraph, read_lstopo
from dear_mpi.contrib.networks.formats.msccl import read_msccl
from dear_mpi.contrib.networks.formats.mscclpp import write_mscclpp
from dear_mpi.contrib.networks.formats.teccl import read_teccl
from dear_mpi.contrib.networks.formats.xml import read_bytes
from dear_mpi.contrib.networks.graph import Graph, write_graph
from dear_mpi.kernels.lookup import lookup
from dear_mpi.reporting.files import check_ending, replacing
from dear_mpi.reporting.terminal import console
from dear_mpi.reporting.units import parse_bytes, plural

KINDS = (
    "An algorithm's name, or a file: MSCCL .xml, TE-CCL .json, InfraGraph .json or .yaml, lstopo .xml, ASTRA-sim .txt."
)
OUT = "The file to write: .xml, .json, .goal or .et for programs, .json for networks and workloads."
READ = (".xml", ".json", ".yaml", ".yml", ".txt")
MOST_RANKS = 1024
FLAGS = argument("source", str, KINDS, "IN") | argument("target", Path, OUT, "OUT")
FLAGS |= flag("collective", str, f"If IN is an algorithm's name: {', '.join(COLLECTIVES)}.", "all_reduce")
FLAGS |= flag("ranks", int, "Number of ranks, if IN is an algorithm's name.", 4, min=1, max=MOST_RANKS)
FLAGS |= flag("size", str, "Size of the whole buffer, for .goal and .et.", "1MiB")


def is_file(source: str) -> bool:
    """Whether IN is a file; an algorithm's name may have a text, such as synth:FILE.json."""
    return Path(source).exists() or (bool(Path(source).suffix) and ":" not in source)


def read(source: str) -> Sequence[Program] | Graph | dict[str, Any]:
    """Return programs, a network or a workload. Raises a ValueError that names the place in the file."""
    path = Path(source)
    match path.suffix:
        case ".xml":
            return read_lstopo(path) if b"<topology" in read_bytes(path) else read_msccl(path)
        case ".json":
            with reading("file", path, "TE-CCL or InfraGraph") as content:
                solved = isinstance(content, dict) and any(name.endswith("-Flows") for name in content)
                return read_teccl(content) if solved else read_infragraph(content)
        case ".yaml" | ".yml":
            return read_yaml(path)
        case ".txt":
            return read_astra(path)
    raise ValueError(f"IN {source!r} must be an algorithm's name, or a file that ends in {', '.join(READ)}")


def read_yaml(path: Path) -> Graph:
    try:
        import yaml
    except ImportError:
        raise ValueError(f"{path}: to read YAML, pip install pyyaml, or convert it to JSON") from None
    try:
        return read_infragraph(yaml.safe_load(read_bytes(path)))
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"{path}: {' '.join(str(error).split()):.300}") from None


def check_given(flags: Flags, *, of_name: bool, timed: bool) -> None:
    """Refuse flags without a use: a file has its own collective and ranks, and only times need bytes."""
    for name, used, where in (
        ("collective", of_name, "IN is an algorithm's name"),
        ("ranks", of_name, "IN is an algorithm's name"),
        ("size", timed, "OUT ends in .goal or .et"),
    ):
        if name in flags and not used:
            raise ValueError(f"--{name} {flags[name]} has a use only if {where}")


@with_flags(FLAGS, alone="convert")
def convert(flags: Flags) -> None:
    """Example: dear-mpi convert ring ring.xml --ranks 8"""
    source, target = flags["source"], flags["target"]
    collective, ranks = flags.get("collective", "all_reduce"), flags.get("ranks", 4)
    nbytes = parse_bytes(flags.get("size", "1MiB"))
    lookup("collective", collective, COLLECTIVES)
    check_files({"IN": [source]}, [("OUT", target)])
    of_file = is_file(source)
    check_given(flags, of_name=not of_file, timed=target.suffix in (".goal", ".et"))
    found = read(source) if of_file else programs(source, collective, ranks)
    if isinstance(found, Graph):
        check_ending("OUT", target, (".json",))
        with replacing("OUT", target) as file:
            write_graph(found, file)
        line = f"A network of {plural(found.size, 'rank')} with {plural(len(found.links), 'link')}"
    elif isinstance(found, dict):
        check_ending("OUT", target, (".json",))
        write_json(found, target)
        line = f"A workload of {plural(len(found['uses']), 'layer')}"
    else:
        line = write_programs(source, found, target, nbytes)
    console().print(f"{line}. Written to {target}", soft_wrap=True)


def write_programs(source: str, found: Sequence[Program], target: Path, nbytes: int) -> str:
    check_ending("OUT", target, (".xml", ".json", ".goal", ".et"))
    try:
        verify(found)
    except ProgramError as error:
        raise ProgramError(f"{source}: {error}") from None
    if target.suffix == ".xml":
        write_msccl(target, found)
    elif target.suffix == ".json":
        write_mscclpp(target, found)
    elif target.suffix == ".goal":
        write_goal(target, found, nbytes)
    else:
        write_chakra(target, found, nbytes)
    steps = plural(len(found[0].steps), "step")
    return f"{found[0].collective} of {plural(len(found), 'rank')} in {steps}, proved"
