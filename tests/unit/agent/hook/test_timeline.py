"""Timeline: each moment belongs to one region, and the regions add up."""

from hypothesis import given
from hypothesis import strategies as st

from seatrial.agent.hook.steps import REGIONS, Timeline


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_inner_time_is_not_the_outers():
    clock = Clock()
    timeline = Timeline(clock)
    clock.now = 1
    timeline.enter("backward")
    clock.now = 3
    timeline.enter("communication")
    clock.now = 7
    timeline.leave()
    clock.now = 8
    timeline.leave()
    clock.now = 10
    spent = timeline.totals()
    assert (spent["other"], spent["backward"], spent["communication"]) == (3, 3, 4)


def test_what_turned_out_to_be_evaluation_moves_there():
    clock = Clock()
    timeline = Timeline(clock)
    clock.now = 2
    before = timeline.totals()
    timeline.enter("data")
    clock.now = 5
    timeline.leave()
    clock.now = 9
    timeline.move_to_evaluation(before)
    spent = timeline.totals()
    assert (spent["other"], spent["data"], spent["evaluation"]) == (2, 0, 7)


steps = st.lists(st.tuples(st.sampled_from(["enter", "leave", "become"]), st.sampled_from(REGIONS), st.integers(0, 9)))


@given(steps)
def test_the_regions_add_up_to_the_whole(steps):
    clock = Clock()
    timeline = Timeline(clock)
    for what, region, seconds in steps:
        getattr(timeline, what)(*([] if what == "leave" else [region]))
        clock.now += seconds
    assert sum(timeline.totals().values()) == clock.now
