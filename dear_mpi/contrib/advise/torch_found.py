from collections import Counter, defaultdict
from typing import Any

import torch

from dear_mpi.contrib.advise.observed import BACK, END, READY, USE, Mark, Seen, Watched, Wrapped
from dear_mpi.contrib.advise.torch_watcher import COMPILED, Watcher, ids, own_parameters

NAMES = {torch.float64: "fp64", torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
MOST_NAMED = 3


def found(watcher: Watcher) -> Watched:
    """Return all data for a prediction, without PyTorch objects."""
    seconds = watcher.clock.reader()
    names, wrapped = names_of(watcher), wrapped_of(watcher)
    users = users_of(watcher)
    tensors = [
        Seen(names.get(tensor, f"tensor {number}"), tuple(tensor.shape), type_name(tensor), tuple(users[tensor]))
        for tensor, number in watcher.tensors.items()
    ]
    same, passing = made_anew(watcher)
    model = max(watcher.roots, key=lambda root: sum(each.numel() for each in root.parameters()))
    return Watched(
        model=type(unwrapped(model)).__name__,
        device=watcher.clock.device,
        names=[f"{names[module]}{f' again {nth}' if nth else ''}" for module, nth in watcher.uses],
        tensors=tensors,
        watched=[
            [
                Mark(kind, same.get(key, key) if kind in (USE, BACK) else key, seconds(at))
                for kind, key, at in marks
                if kind != READY or key not in passing
            ]
            for marks in watcher.watched
        ],
        plain_s=[seconds(end) - seconds(begin) for begin, end in watcher.plain],
        wrapped=wrapped,
        notes=tuple(notes(watcher, tensors, passing)),
        threads=torch.get_num_threads(),
    )


def made_anew(watcher: Watcher) -> tuple[dict[int, int], set[int]]:
    """Map layer calls of recreated modules to the earlier calls that they repeat; also return tensors made with them.

    Many scripts recreate their loss in each pass or epoch. A module that misses an iteration is compared by class,
    lasting parameters and place among such modules of the pass. DDP never sees recreated parameters.
    """
    passes: list[list[list[int]]] = []  # iterations, passes, layer calls
    for marks in watcher.watched:
        passes.append([[]])
        for kind, key, _ in marks:
            if kind == USE:
                passes[-1][-1].append(key)
            elif kind == END:
                passes[-1].append([])
    module_of = {number: module for (module, _), number in watcher.uses.items()}
    runs = Counter(module for each in passes for module in {module_of[use] for part in each for use in part})
    owned = {
        module: [watcher.tensors[each] for each in own_parameters(module) if each in watcher.tensors] for module in runs
    }
    owners = Counter(number for numbers in owned.values() for number in numbers)
    trained = set(ids(watcher.optimizer))
    lasting = {number for tensor, number in watcher.tensors.items() if id(tensor) in trained or owners[number] > 1}
    lasting.update(*(owned[module] for module in runs if runs[module] == len(passes)))
    first: dict[Any, int] = {}
    same: dict[int, int] = {}
    for part in (part for each in passes for part in each):
        places, again = defaultdict[Any, dict[Any, int]](dict), Counter[Any]()
        for use in part:
            module = module_of[use]
            like = type(module).__qualname__, tuple(number for number in owned[module] if number in lasting)
            if runs[module] < len(passes):
                place = places[like].setdefault(module, len(places[like]))
                same[use] = first.setdefault((like, place, again[module]), use)
            again[module] += 1
    return same, {number for number in watcher.tensors.values() if number not in lasting}


def type_name(tensor: Any) -> str:
    return NAMES.get(tensor.dtype, str(tensor.dtype).removeprefix("torch."))


def unwrapped(module: Any) -> Any:
    return module.module if isinstance(module, torch.nn.parallel.DistributedDataParallel) else module


def names_of(watcher: Watcher) -> dict[Any, str]:
    """Name modules and tensors by the modules that the script calls."""
    named: dict[Any, str] = {}
    for root in map(unwrapped, watcher.roots):
        for name, module in root.named_modules():
            named.setdefault(module, name or type(root).__name__)
        for name, tensor in root.named_parameters():
            named.setdefault(tensor, name)
    for module, _ in watcher.uses:
        named.setdefault(module, type(module).__name__)
    return named


def users_of(watcher: Watcher) -> dict[Any, list[int]]:
    """Return the layer calls that read each tensor: those of the module that owns it.

    If that never ran by itself: of the nearest ancestor that did, or of the first call below that.
    """
    uses, users = defaultdict[Any, list[int]](list), defaultdict[Any, list[int]](list)
    for (module, _), number in watcher.uses.items():
        uses[module].append(number)

    def walk(module: Any, above: list[int]) -> None:
        below = [number for each in module.modules() for number in uses.get(each, ())]
        own = uses.get(module) or above or below[:1]
        for tensor in module.parameters(recurse=False):
            users[tensor] += [number for number in own if number not in users[tensor]]
        for child in module.children():
            walk(child, uses.get(module) or (below[:1] or above))

    for root in watcher.roots:
        walk(root, [])
    return users


def wrapped_of(watcher: Watcher) -> Wrapped | None:
    for root in watcher.roots:
        if isinstance(root, torch.nn.parallel.DistributedDataParallel):
            asked = getattr(root, "bucket_bytes_cap", None)
            usual = getattr(root, "bucket_bytes_cap_default", False)
            unlike = ["a communication hook"] * bool(getattr(root, "_comm_hooks", None))
            unlike += ["find_unused_parameters"] * bool(root.find_unused_parameters)
            unlike += ["a list of bucket sizes"] * bool(getattr(root, "bucket_cap_mb_list", None))
            return Wrapped(None if usual else asked, all(watcher.synced), tuple(unlike))
    return None


def notes(watcher: Watcher, tensors: list[Seen], passing: set[int]) -> list[str]:
    ready = {key for marks in watcher.watched for kind, key, _ in marks if kind == READY}
    silent = [each.name for number, each in enumerate(tensors) if number not in ready | passing]
    lost = [each.name for number, each in enumerate(tensors) if not each.uses and number in ready]
    anew = list(dict.fromkeys(each.name for number, each in enumerate(tensors) if number in passing))
    said = [f"{some(silent)}: no gradient came"] * bool(silent)
    said += [f"{some(anew)}: made anew in each pass, so never trained, and not counted"] * bool(anew)
    said += [f"{some(lost)}: no module that ran has them, so each stands where its gradient came"] * bool(lost)
    said += [SEVERAL] * bool(watcher.others)
    few = f"watched {len(watcher.watched)} of {watcher.most} iterations: the script ended after {watcher.count}"
    said += [few] * (len(watcher.watched) < watcher.most)
    kinds = {type(module).__name__ for root in watcher.roots for module in root.modules()}
    for kind, why in UNSEEN.items():
        said += [f"{kind}: {why}"] * (kind in kinds)
    return said


SEVERAL = (
    "several optimisers: an iteration ends where the first of them has made its step, and all backward passes in it "
    "are taken for parts of a batch"
)
UNSEEN = {
    COMPILED: "what torch.compile has compiled is one layer here, whose gradients come one by one",
    "DataParallel": "its copies of modules are new in each iteration",
    "FullyShardedDataParallel": "its tensors are shards, and it communicates by itself",
}


def some(names: list[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more
