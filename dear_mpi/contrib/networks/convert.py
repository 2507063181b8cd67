"""Run ``dear-mpi convert``: find the reader by IN's content, and the writer by OUT's ending.

IN                                          OUT
algorithm, MSCCL .xml, TE-CCL .json         .xml (MSCCL), .json (MSCCL++), .goal (LogGOPSim), .et (Chakra, one per rank)
shape, file of links or doctor,             .json: a graph for synth: and --network graph:
InfraGraph .json or .yaml, lstopo .xml
ASTRA-sim .txt                              .json: a table for --model synthetic:
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from dear_mpi.cli.flags import Flags, argument, check_files, flag, try_files
from dear_mpi.cli.run import with_flags
from dear_mpi.collectives import programs, verify
from dear_mpi.collectives.program import Program
from dear_mpi.collectives.program.errors import ProgramError
from dear_mpi.collectives.program.json_file import reading
from dear_mpi.collectives.program.program import COLLECTIVES
from dear_mpi.contrib.networks.formats.astra import read_astra
from dear_mpi.contrib.networks.formats.exports import NS_PER_BYTE, chakra_trace, goal_lines, msccl_lines
from dear_mpi.contrib.networks.formats.machines import read_infragraph, read_lstopo
from dear_mpi.contrib.networks.formats.msccl import read_msccl
from dear_mpi.contrib.networks.formats.mscclpp import mscclpp_plan
from dear_mpi.contrib.networks.formats.teccl import read_teccl
from dear_mpi.contrib.networks.formats.xml import read_bytes
from dear_mpi.contrib.networks.graph import Graph, GraphFile, of_file, read_graph, write_graph
from dear_mpi.reporting.files import check_ending, replacing
from dear_mpi.reporting.terminal import console
from dear_mpi.reporting.units import parse_bytes, plural

IN = (
    "An algorithm's name, a shape such as torus:4x4, or a file: MSCCL .xml, TE-CCL .json, links .json, InfraGraph "
    ".json or .yaml, lstopo .xml, ASTRA-sim .txt."
)
OUT = "The file to write: .xml, .json, .goal or .et for programs, .json for networks and workloads."
READ = (".xml", ".json", ".yaml", ".yml", ".txt")
SHAPES = ("mesh:", "torus:", "star:", "fattree:")
TIMED = {".goal": "ns", ".et": "us"}  # the unit of a sum's time
MOST_RANKS = 1024
FLAGS = argument("source", str, IN, "IN") | argument("target", Path, OUT, "OUT")
FLAGS |= flag("collective", str, f"If IN is an algorithm's name: {', '.join(COLLECTIVES)}.", "all_reduce")
FLAGS |= flag("ranks", int, "Number of ranks, if IN is an algorithm's name.", 4, min=1, max=MOST_RANKS)
FLAGS |= flag("size", str, "Size of the whole buffer, for .goal and .et.", "1MiB")

Table: TypeAlias = dict[str, Any]


@with_flags(FLAGS, alone="convert")
def convert(flags: Flags) -> None:
    """Example: dear-mpi convert ring ring.xml --ranks 8"""
    source, target, ranks = flags["source"], flags["target"], flags.get("ranks", 4)
    check_files({"IN": [source]}, [("OUT", target)])
    of_name = is_name(source)
    check_given(flags, of_name=of_name, timed=target.suffix.lower() in TIMED)
    nbytes = parse_bytes(flags.get("size", "1MiB"))
    try:
        found = programs(source, flags.get("collective", "all_reduce"), ranks) if of_name else read(source)
    except ProgramError as error:
        hint = f" (--ranks is {ranks} by default)" if of_name and "ranks" not in flags else ""
        raise ProgramError(f"{error}{hint}") from None
    if isinstance(found, Graph | dict):
        console().print(write_table(found, target), soft_wrap=True)
    else:
        console().print(write_programs(source, found, target, nbytes), soft_wrap=True)


def is_name(source: str) -> bool:
    """Whether IN is an algorithm's name, which may have a text, such as synth:FILE.json."""
    is_file = Path(source).is_file() or (bool(Path(source).suffix) and ":" not in source)
    return not is_file and not source.startswith(SHAPES)


