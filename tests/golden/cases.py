"""The cases of the golden files, and how each is run: by its command line, whose names are a contract."""

import json
import re
import shlex
from itertools import product
from pathlib import Path

from typer.testing import CliRunner

from dear_mpi.cli.app import app
from dear_mpi.cli.commands import all_commands
from tests.golden.elementwise import write_data

HERE = Path(__file__).parent
SCHEDULES = (
    *("sequential", "wfbp", "ddp", "mg-wfbp", "horovod", "bytescheduler", "zero", "fsdp", "dear", "dear-eager"),
    *("lancet", "local:2", "post-local:2", "diloco:2"),
)
ROUTES = ("full", "sharded")
WIRES = (
    *("", "bf16", "fp16", "fp64", "int8", "int4", "fp8", "topk:10%", "randomk:20%", "blocks:20%"),
    *("acp:2", "powersgd:2", "noise:1%", "sketch:4"),
)
RANKS = (1, 2, 3, 4, 5)
FURTHER = (
    *(f"--algorithm {name}" for name in (
        *("naive", "ring", "bidirectional", "pairwise", "ordered", "shared", "bruck", "rabenseifner", "swing"),
        *("hierarchical", "torus", "themis", "auto"),
    )),
    *(f"--schedule wfbp --algorithm {name}" for name in ("recursive_doubling", "binomial", "double_tree")),
    *(f"--fusion {name}" for name in (
        *("none", "layers:2", "buckets:2", "25MB", "cut:1KB", "tensors", "ddp", "horovod", "own", "at:96,200"),
    )),
    *(f"--optimizer {name} --lr 0.01" for name in ("sgd", "adam", "adamw", "lamb", "muon")),
    "--optimizer sgd --lr 0.05 --momentum 0.9", "--optimizer sgd:nesterov=1 --lr 0.05 --momentum 0.9",
    "--optimizer sgd --lr 0.05 --weight-decay 0.01", "--clip 0.5", "--clip 0.5 --wire int8",
    "--clip 0.5 --wire topk:10%",
    "--loss-scale dynamic --wire fp16", "--loss-scale dynamic --clip 1 --update sharded", "--accumulate 3",
    "--accumulate 2 --wire int8", "--accumulate 2 --schedule dear-eager --update sharded", "--dtype fp64",
    "--dtype fp64 --wire fp32", "--segment 4KiB", "--decay cosine --warmup 2", "--debug",
    "--batch 7", "--update auto --optimizer lamb --lr 0.01",
    "--update sharded --optimizer muon --lr 0.01", "--schedule diloco:3 --update sharded", "--wire int8:error=no",
    "--wire topk:10%:error=no", "--wire int4 --schedule dear-eager --fusion cut:1KB",
    "--link 100gbit,1us/100gbit,1us,hosts=2 --algorithm hierarchical",
    "--link 100gbit,1us/100gbit,1us,hosts=2 --algorithm hierarchical --wire int8:between",
    "--link 100gbit,1us/100gbit,1us,hosts=2 --algorithm hierarchical --wire topk:10%:between",
)  # fmt: skip


def trainings():
    """Options of ``train``, the number of ranks last."""
    for schedule, route, wire in product(SCHEDULES, ROUTES, WIRES):
        yield f"--schedule {schedule} --update {route}" + f" --wire {wire}" * bool(wire)
    yield from FURTHER


def cases():
    return [f"{options} --threads {ranks}" for options in trainings() for ranks in RANKS]


def parameters():
    """{case: what the golden file has of it}. A line of the file has an entry for each number of ranks."""
    found = json.loads((HERE / "parameters.json").read_text())
    lines = ((options, zip(RANKS, each, strict=True)) for options, each in found.items())
    return {f"{options} --threads {ranks}": wanted for options, each in lines for ranks, wanted in each}


def run(*arguments):
    return CliRunner().invoke(app, [str(each) for each in arguments])


USUAL = {"--fusion": "buckets:3", "--optimizer": "sgd", "--lr": 1.0, "--batch": 10, "--iterations": 6}


def command(options, folder):
    """The words of a command line, which writes a report into a folder with data.npz."""
    model = ("--model", f"{HERE / 'elementwise.py'}:build", "--data", folder / "data.npz")
    usual = [word for name, value in USUAL.items() if name not in options.split() for word in (name, value)]
    return ["train", *model, *usual, *shlex.split(options), "--json", folder / "report.json"]


def train(options, folder):
    """[the beginning of the parameters' SHA-256, the last loss], or why it is refused."""
    if not (folder / "data.npz").exists():
        write_data(folder / "data.npz")
    done = run(*command(options, folder))
    return f"exit code {done.exit_code}" if done.exit_code else reported(folder)


def reported(folder):
    found = json.loads((folder / "report.json").read_text())
    return [found["params_sha256"][:16], found["loss"][-1]]


