"""The page of predictions says what was measured for it, and of that alone how much was lost."""

from tests.simulate.validation import page
from tests.simulate.validation_runs import PEERS, USUAL, Compared


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
