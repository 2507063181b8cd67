"""The page of predictions says what was measured for it, and of that alone how much was lost."""

import json
from dataclasses import asdict, replace

from tests.simulate import validation
from tests.simulate.validation import losses, page
from tests.simulate.validation_runs import PEERS, SHARDED, SHARDED_LINK, USUAL, Compared
from tests.test_benchmark_pages import RECORD


def compared(contest, ranks, model, schedule, measured_s, predicted_s):
    facts = {
        "ranks": ranks,
        "model": f"synthetic:{model}",
        "schedule": schedule,
        "compute_s": 1.0,
        "exposed_comm_s": 0.1,
    }
    measured = facts | {"median_s": measured_s, "median_low_s": measured_s - 0.01, "median_high_s": measured_s + 0.02}
    network = {"alpha_s": 1e-5, "beta_s_per_B": 8e-9, "gamma_s_per_B": 0, "update_s_per_element": 2e-9}
    return Compared(contest, "hosts", "1gbit", measured, facts | network | {"iteration_s": predicted_s})


def test_the_page_has_a_row_for_each_and_takes_apart_what_misses():
    found = [compared(USUAL, 2, "resnet50", "wfbp", 1.2, 1.19), compared(USUAL, 2, "resnet50", "dear", 1.2, 1.0)]
    found.append(compared(PEERS, 4, "resnet50", "ddp", 1.3, 1.31))
    text = "\n".join(page(found, "What was lost.\n"))
    assert "This run had 2 and 4 ranks, resnet50, and the links hosts:1gbit.\n" in text
    assert "In all, 2 of 3 predictions are within 5% (hosts).\nWhat was lost." in text
    assert "| 2 | resnet50 | wfbp | 1200 ±20 | 1190 | -0.8% |" in text
    assert "| 2 | resnet50 | dear | 1200 ±20 | 1000 | **-16.7%** |" in text
    assert "| hosts, 1gbit | 1 of 2 within 5% | 8.7% | 16.7% |" in text
    assert text.count("- resnet50, dear, 2 ranks: measured +200 ms over the prediction") == 2
    assert "\n## Peers, each with the buckets of its source" in text


def test_what_was_lost_is_that_of_the_commands_of_this_page(tmp_path):
    for name, stolen in {"bench": [0.01], "compare": [0.2, 0.02], "train": [0.2, 0.1, 0.3], "other": [0.9]}.items():
        records = [asdict(replace(RECORD, stolen=each)) for each in stolen]
        (tmp_path / f"{name}.records").write_text(json.dumps(records))
    said = " ".join(losses(tmp_path, {"bench", "compare", "train"}).split())
    assert "Of 3 commands, 2 ran again." in said
    assert "Still above that: train (10.0%)." in said


def test_a_run_has_sharded_updates_on_an_emulated_link(monkeypatch):
    asked = []
    monkeypatch.setattr(validation, "compared", lambda link, models, contest: asked.append((link.text, contest)) or [])
    monkeypatch.setattr(validation, "page", lambda found, lost: [])
    monkeypatch.setattr(validation, "write_page", lambda *written: None)
    monkeypatch.setattr("sys.argv", ["validation"])
    validation.main()
    contests = [("hosts:1gbit", each) for each in (USUAL, SHARDED, PEERS)]
    assert set(asked) == {*contests, (SHARDED_LINK, SHARDED)}