NETWORKS = ("10gbit,50us", "100gbit,2us", "1gbit,100us", "100gbit,2us/10gbit,20us,per_host=4")
MODELS = ("resnet50", "densenet201", "bert_base", "inceptionv4")
HOW = (
    "--schedules sequential,wfbp,dear,dear-eager --fusion 25MB",
    "--schedules wfbp,dear,zero,fsdp --fusion cut:4MB --update sharded",
    "--schedules wfbp,ddp,mg-wfbp,horovod,bytescheduler --fusion own",
    "--schedules dear,dear-eager --fusion 25MB --algorithm rabenseifner",
    "--schedules wfbp,dear --wire int8 --fusion cut:4MB",
    "--schedules wfbp,dear-eager --wire topk:1% --fusion 25MB --clip 1",
    "--schedules local:4,diloco:4,wfbp --fusion 25MB",
    "--schedules wfbp,ddp --algorithm recursive_doubling --fusion buckets:8",
    "--schedules dear,dear-eager --accumulate 2 --fusion layers:8",
    "--schedules wfbp,dear --wire int4 --fusion mgwfbp --forward-time 0.05",
)


def predictions():
    """40 settings of ``simulate``."""
    for number, how in enumerate(HOW):
        for turn in range(4):
            model, network = MODELS[(number + turn) % 4], NETWORKS[(number + 2 * turn) % 4]
            yield f"--model synthetic:{model} --network {network} --ranks {(4, 6, 16, 64)[turn]} {how}"


def predict(options, folder):
    """The rows, without what is no result."""
    report = folder / "rows.json"
    done = run("simulate", *shlex.split(options), "--json", report)
    return json.loads(report.read_text()) if done.exit_code == 0 else f"exit code {done.exit_code}"


COMMANDS = (
    *("train", "compare", "demo", "bench", "bench-diff", "plot", "timeline", "blame", "doctor"),
    *("links", "explain", "simulate", "advise"),
)
WRITING = {
    "train": "train --model mlp --iterations 4 --threads 2",
    "compare": "compare --model mlp --schedules wfbp,dear --iterations 8 --threads 2",
    "bench": "bench --sizes 1KiB --iterations 6 --algorithms ring,native --threads 2",
    "bench-diff": "bench-diff {bench} {bench}",
    "simulate": "simulate --ranks 4 --schedules wfbp,dear",
}
CODES = (
    *("", "nonsense", "--version", "--help", "train --nonsense 1", "train --threads 2 --model nonsense"),
    *("train --threads 2 --schedule nonsense", "train --threads 2 --wire int9", "train --threads 0"),
    *("train --threads 2 --model mlp --iterations 30 --lr 1e30", "train --resume", "compare --threads 2 --schedules a"),
    *("bench --threads 2 --sizes x", "bench --threads 2 --collective nonsense", "bench-diff a.json b.json"),
    *("bench-diff {bench} {bench}", "plot nowhere.json", "timeline nowhere.json", "blame nowhere.json"),
    *(
        "explain --algorithm ring --ranks 4 --check",
        "explain --algorithm nonsense",
        "explain --ranks 0",
        "simulate --ranks 0",
    ),
    *("simulate --network nonsense", "simulate --ranks 4 --schedules dear", "advise nowhere.py"),
    *("links --threads 1", "links --threads 2 --size nonsense"),
)


def flags_of(command):
    """The flags that its help shows, with the kind of value each takes."""
    lines = run(command, "--help").stdout.splitlines()
    found = (re.match(r"│ (?:\* +)?(--[a-z0-9-]+)(?: +(<[^>]+>|[A-Z_]+|N \[[^]]*\]))?", line) for line in lines)
    return {each[1]: " ".join((each[2] or "").split()) for each in found if each}


def keys(value, at=""):
    """The paths of all keys in JSON; list items are one, and so is the environment of a run."""
    if isinstance(value, dict):
        inner = {key: {} if key == "environment" else inner for key, inner in value.items()}
        return {path for key in inner for path in {f"{at}.{key}", *keys(inner[key], f"{at}.{key}")}}
    return {path for inner in value for path in keys(inner, f"{at}[]")} if isinstance(value, list) else set()


def command_facts(folder):
    """{"flags", "keys", "codes"} of all commands."""
    gone = tuple(command for command in COMMANDS if command not in all_commands())  # of deleted extras
    found = {"flags": {command: flags_of(command) for command in COMMANDS}, "keys": {}, "codes": {}}
    files = {name: folder / f"{name}.json" for name in WRITING}
    for name, line in WRITING.items():
        if name in gone:
            continue
        run(*shlex.split(line.format(**files)), "--json", files[name])
        found["keys"][name] = sorted(keys(json.loads(files[name].read_text())))
    found["codes"] = {
        line: run(*shlex.split(line.format(**files))).exit_code for line in CODES if line.split(" ")[0] not in gone
    }
    return found
