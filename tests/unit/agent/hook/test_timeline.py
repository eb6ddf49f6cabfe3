"""Timeline: each moment belongs to one region, and the regions add up."""

from hypothesis import given
from hypothesis import strategies as st

from seatrial.agent.hook.steps import REGIONS, StepTimeline


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_time_belongs_to_the_innermost_region_and_moves_to_evaluation():
    clock = Clock()
    timeline = StepTimeline(clock)
    for now, act in ((1, lambda: timeline.enter("backward")), (3, lambda: timeline.enter("communication")),
                     (7, timeline.leave), (8, timeline.leave)):  # fmt: skip
        clock.now = now
        act()
    clock.now = 10
    before = timeline.totals()
    assert (before["other"], before["backward"], before["communication"]) == (3, 3, 4)
    timeline.enter("data")
    clock.now = 15
    timeline.move_to_evaluation(before)
    spent = timeline.totals()
    assert (spent["other"], spent["data"], spent["evaluation"]) == (3, 0, 5)


steps = st.lists(st.tuples(st.sampled_from(["enter", "leave", "become"]), st.sampled_from(REGIONS), st.integers(0, 9)))


@given(steps)
def test_the_regions_add_up_to_the_whole(steps):
    clock = Clock()
    timeline = StepTimeline(clock)
    for what, region, seconds in steps:
        getattr(timeline, what)(*([] if what == "leave" else [region]))
        clock.now += seconds
    assert sum(timeline.totals().values()) == clock.now
