"""Timeline: each moment belongs to one region, and the regions add up."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial.agent.hook.timeline import REGIONS, StepTimeline


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


#: A Python with sys.monitoring.
MONITORS = [sys.executable] if hasattr(sys, "monitoring") else []
MONITORS += [str(path) for path in Path("~/.pyenv/versions").expanduser().glob("3.1[2-9]*/bin/python")]
OBSERVE = Path(__file__).parents[4] / "src" / "seatrial" / "agent" / "hook" / "observe.py"
SCRIPT = """
import importlib.util, json, sys, threading, time
spec = importlib.util.spec_from_file_location("observe", sys.argv[1])
observe = importlib.util.module_from_spec(spec); spec.loader.exec_module(observe)
inside = [False]
lines = observe.ScriptLines(lambda: None if inside[0] else time.process_time(), (sys.argv[1],))
def hot(n):
    made = []
    for i in range(n):
        made.append(i * i % 7)
    return made
def learn():
    json.dumps(list(range(100)))
    inside[0] = True
    for i in range(100_000): i * i
    inside[0] = False
    lines.step() if opened else lines.open()
    opened.append(True)
def loop():
    threading.Thread(target=hot, args=(1000,)).start()
    for _ in range(5):
        hot(200_000)  # HOT
        learn()
def one():
    hot(200_000)  # HOT
    learn()
def by_function():
    for _ in range(5): one()
text = open(__file__).read().splitlines()
for run in (loop, by_function):
    opened = []
    run()
    lines.close()
    worst = max(lines.spent, key=lines.spent.get)
    print("HOT" in text[worst[1] - 1], worst[0] == __file__, lines.spent[worst] > 0.6 * sum(lines.spent.values()))
print([sys.monitoring.get_tool(each) for each in range(6)] == [None] * 6)
sys.monitoring.use_tool_id(2, "profiler"); opened = []; loop(); lines.close()
print(lines.spent == {}, sys.monitoring.get_tool(2))
"""


@pytest.mark.skipif(not MONITORS, reason="no Python 3.12 or later")
def test_lines_of_the_loop_have_the_time_of_what_they_call_and_no_tool_is_left(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    for python in MONITORS:
        command = [python, str(tmp_path / "train.py"), str(OBSERVE)]
        ended = subprocess.run(command, capture_output=True, text=True, check=True)
        assert ended.stdout.split() == ["True"] * 8 + ["profiler"], python