def check_given(flags: Flags, *, of_name: bool, timed: bool) -> None:
    """Refuse flags without a use: a file has its own collective and ranks, and only times need bytes."""
    for name, used, where in (
        ("collective", of_name, "IN is an algorithm's name"),
        ("ranks", of_name, "IN is an algorithm's name"),
        ("size", timed, f"OUT ends in {' or '.join(TIMED)}"),
    ):
        if name in flags and not used:
            raise ValueError(f"--{name} {flags[name]} has a use only if {where}")


def read(source: str) -> Sequence[Program] | Graph | Table:
    """Return programs, a network or a workload. Raises a ValueError that names the place in the file."""
    if source.startswith(SHAPES):
        return read_graph(source)
    path = Path(source)
    try:
        match path.suffix.lower():
            case ".xml":
                return graph_of(read_lstopo(path)) if b"<topology" in read_bytes(path) else read_msccl(path)
            case ".json":
                with reading("file", path, "TE-CCL, InfraGraph or links") as content:
                    names = content.keys() if isinstance(content, dict) else set()
                    if any(name.endswith("-Flows") for name in names):
                        return read_teccl(content)
                    if not {"ranks", "links"} <= names:
                        return graph_of(read_infragraph(content))
                return read_graph(path)
            case ".yaml" | ".yml":
                return graph_of(read_infragraph(read_yaml(path)))
            case ".txt":
                return read_astra(path)
    except ValueError as error:
        raise error if str(path) in str(error) else ValueError(f"{path}: {error}") from None
    raise ValueError(f"IN {source!r} must be an algorithm's name, or a file that ends in {', '.join(READ)}")


def read_yaml(path: Path) -> Any:
    try:
        import yaml
    except ImportError:
        raise ValueError("to read YAML, pip install pyyaml, or convert it to JSON") from None
    try:
        return yaml.safe_load(read_bytes(path))
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"{' '.join(str(error).split()):.300}") from None


def graph_of(content: Table) -> Graph:
    """Check the content of a graph file before it is written."""
    return of_file(msgspec.convert(content, GraphFile))


def write_table(found: Graph | Table, target: Path) -> str:
    check_ending("OUT", target, (".json",))
    with replacing("OUT", target) as file:
        if isinstance(found, Graph):
            write_graph(found, file)
            line = f"A network of {plural(found.size, 'rank')} with {plural(len(found.links), 'link')}"
        else:
            file.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
            line = f"A workload of {plural(len(found['uses']), 'layer')}"
    return f"{line}. Written to {target}"


def write_programs(source: str, found: Sequence[Program], target: Path, nbytes: int) -> str:
    check_ending("OUT", target, (".xml", ".json", *TIMED))
    ending, files, written = target.suffix.lower(), [target], str(target)
    if ending == ".et":
        files = [target.with_suffix(f".{program.rank}{target.suffix}") for program in found]
        written = f"{files[0]} to {files[-1]}"
    try_files([("OUT", file) for file in files])
    try:
        verify(found)
    except ProgramError as error:
        raise ProgramError(f"{source}: {error}") from None
    for file, content in zip(files, contents(found, ending, nbytes), strict=True):
        with replacing("OUT", file) as unfinished:
            unfinished.write_bytes(content)
    line = f"{found[0].collective} of {plural(len(found), 'rank')} in {plural(len(found[0].steps), 'step')}, proved"
    if ending in TIMED:
        line += f"; a sum is assumed to take {NS_PER_BYTE} ns per byte, in whole {TIMED[ending]}"
    return f"{line}. Written to {written}"


def contents(found: Sequence[Program], ending: str, nbytes: int) -> Iterator[bytes]:
    match ending:
        case ".xml":
            yield "\n".join([*msccl_lines(found), ""]).encode()
        case ".json":
            yield mscclpp_plan(found).encode()
        case ".goal":
            yield "\n".join([*goal_lines(found, nbytes), ""]).encode()
        case _:
            yield from (chakra_trace(program, nbytes) for program in found)
