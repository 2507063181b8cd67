"""bench-kernels: its rows, and what it refuses."""

import json
import sys

import pytest

from tests.cli_checks import assert_one_line, invoke, succeed


def test_kernels_are_timed(tmp_path, monkeypatch):
    table, file = tmp_path / "model.json", tmp_path / "rows.json"
    table.write_text(json.dumps({"modules": [{"name": "a", "params": [999, 7], "fwd_flops": 1}]}))
    monkeypatch.setattr("dear_mpi.contrib.kernels.command.BUDGET_S", 0.01)
    result = succeed("bench-kernels", "--models", table, "--json", file)
    rows = json.loads(file.read_text())
    assert [row["kernel"] for row in rows] == 2 * ["pack", "unpack"] + 5 * ["accumulate"]
    assert all(0 < row["ci_low_us"] <= row["p50_us"] <= row["ci_high_us"] for row in rows)
    assert rows[0]["bucket_bytes"] == 4096  # 1000 and 8 elements, padded to 128 bytes
    assert " ".join(rows[0]) == (
        "kernel tensors number bucket_bytes bucket_dtype tensor_dtype samples p50_us ci_low_us ci_high_us GBps of_copy "
        "faster_than_each"
    )
    assert "kernels on cpu, fp32 tensors, 1 rank" in result.stdout


@pytest.mark.parametrize(("arguments", "message"), [
    (["--device", "cuda"], "--device: CuPy is not installed"),
    (["--device", "tpu"], "--device: device 'tpu' is unknown: did you mean 'cpu'? Allowed: cpu, cuda"),
    (["--models", "resnet5"], "--models: synthetic model 'resnet5' is unknown: did you mean 'resnet50'? Allow"),
    (["--models", "resnet50,"], "--models takes one or several with commas between them, not 'resnet50,'"),
    (["--models", "resnet50,resnet50"], "--models must be different ones, not resnet50, resnet50"),
    (["--models", "none.json"], "--models: synthetic model 'none.json' is no readable JSON file"),
    (["--json", "no such folder/rows.json"], "cannot be written"),
    (["--models", "huge.json"], "model 'huge.json' needs at least 12000.0 GiB for the ranks of a host (1), where"),
    (["--models", "huge.json", "--json", "huge.json"], "--json 'huge.json' would write over the file of --models"),
])  # fmt: skip
def test_kernels_are_not_timed(arguments, message, monkeypatch, tmp_path, here):
    table = {"modules": [{"name": "a", "params": [1000 << 30], "fwd_flops": 1}]}
    (tmp_path / "huge.json").write_text(json.dumps(table))
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert_one_line(invoke("bench-kernels", *arguments), message)
