"""The packages' files, the rooms they are in, who may import whom, and how large each room may be.

python tests/rooms.py                prints the sizes of all rooms
python tests/rooms.py --lower        writes those that have fallen as new limits
python tests/rooms.py --limit ROOM   writes the size of this room as its limit, though it has grown
"""

import ast
import io
import json
import sys
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# The layers, lowest first, and their rooms, which are their folders. A module may import those of its own room, all of
# the layers below, and of its own layer the rooms (or single modules) that stand here behind its room. What is in no
# room, such as the facade collectives/__init__.py, may import all rooms of its layer.
ROOMS = {
    "kernels": {},
    "collectives": {
        "program": [],
        "algorithms": ["program"],
        "lowering": ["program"],
        "launch": ["program/errors"],
        "transports": ["program/errors", "program/hosts", "launch"],
        "plans": ["program", "algorithms", "lowering", "launch", "transports"],
    },
    "dear_mpi": {
        "ranks": [],
        "reporting": ["ranks"],
        "models": [],
        "training": ["ranks", "reporting", "models"],
        "torch": ["ranks", "reporting", "models", "training"],
        "see": ["ranks", "reporting", "models", "training"],
        "bench": ["ranks", "reporting", "models"],
        "simulate": ["ranks", "reporting", "models", "training", "bench"],
        "cli": ["ranks", "reporting", "models", "training", "see", "bench", "simulate"],
        "contrib": ["ranks", "reporting", "models", "training", "torch", "see", "bench", "simulate", "cli"],
    },
}
LAYERS = list(ROOMS)

# Folders and modules of training, lowest first: each may import itself and those before it, for types, too. A folder's
# entry is for those of its modules that have no entry.
TRAINING = (
    *("learning_rate", "routes", "buckets", "events", "fusion", "fabric", "schedules", "trainer", "virtual_trainer"),
    *("options", "choice", "layer_call", "kept", "group", "events/profile", "events/profiler", "fusion/tuning"),
    *("fusion/decisions", "checkpoint", "attendance", "elastic", "session", "events/recorder", "runs"),
)

# The same of bench.
BENCH = (
    *("machine_file", "fit", "case", "data", "native", "backends", "suite", "timing", "run"),
    *("output", "saved"),
)
ORDERS = {"training": TRAINING, "bench": BENCH}


# Extras that have tests here, and whose folder was deleted: their tests and pages are left out.
EXTRAS = sorted(path.name for path in (ROOT / "tests" / "contrib").glob("[a-z]*") if path.is_dir())
DELETED = [name for name in EXTRAS if not (ROOT / "dear_mpi" / "contrib" / name / "__init__.py").exists()]


def sources():
    """{module: path} of every file of the three packages, each once: not again through the links."""
    found = {}
    for layer in LAYERS:
        for path in sorted((ROOT / layer).rglob("*.py")):
            if path.resolve() == path:
                parts = path.relative_to(ROOT).with_suffix("").parts
                found[".".join(parts if layer == "dear_mpi" else ("dear_mpi", *parts))] = path
    return found


SOURCES = sources()


def room_of(path):
    """The room of a file of the packages: its folder in the layer, or the layer for what is in no folder."""
    layer, *folders = path.relative_to(ROOT).parent.parts
    return "/".join([layer, *(folders[:1] if ROOMS[layer] else [])])


def place(name):
    """(layer, path inside it) of a module of ours, or of a name in one: dear_mpi.kernels.calls is (kernels, calls)."""
    _, *parts = name.split(".")
    layer = parts.pop(0) if parts and parts[0] in LAYERS else "dear_mpi"
    return layer, "/".join(parts)


def may_import(module, name):
    """Whether the order of layers and rooms lets this module of ours import this name of ours."""
    (layer, inside), (target, found) = place(module), place(name)
    rooms = ROOMS[layer]
    if target != layer or not rooms:
        return LAYERS.index(target) <= LAYERS.index(layer)
    room = inside.partition("/")[0]
    if found.startswith("contrib"):  # core imports no extra, and an extra only itself and contrib/look
        own = inside.split("/")[:2]
        return own[0] == "contrib" and found.split("/")[1] in (*own[1:], "look")
    allowed = [room, *rooms[room]] if room in rooms else rooms
    return any(f"{found}/".startswith(f"{entry}/") for entry in allowed)


def floor_of(room, name):
    """The entry of a module, or of a name in one, in its room's order; None for those in no entry."""
    inside = name.removeprefix(f"dear_mpi.{room}").replace(".", "/") + "/"
    return max((entry for entry in ORDERS[room] if inside.startswith(f"/{entry}/")), key=len, default=None)


def may_import_in_order(room, module, name):
    """The same inside a room with an order; its ``__init__`` may import all, and is imported by none of it."""
    order = [*ORDERS[room], None]
    return order.index(floor_of(room, name)) <= order.index(floor_of(room, module))


LIMITS = ROOT / "tests" / "rooms.json"  # tokens of each room: they may fall, but not rise
NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def size_of(path):
    """Files, lines, tokens of code without imports, and words of docstrings and comments of one file.

    Tokens are what is limited: a line can be crammed.
    """
    text = path.read_text(encoding="utf-8")
    size, left_out = Counter(files=1, lines=text.count("\n"), tokens=0, words=0), set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            left_out.update(range(node.lineno, node.end_lineno + 1))
        elif isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and (
            docstring := ast.get_docstring(node)
        ):
            size["words"] += len(docstring.split())
            left_out.update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            size["words"] += len(token.string.split()) - 1
        size["tokens"] += token.type not in NO_CODE and token.start[0] not in left_out
    return size


def sizes():
    """{room: its size}; the folders of training and of contrib are rooms of their own."""
    found = {}
    for path in SOURCES.values():
        *folders, _ = path.relative_to(ROOT).parts
        depth = 3 if folders[:2] in (["dear_mpi", "training"], ["dear_mpi", "contrib"]) else 2
        found.setdefault("/".join(folders[:depth]), Counter()).update(size_of(path))
    return dict(sorted(found.items()))


def main():
    found = sizes()
    columns = ("files", "lines", "tokens", "words")
    core = sum((size for room, size in found.items() if "/contrib" not in room), Counter())
    contrib = sum((size for room, size in found.items() if "/contrib" in room), Counter())
    print(f"{'room':30}" + "".join(f"{column:>9}" for column in columns))
    for room, size in [*found.items(), ("core", core), ("contrib", contrib)]:
        print(f"{room:30}" + "".join(f"{size[column]:9}" for column in columns))
    if {"--lower", "--limit"} & {*sys.argv}:
        limits = json.loads(LIMITS.read_text())
        for room, size in found.items():
            limits[room] = size["tokens"] if room in sys.argv else min(size["tokens"], limits.get(room, size["tokens"]))
        LIMITS.write_text(json.dumps({room: limits[room] for room in found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
