"""`tune --fit` on made-up GPUs whose memory and speed are known."""

import random
import types

import pytest

from seatrial.agent.tune.fit import SeenBatch, fit, fit_batch
from seatrial.agent.tune.trial import TuneTrial

GIB = 2**30


def gpu(capacity, fixed, each, *, bend=0.0, best=256):
    """A GPU that holds ``capacity`` bytes; examples/s grow up to the batch ``best`` and fall slowly behind it."""
    chance = random.Random(3)

    def run(batch):
        peak = int((fixed + each * batch * (1 + bend * batch / 1000)) * (1 + chance.uniform(-0.003, 0.003)))
        if peak > capacity:
            return SeenBatch(None, None, out_of_memory=True)
        return SeenBatch(peak, 1000 * batch / (batch + 30) * (1 if batch <= best else (best / batch) ** 0.1))

    return run


@pytest.mark.parametrize("each", [4 << 20, 30 << 20, 300 << 20])
def test_fit_finds_the_largest_batch_and_predicts_memory_within_five_percent(each):
    found = fit(16, 80 * GIB, gpu(80 * GIB, 2 * GIB, each))
    true = 78 * GIB / each
    assert 0.9 * true < found.largest <= true and len(found.points) <= 8
    seen = [point for point in found.points[2:] if point.seen.peak_bytes and point.predicted_bytes]
    assert all(abs(point.predicted_bytes / point.seen.peak_bytes - 1) < 0.05 for point in seen)


def test_fit_ends_between_two_batches_when_memory_bends_upwards():
    found = fit(32, 24 * GIB, gpu(24 * GIB, GIB, 20 << 20, bend=0.5))
    failed = [point.batch for point in found.points if point.why().startswith("does not fit")]
    assert found.largest < min(failed) <= 1.2 * found.largest


def test_fit_returns_a_fastest_batch_below_the_largest():
    found = fit(32, 80 * GIB, gpu(80 * GIB, GIB, 10 << 20, best=128))
    assert found.fastest < found.largest


def test_fit_stops_when_no_time_is_left():
    left = iter([True, True, False])
    found = fit(16, 80 * GIB, gpu(80 * GIB, GIB, 1 << 20), more=lambda: next(left))
    assert len(found.points) == 3 and found.largest == found.points[-1].batch


@pytest.mark.parametrize(
    "seen, why",
    [
        (SeenBatch(None, None, out_of_memory=True), "it runs out of memory as it is"),
        (SeenBatch(None, 3.0), "its memory was not reported"),
        (
            SeenBatch(None, None, why="no DataLoader was iterated for training"),
            "no DataLoader was iterated for training",
        ),
    ],
)
def test_fit_refuses_a_script_whose_own_batch_shows_nothing(seen, why):
    found = fit(16, GIB, lambda batch: seen)
    assert found.refusal == "the batch cannot be fitted: " + why and found.largest is None


def test_fit_ends_at_a_batch_that_the_script_refuses():
    refused = SeenBatch(None, None, why="the data set has 40 examples")
    found = fit(16, 80 * GIB, lambda batch: SeenBatch(GIB + batch * 1000, 10.0) if batch <= 32 else refused)
    assert found.largest == 32 and found.points[-1].why().startswith("the data set has 40 examples")


def trial(batch, *, capacity, places):
    peak = 2 * GIB + batch * 40 * 2**20
    fits = peak <= capacity
    report = {"steps": 60, "seconds": 6.0, "steps_per_s": 10.0, "examples_per_s": 10.0 * batch, "ended": "steps"}
    report.update(median_step_s=0.1, parts_s=[0.1] * 6, losses=[], reserved_bytes=peak)
    return TuneTrial(
        number=1, report=report if fits else None, ranks=[report] if fits else [], applied={}, refused={},
        places=places, anatomy={}, facts={"loader": {"batch_size": 16}}, exit_code=0 if fits else 1,
        output="" if fits else "torch.OutOfMemoryError: CUDA out of memory.", wall_s=1.0, lines=[], restored={},
    )  # fmt: skip


def test_rows_and_conclusion_of_a_fit_and_its_refusal_without_a_gpu():
    places = {"gpu_bytes": [str(24 * GIB)]}
    driver = types.SimpleNamespace(
        budget=types.SimpleNamespace(left_s=100.0, limit_s=lambda slow: 30.0), record=types.SimpleNamespace(rows=[]),
        trial=lambda changes, words, limit_s: trial(changes["batch_size"], capacity=20 * GIB, places=places),
        standing=types.SimpleNamespace(baselines=[trial(16, capacity=24 * GIB, places={})]),
    )  # fmt: skip
    words, rows = fit_batch(driver), driver.record.rows
    assert rows[0].changes == {"batch_size": 16} and rows[0].peak_bytes == 2 * GIB + 16 * 40 * 2**20
    assert any("off by 0.0 %" in row.why for row in rows)
    assert any(row.why.startswith("does not fit: predicted") and row.verdict == "" for row in rows)
    assert words.startswith("the largest batch that was seen to fit is ") and "trains differently" in words
    places.clear()
    assert fit_batch(driver) == "the batch cannot be fitted: training is not on a GPU"
