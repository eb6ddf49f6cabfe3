"""Time, steps and thinning: from lines of any shape to curves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial.receipt.clock import MAX_GAP_S, on_one_clock
from seatrial.receipt.reported import MAX_POINTS, read_steps, thin


def agent(t):
    return {"t": t, "source": "agent"}


def target(t):
    return {"t": t, "source": "target"}


def straighten(events):
    return on_one_clock(events)[1:]


class TestClock:
    def test_seconds_since_the_first_line(self):
        assert straighten([agent(100.0), agent(101.0), agent(103.5)]) == ([0, 1, 3.5], [])

    def test_a_step_back_counts_as_no_time(self):
        elapsed, jumps = straighten([agent(100.0), agent(101.0), agent(50.0), agent(52.0)])
        assert elapsed == [0, 1, 1, 3]
        assert jumps == ["The clock jumped back by 51 s during the run; that time is excluded"]

    def test_a_leap_forward_counts_as_no_time(self):
        elapsed, jumps = straighten([agent(0.0), agent(1.0), agent(2.0 + MAX_GAP_S), agent(3.0 + MAX_GAP_S)])
        assert elapsed == [0, 1, 1, 2]
        assert len(jumps) == 1

    def test_lines_a_little_out_of_order_are_no_jump_and_add_no_time(self):
        assert straighten([agent(0.0), agent(2.0), agent(1.5), agent(3.0)]) == ([0, 2, 2, 3], [])

    def test_a_target_with_a_clock_of_its_own_is_where_its_lines_are(self):
        elapsed, jumps = straighten([agent(1000.0), target(0.5), target(None), target(1001.5), agent(1002.0)])
        assert elapsed == [0, 0, 0, 1.5, 2]
        assert jumps == []

    def test_the_host_finalising_the_next_day_adds_nothing(self):
        assert straighten([agent(0.0), {"t": 86400.0, "source": "host"}]) == ([0, 0], [])

    @given(st.lists(st.tuples(st.sampled_from(["agent", "host", "target"]), st.none() | st.floats())))
    def test_agent_and_host_never_run_backwards(self, lines):
        ordered, elapsed, _ = on_one_clock([{"source": source, "t": t} for source, t in lines])
        for writer in ("agent", "host"):
            its_own = [at for at, event in zip(elapsed, ordered, strict=True) if event["source"] == writer]
            assert its_own == sorted(its_own) and all(at >= 0 for at in elapsed)


class TestSteps:
    def series(self, *events):
        return read_steps((float(i), event) for i, event in enumerate(events)).series

    def test_a_phase_names_the_series(self):
        lines = {"step": 1, "phase": "train", "loss": 2}, {"step": 1, "phase": "test", "loss": 3, "test_top5": 0.9}
        assert self.series(*lines) == {"train_loss": [(1, 2)], "test_loss": [(1, 3)], "test_top5": [(1, 0.9)]}

    def test_steps_counted_anew_each_epoch_go_on(self):
        lines = [{"step": step, "loss": 1.0} for step in (1, 2, 3, 1, 2, 3)]
        assert [x for x, _ in self.series(*lines)["loss"]] == [1, 2, 3, 4, 5, 6]

    def test_a_framework_does_not_place_the_scripts_own_lines(self):
        epochs = [{"by": "keras", "epoch": epoch, "phase": "val", "loss": 3.0} for epoch in (1, 2)]
        own = {"loss": 1.0}
        steps = read_steps((0.0, event) for event in (own, own, epochs[0], own, own, epochs[1]))
        assert steps.axis == "line"
        assert steps.series == {"loss": [(1, 1), (2, 1), (3, 1), (4, 1)], "val_loss": [(2, 3), (4, 3)]}

    def test_one_line_at_the_end_does_not_place_a_frameworks_epochs(self):
        epochs = [{"by": "keras", "epoch": epoch, "loss": 3.0} for epoch in (1, 2)]
        steps = read_steps((0.0, event) for event in (*epochs, {"accuracy": 0.5}))
        assert steps.axis == "epoch" and steps.series == {"loss": [(1, 3), (2, 3)], "accuracy": [(2, 0.5)]}

    def test_a_line_without_a_step_is_where_the_last_one_was(self):
        assert self.series({"step": 10, "loss": 1}, {"accuracy": 0.5})["accuracy"] == [(10, 0.5)]

    def test_only_epochs(self):
        steps = read_steps([(0.0, {"epoch": 1, "loss": 3}), (1.0, {"epoch": 2, "loss": 2})])
        assert (steps.axis, steps.series["loss"]) == ("epoch", [(1, 3), (2, 2)])

    def test_neither_step_nor_epoch(self):
        steps = read_steps([(0.0, {"loss": 3}), (1.0, {"loss": 2})])
        assert (steps.axis, steps.series["loss"]) == ("line", [(1, 3), (2, 2)])

    def test_other_ranks_add_images_but_no_points(self):
        steps = read_steps(
            [(float(t), {"step": t, "rank": r, "loss": 1, "images": 64}) for t in (1, 2) for r in (0, 1)]
        )
        assert len(steps.series["loss"]) == 2
        assert steps.images == 256

    def test_strings_booleans_and_infinities_are_no_numbers(self):
        assert self.series({"loss": "2", "best": True, "inf": float("inf"), "big": 10**400, "nan": float("nan")}) == {}

    def test_throughput_leaves_out_what_came_before_the_first_line(self):
        steps = read_steps([(10.0, {"images": 999}), (12.0, {"images": 100}), (14.0, {"images": 100})])
        assert steps.images_per_s == pytest.approx(50)

    def test_test_images_are_no_training_throughput(self):
        lines = [(0.0, {"images": 100}), (1.0, {"images": 100}), (1.0, {"images": 5000, "phase": "test"})]
        assert read_steps(lines).images_per_s == pytest.approx(100)

    def test_what_the_script_says_when_it_counts_no_images(self):
        assert read_steps([(0.0, {"images_per_s": 90}), (1.0, {"images_per_s": 110})]).images_per_s == 100


class TestThin:
    @given(st.lists(st.floats(-1e6, 1e6), max_size=3000))
    def test_few_ordered_and_with_the_extremes(self, ys):
        points = [(float(i), y) for i, y in enumerate(ys)]
        kept = thin(points)
        assert len(kept) <= MAX_POINTS
        assert kept == sorted(kept) and set(kept) <= set(points)
        if points:
            assert (kept[0], kept[-1]) == (points[0], points[-1])
            assert {min(ys), max(ys)} <= {y for _, y in kept}
