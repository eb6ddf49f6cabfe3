"""The hook's lines: their parts add up, and no hostile or broken line breaks the reader."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seatrial.common.signals import REGIONS, is_hooks, measured_window, rates, read_anatomy, why_stopped

WHOLE = {"data": 2.0, "backward": 3.0, "optimizer": 1.0, "evaluation": 1.0, "other": 3.0}
LINE = {"pid": 5, "steps": 101, "seconds": 10.0, "examples": 6400, "regions": WHOLE, "median_step_s": 0.09}
WINDOW = {
    "steps": 10,
    "seconds": 1.0,
    "regions": {"data": 0.2, "copy": 0.1, "sync": 0.2, "backward": 0.2, "other": 0.2},
}


def test_rates_and_shares():
    (found,) = read_anatomy([{"t": 50.0, "anatomy": LINE}])
    assert (found.steps_per_s, found.examples_per_s, found.median_step_s) == (10.0, 640.0, 0.09)
    assert found.share("data") == 0.2 and found.share("copy") == 0.0
    assert measured_window([found]) == (40.0, 50.0)


def test_windows_refine_the_whole_and_the_sum_stays():
    (found,) = read_anatomy([{"t": 50.0, "anatomy": {**LINE, "window": WINDOW}}])
    assert sum(found.regions.values()) == pytest.approx(10.0)
    assert found.regions["data"] == 2.0 and found.regions["evaluation"] == 1.0  # as the whole run has them
    assert found.regions["sync"] == pytest.approx(2.0) and found.regions["copy"] == pytest.approx(1.0)


def test_the_last_line_of_the_process_with_the_most_steps_counts():
    lines = [
        {"t": 1.0, "anatomy": {**LINE, "steps": 50}},
        {"t": 2.0, "anatomy": LINE},
        {"t": 2.0, "anatomy": {**LINE, "pid": 6, "steps": 7}},
        {"t": 2.0, "rank": 1, "anatomy": {**LINE, "pid": 8, "steps": 99}},
        {"t": 2.0, "rank": 1, "training": {"pid": 8, "device": "cuda"}},
    ]
    assert [(rank.rank, rank.steps, dict(rank.facts)) for rank in read_anatomy(lines)] == [
        (0, 101, {}),
        (1, 99, {"pid": 8, "device": "cuda"}),
    ]


def test_over_time_has_the_spending_between_two_lines():
    later = {**LINE, "regions": {name: 2 * spent for name, spent in WHOLE.items()}}
    (found,) = read_anatomy([{"t": 1.0, "anatomy": LINE}, {"t": 2.0, "anatomy": later}])
    assert [(at, spent["data"]) for at, spent in found.over_time] == [(1.0, 2.0), (2.0, 2.0)]


def test_rates_of_the_last_lines_and_the_time_left_of_a_pass():
    first = {**LINE, "steps": 1, "seconds": 0.0, "examples": 0}
    lines = [{"anatomy": first}, {"rank": 1, "anatomy": first}, {"anatomy": {**LINE, "pass": [50, 200]}}]
    assert rates(lines) == {"steps_per_s": 10.0, "examples_per_s": 640.0, "pass_pct": 25.0, "pass_left_s": 15.0}
    endless = [{"anatomy": first}, {"anatomy": {**LINE, "pass": [50, 300_000_000]}}]
    assert rates(endless) == {"steps_per_s": 10.0, "examples_per_s": 640.0}
    assert rates(lines[:1]) == {} and rates([{"anatomy": LINE}, {"anatomy": {**LINE, "pass": "x"}}]) == {}


def test_why_it_stopped():
    assert why_stopped([{"hook_stopped": {"reason": "RuntimeError: x"}}]) == "RuntimeError: x"
    assert why_stopped([{"hook_stopped": "x"}, {"loss": 1}]) is None


junk = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*REGIONS, "pid", "steps"]), inner, max_size=3)
    ),
    max_leaves=8,
)
lines = st.dictionaries(
    st.sampled_from(["pid", "steps", "seconds", "examples", "regions", "window", "ddp", "median_step_s", "peak_bytes"]),
    junk,
)


@settings(max_examples=50)
@given(
    st.lists(st.fixed_dictionaries({"t": junk, "rank": junk, "anatomy": junk | lines, "training": junk}), max_size=4)
)
def test_no_line_breaks_the_reader(events):
    for found in read_anatomy(events):
        assert found.seconds >= 0 and found.steps >= 0
        assert all(spent >= 0 for spent in found.regions.values())
    assert isinstance(why_stopped(events), (str, type(None)))
    [is_hooks(event) for event in events]


def test_waiting_for_ranks_is_taken_out_of_what_hid_it():
    ddp = {"backward_compute_s": 0.02, "backward_comm_s": 0.03, "backward_compute_comm_overlap_s": 0.01}
    line = {"steps": 100, "seconds": 10.0, "regions": {"backward": 6.0, "other": 4.0}, "ddp": ddp}
    (rank,) = read_anatomy([{"t": 1.0, "anatomy": line}])
    assert rank.regions == pytest.approx({"communication": 2.0, "backward": 4.0, "other": 4.0})
    assert rank.exposed_communication == pytest.approx(1.0)


def test_fsdps_waits_on_the_gpu_are_communication():
    window = {"steps": 10, "gpu": {"forward": 1.0, "communication": 1.0}}
    line = {"steps": 100, "seconds": 10.0, "regions": {"sync": 2.0, "other": 8.0}, "window": window}
    (rank,) = read_anatomy([{"t": 1.0, "anatomy": line}])
    assert rank.regions == pytest.approx({"communication": 5.0, "other": 5.0})


def test_the_plot_divides_each_second_as_the_windows_saw_it():
    window = {"steps": 10, "regions": {"forward": 1.0, "backward": 3.0}}
    lines = [{"steps": n, "seconds": n, "regions": {"data": n, "other": 4.0 * n}, "window": window} for n in (1, 2)]
    (rank,) = read_anatomy([{"t": float(n), "anatomy": line} for n, line in enumerate(lines)])
    assert rank.over_time[1][1] == pytest.approx({"data": 1.0, "forward": 1.0, "backward": 3.0})
