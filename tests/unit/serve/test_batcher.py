"""Which rows are computed when."""

from __future__ import annotations

import pytest

np = pytest.importorskip("numpy", reason="numpy is not installed")

from seatrial.serve.batcher import Batcher  # noqa: E402


def row(n):
    return (np.array(n),)


def numbers(rows):
    return [int(each[0]) for each in rows]


def test_a_full_batch_goes_at_once_and_the_rest_waits_for_company():
    batcher = Batcher(4, 0.002)
    assert batcher.patience_left_s(0.0, 0) is None
    batcher.add(0, range(5), map(row, range(5)), 10.0)
    assert batcher.patience_left_s(10.0, 99) == 0.0
    keys, rows, left_out = batcher.take()
    assert keys == [(0, 0), (0, 1), (0, 2), (0, 3)] and numbers(rows) == [0, 1, 2, 3] and not left_out
    assert batcher.patience_left_s(10.0005, 99) == pytest.approx(0.0015)
    assert batcher.patience_left_s(10.01, 99) == 0.0


def test_nobody_waits_when_nobody_can_come():
    batcher = Batcher(4, 5.0)
    batcher.add(1, [7], [row(7)], 10.0)
    assert batcher.patience_left_s(10.0, 1) == 0.0
    assert batcher.patience_left_s(10.0, 2) == 5.0


def test_abandoned_rows_are_left_out_and_their_places_filled():
    batcher = Batcher(3, 0.0)
    batcher.add(0, range(4), map(row, range(4)), 0.0)
    batcher.add(1, range(2), map(row, (10, 11)), 0.0)
    batcher.abandon(0, [0, 2, 99])
    keys, rows, left_out = batcher.take()
    assert (numbers(rows), left_out) == ([1, 3, 10], 2) and keys[-1] == (1, 0)
    batcher.add(0, [99], [row(99)], 0.0)  # the number that was abandoned too late means nothing later
    assert numbers(batcher.take()[1]) == [11, 99]


def test_a_front_that_is_gone_takes_its_rows_along():
    batcher = Batcher(8, 0.0)
    batcher.add(0, range(3), map(row, range(3)), 0.0)
    batcher.add(1, [5], [row(5)], 0.0)
    assert batcher.abandon_front(0) == 3
    assert batcher.take()[0] == [(1, 5)] and len(batcher) == 0
