"""Counts of several processes in one memory."""

from __future__ import annotations

import os
import random

import pytest

pytest.importorskip("numpy", reason="numpy is not installed")

from seatrial.serve.counts import BUCKETS, Counts, upper_s


def test_places_add_up_and_outlive_their_process():
    first = Counts.create(3, place=2)
    pid = os.fork()
    if not pid:
        own = Counts(first.descriptor, 3, 0)
        own.answered(0, 200)
        own.answered(1, 429)
        own.answered(2, 404)
        own.answered(0, 418)
        own.enter(5, 100)
        os._exit(0)
    os.waitpid(pid, 0)
    assert first.waiting() == 5
    again = Counts(first.descriptor, 3, 0)
    assert again.waiting() == 0  # what waited there is gone with it, what was counted is not
    again.answered(0, 200)
    first.computed(8, 1000)
    first.computed(5000, 1000)
    totals = first.totals()
    assert totals.requests == {("predict", 200): 2, ("predict", 0): 1, ("infer", 429): 1, ("other", 404): 1}
    assert totals.inferences == 4 and totals.errors == {0: 1, 429: 1}
    assert totals.batches == {8: 1, 1024: 1} and totals.queue_peak == 5


def test_the_queue_is_bounded_over_all_places():
    first = Counts.create(2, place=0)
    second = Counts(first.descriptor, 2, 1)
    assert first.enter(3, 4) and not second.enter(2, 4) and second.enter(1, 4) and not first.enter(1, 4)
    first.leave(3)
    assert second.enter(3, 4) and first.totals().queue_peak == 4


def test_percentiles_are_within_a_bucket():
    counts = Counts.create(1)
    assert counts.totals().percentile_ms(50) is None
    drawn = sorted(random.Random(0).lognormvariate(-5, 1) for _ in range(5000))
    for seconds in drawn:
        counts.took(seconds)
    totals = counts.totals()
    for percent in (50, 95, 99, 100):
        exact = 1000 * drawn[max(0, int(len(drawn) * percent / 100) - 1)]
        assert exact <= totals.percentile_ms(percent) <= exact * 2 ** (1 / 8) * 1.01
    assert totals.latency_sum_s == pytest.approx(sum(drawn), rel=1e-3)


def test_the_ends_of_the_histogram():
    counts = Counts.create(1)
    for seconds in (0.0, 1e-9, upper_s(0), 1e6):
        counts.took(seconds)
    latencies = counts.totals().latencies
    assert latencies[0] == 3 and latencies[-1] == 1 and len(latencies) == BUCKETS
