"""Intervals of paired comparisons, on numbers whose truth is known."""

import random

import pytest

from seatrial.common.paired import Deviation, Interval, Sampled, deviation, mean, ratio


def pairs_of(*rates):
    return [(Sampled(first), Sampled(second)) for first, second in rates]


def test_same_numbers_give_the_same_interval():
    pairs = pairs_of((100, 151), (101, 149), (99, 152))
    assert ratio(pairs) == ratio(pairs) and ratio(pairs).low < 1.5 < ratio(pairs).high


def test_drift_that_both_of_a_pair_have_is_in_no_ratio():
    found = ratio(pairs_of((100, 200), (50, 100), (25, 50)))
    assert found.middle == pytest.approx(2) and 1.8 < found.low < found.high < 2.2


def test_one_pair_shows_no_more_than_repeats_do_and_each_further_pair_narrows_it():
    few, usual = deviation([]), deviation([[100, 100.5, 99.5, 100, 100]] * 4)
    assert few == Deviation(0.02, 2) and usual.share < 0.01
    spans = [
        found.high - found.low
        for found in (ratio(pairs_of((100, 110)), few), *(ratio(pairs_of(*[(100, 110)] * n), usual) for n in (1, 2, 6)))
    ]
    assert spans == sorted(spans, reverse=True) and spans[0] > 0.15 > 0.05 > spans[-1]


def test_repeats_that_differ_widen_the_deviation_and_a_single_run_shows_none():
    assert deviation([[100, 130, 70]]).share > 5 * deviation([[100, 101, 99]]).share
    assert deviation([[100], []]) == deviation([])


def test_a_run_whose_parts_vary_is_neither_faster_nor_slower():
    steady, wild = [0.01, 0.0101, 0.0099, 0.01], [0.002, 0.05, 0.001, 0.03, 0.002, 0.02]
    found = [ratio([(Sampled(100, steady), Sampled(59, parts))], deviation([])) for parts in (steady, wild)]
    assert found[0].high < 1 < found[1].high and found[0].middle == found[1].middle == pytest.approx(0.59)


@pytest.mark.parametrize(("sigma", "count"), [(0.005, 3), (0.05, 1), (0.05, 4)])
def test_the_truth_is_hardly_ever_outside(sigma, count):
    dice, outside = random.Random(7), 0
    for _ in range(40):
        found = ratio(pairs_of(*[(dice.gauss(100, 100 * sigma), dice.gauss(120, 120 * sigma)) for _ in range(count)]))
        outside += not found.low < 1.2 < found.high
    assert outside <= 5


def test_a_mean_leaves_out_its_cut_and_is_within_a_margin_by_its_upper_end():
    values = [0.1, 0.12, 0.08, 0.11, 0.09, 0.1, 0.1, 0.1, 0.1, 90.0]
    assert mean(values).middle > 9 and mean(values, cut=0.1).middle == pytest.approx(0.1, abs=0.01)
    assert mean(values[:5]).within(0.13) and not mean(values[:5]).within(0.1)
    assert mean([3.0]) == Interval(3, 3, 3) and Interval(1.8, 2, 2.2).words == "2.00 (1.80 to 2.20)"
