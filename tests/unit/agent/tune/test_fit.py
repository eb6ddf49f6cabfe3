"""The largest batch and the fastest, on made-up GPUs whose memory and speed are known."""

import random

import pytest

from seatrial.agent.tune.fit import Seen, fit

GIB = 2**30


def gpu(capacity, fixed, each, *, bend=0.0, best=256, tries=None):
    """A GPU that holds ``capacity`` bytes; examples/s grow up to the batch ``best`` and fall slowly behind it."""
    chance = random.Random(3)

    def run(batch):
        if tries is not None:
            tries.append(batch)
        peak = int((fixed + each * batch * (1 + bend * batch / 1000)) * (1 + chance.uniform(-0.003, 0.003)))
        if peak > capacity:
            return Seen(None, None, out_of_memory=True)
        return Seen(peak, 1000 * batch / (batch + 30) * (1 if batch <= best else (best / batch) ** 0.1))

    return run


@pytest.mark.parametrize("each", [4 << 20, 30 << 20, 300 << 20])
def test_the_largest_batch_is_found_and_memory_predicted_within_five_percent(each):
    tries = []
    found = fit(16, 80 * GIB, gpu(80 * GIB, 2 * GIB, each, tries=tries))
    true = 78 * GIB / each
    assert 0.9 * true < found.largest <= true
    assert len(tries) <= 8
    reported = [point.as_dict() for point in found.points[2:]]
    assert all(abs(row["off_by"]) < 0.05 for row in reported if "off_by" in row)


def test_memory_that_bends_upwards_ends_in_a_batch_that_does_not_fit_and_one_that_does():
    found = fit(32, 24 * GIB, gpu(24 * GIB, GIB, 20 << 20, bend=0.5))
    failed = [point for point in found.points if point.seen.out_of_memory]
    assert failed and all(point.as_dict()["words"] == "does not fit" for point in failed)
    assert found.largest < min(point.batch for point in failed) <= 1.2 * found.largest


def test_the_fastest_is_not_the_largest():
    found = fit(32, 80 * GIB, gpu(80 * GIB, GIB, 10 << 20, best=128))
    assert found.fastest < found.largest


def test_no_more_trials_than_there_is_time_for():
    left = iter([True, True, False])
    found = fit(16, 80 * GIB, gpu(80 * GIB, GIB, 1 << 20), more=lambda: next(left))
    assert len(found.points) == 3 and found.largest == found.points[-1].batch


@pytest.mark.parametrize(
    "seen, why",
    [
        (Seen(None, None, out_of_memory=True), "it runs out of memory as it is"),
        (Seen(None, 3.0), "its memory was not reported"),
        (Seen(None, None, why="no DataLoader was iterated for training"), "no DataLoader was iterated for training"),
    ],
)
def test_a_script_that_cannot_be_fitted_reports_why(seen, why):
    found = fit(16, GIB, lambda batch: seen)
    assert found.refusal == "the batch cannot be fitted: " + why and found.largest is None


def test_a_batch_that_the_script_refuses_ends_the_search():
    def run(batch):
        return Seen(GIB + batch * 1000, 10.0) if batch <= 32 else Seen(None, None, why="the data set has 40 examples")

    found = fit(16, 80 * GIB, run)
    assert found.largest == 32 and found.points[-1].as_dict()["words"] == "the data set has 40 examples"
