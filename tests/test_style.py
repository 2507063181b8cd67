"""What can be counted of the style guide in CONTRIBUTING.md: short files and functions, calls that can be read."""

import ast

import pytest

from tests.rooms import SOURCES

FILE_LINES = 400
BODY_LINES = 60
POSITIONAL = 5
COMMANDS = "dear_mpi.cli."  # a command's parameters are its flags: nobody passes them by position


def functions(tree):
    """(function, its parameters that may be passed by position, without self or cls) of each function."""
    methods = {
        id(function): 0 if any(getattr(mark, "id", "") == "staticmethod" for mark in function.decorator_list) else 1
        for owner in ast.walk(tree)
        if isinstance(owner, ast.ClassDef)
        for function in owner.body
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
    }
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node, [*node.args.posonlyargs, *node.args.args][methods.get(id(node), 0) :]


def body_lines(function):
    """From the first statement after the docstring to the last line."""
    statements = function.body[1:] if ast.get_docstring(function) else function.body
    return function.end_lineno - statements[0].lineno + 1 if statements else 0


def flags(function):
    """Parameters that are a bool and may be passed by position: a call would read f(x, True)."""
    given = [*function.args.posonlyargs, *function.args.args]
    defaults = [None] * (len(given) - len(function.args.defaults)) + function.args.defaults
    for parameter, default in zip(given, defaults, strict=True):
        is_flag = isinstance(default, ast.Constant) and isinstance(default.value, bool)
        if is_flag or (parameter.annotation is not None and ast.unparse(parameter.annotation) == "bool"):
            yield parameter.arg


def faults(module, source):
    """What is too long in a module, or has parameters that a call would not explain."""
    lines = len(source.splitlines())
    if lines > FILE_LINES:
        yield f"{lines} lines, at most {FILE_LINES}"
    for function, positional in functions(ast.parse(source)):
        where, lines = f"line {function.lineno}, {function.name}", body_lines(function)
        if lines > BODY_LINES:
            yield f"{where}: a body of {lines} lines, at most {BODY_LINES}"
        if module.startswith(COMMANDS):
            continue
        if len(positional) > POSITIONAL:
            yield f"{where}: {len(positional)} parameters by position, at most {POSITIONAL}: make some keyword-only"
        for name in flags(function):
            yield f"{where}: the flag {name} must be keyword-only"


@pytest.mark.parametrize("module", SOURCES)
def test_files_functions_and_parameters_are_few_and_short(module):
    found = list(faults(module, SOURCES[module].read_text(encoding="utf-8")))
    assert not found, "\n".join([str(SOURCES[module]), *found])


@pytest.mark.parametrize(("source", "fault"), [
    ("x = 1\n" * (FILE_LINES + 1), "401 lines"),
    ("def f():\n    '''Said\n    at length.'''\n" + "    x = 1\n" * 61, "a body of 61 lines"),
    ("def f(a, b, c, d, e, *, g, flag=False): pass", None),
    ("class A:\n    def f(self, a, b, c, d, e, g): pass", "6 parameters"),
    ("class A:\n    @staticmethod\n    def f(a, b, c, d, e, g): pass", "6 parameters"),
    ("def f(a):\n    def g(a, b, c, d, e, f): pass", "6 parameters"),
    ("def f(a, b, flag=True): pass", "the flag flag"),
    ("def f(answer: bool | None): pass", None),
])  # fmt: skip
def test_faults_are_found(source, fault):
    found = list(faults("dear_mpi.training.planted", source))
    assert len(found) == (fault is not None)
    assert all(fault in text for text in found)
    assert fault is None or "lines" in fault or not list(faults("dear_mpi.cli.planted", source))
