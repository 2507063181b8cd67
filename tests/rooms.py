"""The packages' files, the rooms they are in, and who may import whom. As a script, it prints the lines of each room.

python tests/rooms.py
"""

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
        "transports": ["program/errors", "program/hosts", "program/lanes", "launch"],
        "plans": ["program", "algorithms", "lowering", "launch", "transports"],
    },
    "dear_mpi": {
        "ranks": [],
        "reporting": ["ranks"],
        "models": [],
        "training": ["ranks", "reporting", "models"],
        "adapters": ["reporting", "models", "training"],
        "see": ["ranks", "reporting", "models", "training"],
        "bench": ["ranks", "reporting", "models", "training/declared"],
        "simulate": ["ranks", "reporting", "models", "training", "bench"],
        "doctor": ["ranks", "reporting", "bench/machine_file"],
        "advise": ["reporting", "training", "adapters", "see", "simulate"],
        "cli": ["ranks", "reporting", "models", "training", "see", "bench", "simulate", "doctor", "advise"],
    },
}
LAYERS = list(ROOMS)

# Folders and modules of training, lowest first: each may import itself and those before it, for types, too.
TRAINING = (
    *("declared", "learning_rate", "facts", "wires", "routes", "line", "log", "fusion", "fabric", "costs", "schedules"),
    *("trainer", "prediction", "virtual_trainer", "options", "chosen_route", "layer_copies", "layer_use"),
    *(
        "group",
        "profiles",
        "tuning",
        "decisions",
        "checkpoints",
        "attendance",
        "session",
        "recording",
        "recorder",
        "blame",
        "runs",
    ),
)

# The same of bench. What is in analysis reads reports: nothing else imports it.
BENCH = (
    *("machine_file", "case", "data", "arrivals", "native", "backends", "timing", "turns", "saved", "suite"),
    *("overlap", "steps", "fit", "peers", "run", "table", "layouts", "output", "diff", "tune", "provenance"),
    *("kernels", "analysis"),
)
ORDERS = {"training": TRAINING, "bench": BENCH}


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
    allowed = [room, *rooms[room]] if room in rooms else rooms
    return any(f"{found}/".startswith(f"{entry}/") for entry in allowed)


def may_import_in_order(room, module, name):
    """The same inside a room with an order; its ``__init__`` may import all, and is imported by none of it."""
    order, prefix = ORDERS[room], f"dear_mpi.{room}"
    floors = [each.removeprefix(prefix).removeprefix(".").partition(".")[0] for each in (module, name)]
    own, target = (order.index(floor) if floor in order else len(order) for floor in floors)
    return target <= own


def main():
    lines = Counter()
    for path in SOURCES.values():
        lines[room_of(path)] += len(path.read_text(encoding="utf-8").splitlines())
    for room in sorted(lines, key=lambda room: (LAYERS.index(room.partition("/")[0]), room)):
        print(f"{lines[room]:7} {room}")
    print(f"{lines.total():7} lines of Python in {', '.join(LAYERS)}")


if __name__ == "__main__":
    main()
