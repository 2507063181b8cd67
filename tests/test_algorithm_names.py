"""Nothing outside the registry asks for an algorithm by its name: what it can do, its row and its programs say.

A name may be a default, an argument of a call or a choice in a table. None is compared, or is the key of a dispatch.
"""

import ast
from functools import cache

import pytest

from dear_mpi.collectives import ALGORITHMS
from tests.rooms import SOURCES

NAMES = {*ALGORITHMS, "native"}
REGISTRY = "dear_mpi.collectives.algorithms.registry"
# Words that mean something else in another table: memory is shared or private, and a runner is shared or native.
OTHER_AXES = {"memory", "runner", "runner_of"}
# Literal dicts with such keys, by the name that is assigned: choices that were measured, and siblings of another axis.
TABLES = {"TABLE", "RUNNERS", "CANDIDATES", "PROOFS", "PROMISES", "LIBRARIES"}


@cache
def tree_of(module):
    return ast.parse(SOURCES[module].read_text(encoding="utf-8"))


@cache
def imports_of(module):
    """{alias: what it stands for}, as a full name."""
    found = {}
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.asname: alias.name for alias in node.names if alias.asname}
    return found


@cache
def constants_of(module):
    """{name: value} of the assignments at the top of a module."""
    found = {}
    for node in tree_of(module).body:
        for target in node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]:
            if isinstance(target, ast.Name) and node.value is not None:
                found[target.id] = node.value
    return found


def resolved(name, module):
    """The algorithms that a constant of ours stands for, wherever it is defined."""
    if name in constants_of(module):
        value = constants_of(module)[name]
        return set() if isinstance(value, ast.Dict) else asked(value, module)
    home, _, origin = imports_of(module).get(name, "").rpartition(".")
    return resolved(origin, home) if home in SOURCES else set()


def asked(node, module):
    """The algorithms that an operand names: a literal, a constant, or a collection of such."""
    if isinstance(node, ast.Constant):
        return {node.value} & NAMES if isinstance(node.value, str) else set()
    if isinstance(node, ast.Name):
        return resolved(node.id, module)
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        home = imports_of(module).get(node.value.id)
        return resolved(node.attr, home) if home in SOURCES else set()
    if isinstance(node, ast.Dict):
        parts = [key for key in node.keys if key is not None]
    elif isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        parts = [item.value if isinstance(item, ast.Starred) else item for item in node.elts]
    elif isinstance(node, ast.BinOp):
        parts = [node.left, node.right]
    elif (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("set", "frozenset", "tuple")
    ):
        parts = node.args
    else:
        parts = []
    return {name for part in parts for name in asked(part, module)}


def axis(node):
    """What is compared, in a word: runner for plan.runner, runner_of for runner_of(name), memory for case["memory"]."""
    if isinstance(node, ast.Call):
        return axis(node.func)
    if isinstance(node, ast.Subscript):
        return node.slice.value if isinstance(node.slice, ast.Constant) else ""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def questions(tree, module):
    """(line, names) of each comparison with an algorithm's name, each case of it, and each dispatch over such names."""
    tables = {
        id(value)
        for name, node in constants_of(module).items()
        if name in TABLES
        for value in ast.walk(node)
        if isinstance(value, ast.Dict)
    }
    for node in ast.walk(tree):
        operands = []
        if isinstance(node, ast.Compare):
            operands, others = [node.left, *node.comparators], [node.left, *node.comparators]
        elif isinstance(node, ast.Match):
            patterns = [inner for case in node.cases for inner in ast.walk(case.pattern)]
            operands, others = [inner.value for inner in patterns if isinstance(inner, ast.MatchValue)], [node.subject]
        elif isinstance(node, ast.Dict) and id(node) not in tables:
            operands, others = [node], []
        found = {name for operand in operands for name in asked(operand, module)}
        if found and not any(axis(other) in OTHER_AXES for other in others):
            yield node.lineno, sorted(found)


@pytest.mark.parametrize("module", [module for module in SOURCES if module != REGISTRY])
def test_no_algorithm_is_asked_for_by_name(module):
    found = [f"line {line}: {', '.join(names)}" for line, names in questions(tree_of(module), module)]
    advice = f"{SOURCES[module]}: ask for what an algorithm can do (its row in the registry), not for its name"
    assert not found, "\n".join([advice, *found])


ASKS = [
    "name == 'ring'",
    "name not in {'ring', *OTHERS}",
    "name == constants.NATIVE",
    "name in MINE",
    "name in frozenset(['ordered'])",
    "{NATIVE: one}[name]",
    "match name:\n    case 'x' | 'ring':\n        pass",
]
TELLS = [
    "make(x, algorithm='ring')",
    "runner_of(name) == 'shared'",
    "settings['memory'] == 'shared'",
    "name in ALGORITHMS",
    "names = ('ring', 'native')",
    "match runner_of(name):\n    case 'shared':\n        pass",
]
CONSTANTS = 'NATIVE = "native"'
ASKER = """
import planted.constants as same
from planted import constants
from planted.constants import NATIVE
TABLE = {"ring": None}
MINE = ("bruck", *OTHERS)
"""


@pytest.mark.parametrize(("code", "asks"), [*((code, True) for code in ASKS), *((code, False) for code in TELLS)])
def test_questions_are_told_from_other_uses(code, asks, monkeypatch, tmp_path):
    asker = str(tmp_path)  # another module in each case: trees are read once
    for module, content in {"planted.constants": CONSTANTS, asker: ASKER + code}.items():
        path = tmp_path / f"{len(content)}.py"
        path.write_text(content)
        monkeypatch.setitem(SOURCES, module, path)
    assert len(list(questions(tree_of(asker), asker))) == asks
