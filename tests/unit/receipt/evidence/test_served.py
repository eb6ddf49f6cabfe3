"""What a server says of itself is the target's own word: the last report that can be meant counts, nothing else."""

from __future__ import annotations

import json
import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from seatrial.receipt.sections.serving import MAX_SIZES, MAX_STATUSES, read_served

GOOD: dict[str, Any] = {
    "requests": 1000,
    "errors": {"429": 10, "400": 1},
    "p50_ms": 2.0,
    "p95_ms": 4.0,
    "p99_ms": 9.0,
    "batches": {"8": 90, "1": 10},
    "queue_peak": 12,
    "seconds": 60.0,
    "warm_up_s": 3.0,
    "examples": 16,
    "largest_difference": 1e-6,
}
ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


def test_a_good_report_is_taken_over_whole() -> None:
    served = read_served([(1.0, {**GOOD, "requests": 1}), (2.0, GOOD)])
    assert served is not None and (served.at_s, served.requests, served.p99_ms) == (2.0, 1000, 9.0)
    assert served.errors == {"400": 1, "429": 10} and list(served.batches.items()) == [(1, 10), (8, 90)]
    assert (served.examples, served.largest_difference, served.warm_up_s) == (16, 1e-6, 3.0)


def test_a_torn_last_report_leaves_the_one_before() -> None:
    served = read_served([(1.0, GOOD), (2.0, {"requests": 5}), (3.0, {"seconds": 1}), (4.0, {})])
    assert served is not None and served.at_s == 1.0
    assert read_served([]) is None and read_served([(1.0, {"requests": -1, "seconds": 1.0})]) is None


@given(st.dictionaries(st.sampled_from(sorted(GOOD)), ODD))
def test_no_value_goes_through_that_cannot_be_meant(odd: dict[str, Any]) -> None:
    served = read_served([(1.0, {**GOOD, **odd})])
    if served is None:
        return
    numbers = [served.requests, served.seconds, *served.errors.values(), *served.batches.values(), *served.batches]
    numbers += [
        value for value in (served.p50_ms, served.p95_ms, served.p99_ms, served.queue_peak) if value is not None
    ]
    assert all(math.isfinite(number) and number >= 0 for number in numbers)
    json.dumps(vars(served), allow_nan=False)


def test_tables_do_not_grow_for_ever() -> None:
    flood = {
        **GOOD,
        "errors": {str(status): 1 for status in range(600)} | {"<script>": 5, "4000": 1},
        "batches": {str(size): size for size in range(5000)} | {"-1": 3, "1e3": 9, "": 1},
    }
    served = read_served([(1.0, flood)])
    assert served is not None and len(served.errors) == MAX_STATUSES and len(served.batches) == MAX_SIZES
    assert min(served.batches) == 5000 - MAX_SIZES and all(key.isdigit() for key in served.errors)


def test_percentiles_that_contradict_each_other_are_left_out() -> None:
    served = read_served([(1.0, {**GOOD, "p50_ms": 10.0})])
    assert served is not None and (served.p50_ms, served.p95_ms, served.p99_ms) == (None, None, None)
