"""Parameters, commands and predictions are those of the golden files; EVERY=1 compares all cases of parameters."""

import json
import os
import re
from numbers import Real

import pytest

from dear_mpi.cli.commands import all_commands
from dear_mpi.training.routes.find import WIRES
from tests.golden.cases import COMMANDS, HERE, cases, command_facts, parameters, predict, predictions, train
from tests.rooms import DELETED

EVERY = 1 if os.environ.get("EVERY") else 37  # a prime: the rest of the division goes through all options
GROUPS = 16  # tests, which run side by side


def golden(name):
    return json.loads((HERE / f"{name}.json").read_text())


def needs_deleted(case):
    if "algorithms" in DELETED and re.search("algorithm (swing|torus|themis|double_tree) ", case):
        return True
    wire = re.search(r"--wire (\w+)", case)
    return ("lancet" in DELETED and "lancet" in case) or ("wires" in DELETED and wire and wire[1] not in WIRES)


@pytest.mark.parametrize("group", range(GROUPS))
def test_parameters(group, tmp_path):
    known = parameters()
    assert list(known) == cases()
    for case in cases()[::EVERY][group::GROUPS]:
        if needs_deleted(case):
            continue
        found, wanted = train(case, tmp_path), known[case]
        if isinstance(wanted, str) or len(wanted) == 2:
            assert found == wanted, case
        else:  # on processors that differ in the order of sums
            assert found[1:] == pytest.approx(wanted, rel=1e-4), case


@pytest.fixture(scope="module")
def facts(tmp_path_factory):
    return command_facts(tmp_path_factory.mktemp("commands"))


@pytest.mark.parametrize("command", COMMANDS)
def test_flags(command, facts):
    if DELETED and command not in all_commands():
        pytest.skip("an extra, which was deleted")
    added = {"blame": ["--blame"], "networks": ["--watch"], "pages": ["--html"], "pictures": ["--picture", "--plot"]}
    if command == "bench":
        added["analysis"] = ["--why", "--guidelines", "--arrival", "--steps", "--timeline", "--overlap", "--tests"]
    gone = {flag for extra in DELETED for flag in added.get(extra, ())}
    wanted = golden("commands")["flags"][command]
    assert facts["flags"][command] == {flag: kind for flag, kind in wanted.items() if flag not in gone}


@pytest.mark.parametrize("what", ["keys", "codes"])
def test_json_keys_and_exit_codes(what, facts):
    wanted = golden("commands")[what]
    if DELETED:
        wanted = {line: fact for line, fact in wanted.items() if line in facts[what]}
    assert facts[what] == wanted


@pytest.mark.parametrize("options", list(predictions()))
def test_predictions(options, tmp_path):
    if needs_deleted(options):
        pytest.skip("an extra, which was deleted")
    found, wanted = predict(options, tmp_path), golden("predictions")[options]
    assert [row.keys() for row in found] == [row.keys() for row in wanted]
    for row, known in zip(found, wanted, strict=True):
        for key, value in known.items():
            number = isinstance(value, Real) and not isinstance(value, bool)
            assert row[key] == (pytest.approx(value, rel=1e-12) if number else value), key
