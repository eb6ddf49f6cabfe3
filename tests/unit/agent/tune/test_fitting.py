"""`tune --fit` in the driver, on made-up trials of a GPU: which rows and which sentence come of it."""

import types

from seatrial.agent.tune.fit import Fitting
from seatrial.agent.tune.trial import Trial

GIB = 2**30


def trial(batch, *, capacity, places):
    peak = 2 * GIB + batch * 40 * 2**20
    fits = peak <= capacity
    report = {"steps": 60, "seconds": 6.0, "steps_per_s": 10.0, "examples_per_s": 10.0 * batch, "ended": "steps"}
    report.update(median_step_s=0.1, parts_s=[0.1] * 6, losses=[], reserved_bytes=peak)
    facts = {"loader": {"batch_size": 16}}
    return Trial(
        number=1, report=report if fits else None,
        ranks=[report] if fits else [], applied={}, refused={}, places=places, anatomy={}, facts=facts,
        exit_code=0 if fits else 1, output="" if fits else "torch.OutOfMemoryError: CUDA out of memory.",
        wall_s=1.0, lines=[], restored={},
    )  # fmt: skip


def fitted(places, capacity=24 * GIB, reported_bytes=24 * GIB):
    driver = types.SimpleNamespace(
        budget=types.SimpleNamespace(left_s=100.0, limit_s=lambda slow: 30.0), record=types.SimpleNamespace(rows=[]),
        trial=lambda changes, words, limit_s: trial(changes["batch_size"], capacity=capacity, places=places),
    )  # fmt: skip
    driver.standing = types.SimpleNamespace(baselines=[trial(16, capacity=capacity, places={})])
    return Fitting(driver).run(), driver.record.rows


def test_rows_show_prediction_and_sight_and_the_sentence_reports_that_it_trains_differently():
    words, rows = fitted({"gpu_bytes": [str(24 * GIB)]})
    assert rows[0].changes == {"batch_size": 16} and rows[0].peak_bytes == 2 * GIB + 16 * 40 * 2**20
    assert "off by 0.0 %" in rows[-1].why and rows[-1].peak_bytes > 0.9 * 24 * GIB
    assert words.startswith(f"the largest batch that was seen to fit is {rows[-1].changes['batch_size']}")
    assert "trains differently" in words


def test_a_trial_that_runs_out_of_memory_is_reported_as_the_end_that_it_is():
    _, rows = fitted({"gpu_bytes": [str(24 * GIB)]}, capacity=20 * GIB)
    assert any(row.why.startswith("does not fit: predicted") and row.verdict == "" for row in rows)


def test_without_a_gpu_it_reports_so():
    words, rows = fitted({})
    assert words == "the batch cannot be fitted: training is not on a GPU" and rows == []
