"""What the page beside torch says about its rows."""

import json
from dataclasses import asdict

import pytest

from docs.benchmarks.attempts import Runs
from docs.benchmarks.ddp import beside
from docs.benchmarks.ddp.case import FULL, OURS, RING, SHARDED, TORCH
from docs.benchmarks.provenance import Record
from tests.test_benchmark_pages import RECORD

NEAR = [0.9, 1.0, 1.1] * 3


def row(name, samples_s, update=FULL, kind=TORCH, **parts):
    return {"name": name, "kind": kind, "update": update, "samples_s": samples_s, **parts}


def test_what_an_interval_does_not_tell_apart_is_not_called_faster():
    foreseen = {"kind": OURS, "rest_s": 0.1, "predicted_s": 1.0, "bound_s": 0.9}
    rows = [
        row("DDP, 25 MB, gloo", [2.0] * 9),
        row("DDP, 4 MB, gloo", NEAR),  # the fastest of torch: others are held against it
        row("DDP, 25 MB, our ring", [3.0] * 9, kind=RING),
        row("dear, cut:4MB", [0.95, 0.96, 1.04] * 3, **foreseen),
        row("dear-eager, cut:4MB", [0.5] * 9, **foreseen),
    ]
    lines = [line.split(" | ") for line in list(beside.table(rows))[2:]]
    said = {line[0].strip("| *"): (line[-2], line[-1].strip(" |")) for line in lines}
    assert {name: word for name, (_, word) in said.items()} == {
        "dear-eager, cut:4MB": "faster",
        "dear, cut:4MB": "cannot tell",
        "DDP, 4 MB, gloo": "fastest of torch",
        "DDP, 25 MB, gloo": "slower",
        "DDP, 25 MB, our ring": "slower",
    }
    assert said["dear-eager, cut:4MB"][0].startswith("2.000 (")
    few = [each | {"samples_s": each["samples_s"][:3]} for each in rows]
    verdicts = {line.split(" | ")[-1].strip(" |") for line in list(beside.table(few))[2:]}
    assert verdicts == {"fastest of torch", "cannot tell"}
    noisy = [rows[1], row("FSDP2, gloo", [1.0, 9.0] * 5)]
    assert list(beside.table(noisy))[-1].split(" | ")[-2:] == ["-", "too noisy |"]


def test_a_case_that_stays_disturbed_is_left_out(tmp_path):
    rows = [row("DDP, 25 MB, gloo", NEAR), row("FSDP2, gloo", NEAR, SHARDED)]
    for name, stolen in (("resnet50-0.3-9", 0.01), ("resnet50-0.4-9", 0.2)):
        record = Record(**{**vars(RECORD), "stolen": stolen})
        attempts = [record] * (1 if stolen < 0.03 else 3)
        (tmp_path / f"{name}.records").write_text(json.dumps([asdict(each) for each in attempts]))
        (tmp_path / f"{name}.0.json").write_text(json.dumps(rows))
    made = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(beside, "measure", lambda text, file: (made.append(text), file.write_text(json.dumps(rows))))
        patch.setattr(beside, "Watch", lambda *_, **__: type("Watch", (), {"record": lambda self: record})())
        runs = Runs(tmp_path)
        lines = list(beside.page(runs, ["resnet50:0.3:9", "resnet50:0.4:9"]))
    assert made == ["resnet50:0.4:9"] * 3  # it had another chance
    assert [each.stolen for each in runs.records] == [0.01]
    text = "\n".join([*lines, *runs.missing()])
    assert "Left out, because no run was quiet: resnet50:0.4:9." in text
    assert "forward 0.3 s" in text
    assert "forward 0.4 s" not in text
