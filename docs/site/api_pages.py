"""The reference of Python names: a page for each module from which users import, filled from docstrings; and a page of
the options of a session, filled from their declarations."""

import ast
import inspect
import re
from dataclasses import MISSING, fields
from functools import cache
from importlib import import_module
from pathlib import Path

from dear_mpi.training.options import Options
from docs.site.command_pages import escaped
from tests.rooms import SOURCES

FOLDER = "api"
OPTIONS = f"{FOLDER}/session-options.md"
# What offers its names to other rooms; users have those of optimisers from dear_mpi.training.
INSIDE = {"dear_mpi.collectives.plans.runners.shared", "dear_mpi.kernels.optimizers"}


def api_pages() -> dict[str, str]:
    """Of each such module its page, by the page's path."""
    pages = {f"{FOLDER}/{module}.md": page(module, names) for module, names in offered().items()}
    return {OPTIONS: "\n".join(["# Options of a session", "", ABOUT, *map(row, sorted(options()))]), **pages}


ABOUT = """`Session(layers, loss, comm, NAME=value, ...)` takes these options, and so does
`DistributedOptimizer` ([PyTorch](../other-frameworks.md)). A wrong name or value is an error on all ranks, before any
training.

| option | type | what it does | default |
|---|---|---|---|"""


def row(option: tuple[str, ...]) -> str:
    name, kind, said, default = (escaped(text) for text in option)
    return f'| <span id="{name}"></span>`{name}` | `{kind}` | {said} | {default} |'


def options() -> list[tuple[str, ...]]:
    """Of each option of a session its name, type, meaning and default."""
    own = dict(re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", inspect.getdoc(Options) or "", re.MULTILINE))
    found = []
    for each in fields(Options):
        declared = each.metadata.get("option")
        said = declared.help if declared else " ".join(own[each.name].replace("``", "`").split())
        none = declared.shown if declared and declared.shown else "none"
        made = f"{getattr(each.default_factory, '__name__', '')}()"
        default = f"`{made if each.default is MISSING else repr(each.default)}`" if each.default is not None else none
        found.append((each.name, str(each.type).replace(" |", " or"), said, default))
    return found


def page(module: str, names: list[str]) -> str:
    members = "".join(f"        - {name}\n" for name in names)
    return f"# {module}\n\n::: {module}\n    options:\n      show_root_heading: false\n      members:\n{members}"


@cache
def offered() -> dict[str, list[str]]:
    """The public names of each module, without those that a package above it offers, too."""
    found = {}
    for file, path in SOURCES.items():
        module = file.removesuffix(".__init__")
        names = [name for name in public(module, path) if not name.startswith("__")]
        if names and module not in INSIDE:
            found[module] = names
    above = {
        module: {name for each in found if module.startswith(f"{each}.") for name in found[each]} for module in found
    }
    left = {module: [name for name in names if name not in above[module]] for module, names in found.items()}
    return {module: left[module] for module in sorted(left) if left[module]}


def public(module: str, path: Path) -> list[str]:
    """What ``__all__`` says; the module is imported only where that is computed, for its framework may be missing."""
    found = []
    for node in ast.parse(path.read_text("utf-8")).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(getattr(target, "id", "") == "__all__" for target in targets):
            try:
                found += ast.literal_eval(node.value)
            except ValueError:
                return list(import_module(module).__all__)
    return found
