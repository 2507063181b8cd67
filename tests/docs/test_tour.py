"""The tour names, for each step, files and what runs in them: all of these are defined there."""

import ast
import re

import pytest

from tests.markdown import ROOT

ROW = re.compile(r"^\| `([\w/]+\.py)` \| ((?:`[\w.]+`(?:, )?)+) \|", re.MULTILINE)
PAGE = (ROOT / "docs" / "tour.md").read_text("utf-8")
ROWS = [(file, re.findall(r"`([\w.]+)`", names)) for file, names in ROW.findall(PAGE)]


def defined(body, prefix=""):
    """Names of classes and their methods, of functions, and of what a module assigns."""
    for node in body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            yield prefix + node.name
        if isinstance(node, ast.ClassDef):
            yield from defined(node.body, f"{prefix}{node.name}.")
        if isinstance(node, ast.Assign):
            yield from (prefix + target.id for target in node.targets if isinstance(target, ast.Name))


@pytest.mark.parametrize(("file", "names"), ROWS, ids=[f"{file}: {', '.join(names)}" for file, names in ROWS])
def test_what_runs_is_in_its_file(file, names):
    known = set(defined(ast.parse((ROOT / file).read_text("utf-8")).body))
    assert set(names) <= known


def test_every_step_names_what_runs():
    steps = re.split(r"^## (\d+)\. .*$", PAGE, flags=re.MULTILINE)
    assert steps[1::2] == [str(number) for number in range(1, 13)]
    assert all(ROW.search(step) for step in steps[2::2])
