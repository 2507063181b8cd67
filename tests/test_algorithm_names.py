"""Nothing outside the registry asks for an algorithm by its name: what it can do, its row and its programs say.

A name may be a default, an argument of a call or a choice in a table. None is compared, or is the key of a dispatch.
"""

import ast

import pytest

from dear_mpi.collectives import ALGORITHMS
from tests.rooms import SOURCES

NAMES = {*ALGORITHMS, "native"}
REGISTRY = "dear_mpi.collectives.algorithms.registry"
# Words that mean something else in another table: memory is shared or private, and a runner is shared or native.
OTHER_AXES = {"memory", "runner", "runner_of"}
# Literal dicts with such keys, by the name that is assigned: choices that were measured, and siblings of another axis.
TABLES = {"TABLE", "RUNNERS", "CANDIDATES", "PROOFS", "PROMISES", "LIBRARIES"}


def constants_of(tree):
    """{name: value} of the assignments at the top of a module."""
    found = {}
    for node in tree.body:
        for target in node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]:
            if isinstance(target, ast.Name) and node.value is not None:
                found[target.id] = node.value
    return found


def asked(node, constants):
    """The algorithms that an operand names: a literal, a constant of the module, or a collection of such."""
    if isinstance(node, ast.Name):
        value = constants.get(node.id)
        return set() if value is None or isinstance(value, ast.Dict) else asked(value, constants)
    if isinstance(node, ast.Constant):
        return {node.value} & NAMES if isinstance(node.value, str) else set()
    if isinstance(node, ast.Dict):
        parts = [key for key in node.keys if key is not None]
    elif isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        parts = [item.value if isinstance(item, ast.Starred) else item for item in node.elts]
    elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("set", "frozenset", "tuple"):
        parts = node.args
    else:
        parts = [node.left, node.right] if isinstance(node, ast.BinOp) else []
    return {name for part in parts for name in asked(part, constants)}


def axis(node):
    """What is compared, in a word: runner for plan.runner, runner_of for runner_of(name), memory for case["memory"]."""
    if isinstance(node, ast.Call):
        return axis(node.func)
    if isinstance(node, ast.Subscript):
        return node.slice.value if isinstance(node.slice, ast.Constant) else ""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def questions(tree):
    """(line, names) of each comparison with an algorithm's name, each case of it, and each dispatch over such names."""
    constants = constants_of(tree)
    tables = {id(inner) for name in TABLES & constants.keys() for inner in ast.walk(constants[name])}
    for node in ast.walk(tree):
        operands, others = [], []
        if isinstance(node, ast.Compare):
            operands = others = [node.left, *node.comparators]
        elif isinstance(node, ast.Match):
            patterns = [inner for case in node.cases for inner in ast.walk(case.pattern)]
            operands, others = [inner.value for inner in patterns if isinstance(inner, ast.MatchValue)], [node.subject]
        elif isinstance(node, ast.Dict) and id(node) not in tables:
            operands = [node]
        found = {name for operand in operands for name in asked(operand, constants)}
        if found and not any(axis(other) in OTHER_AXES for other in others):
            yield node.lineno, sorted(found)


@pytest.mark.parametrize("module", [module for module in SOURCES if module != REGISTRY])
def test_no_algorithm_is_asked_for_by_name(module):
    tree = ast.parse(SOURCES[module].read_text(encoding="utf-8"))
    found = [f"line {line}: {', '.join(names)}" for line, names in questions(tree)]
    advice = f"{SOURCES[module]}: ask for what an algorithm can do (its row in the registry), not for its name"
    assert not found, "\n".join([advice, *found])


ASKS = ["name == 'ring'", "name not in {'ring', *OTHERS}", "name == NATIVE", "name in MINE", "{NATIVE: one}[name]"]
ASKS += ["name in frozenset(['ordered'])", "match name:\n    case 'x' | 'ring':\n        pass"]
TELLS = ["make(x, algorithm='ring')", "runner_of(name) == 'shared'", "settings['memory'] == 'shared'"]
TELLS += ["name in ALGORITHMS", "names = ('ring', 'native')"]
TELLS += ["match runner_of(name):\n    case 'shared':\n        pass"]
ASKER = 'NATIVE = "native"\nTABLE = {"ring": None}\nMINE = ("bruck", *OTHERS)\n'


@pytest.mark.parametrize(("code", "asks"), [*((code, True) for code in ASKS), *((code, False) for code in TELLS)])
def test_questions_are_told_from_other_uses(code, asks):
    assert len(list(questions(ast.parse(ASKER + code)))) == asks
