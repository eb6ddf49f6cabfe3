"""Lines of a script between its steps, on a Python that has sys.monitoring."""

import sys
import time

import pytest

from seatrial.agent.hook.observe import ScriptLines

pytestmark = pytest.mark.skipif(not hasattr(sys, "monitoring"), reason="Python before 3.12 has no sys.monitoring")
SCRIPT = """
def waits():
    for _ in range(3):
        time.sleep(0.004)

def learn():
    time.sleep(0.002)
    stepped()

def train(steps):
    for _ in range(steps):
        waits()
        learn()

def one_step():
    waits()
    learn()

def train_by_function(steps):
    for _ in range(steps):
        one_step()
"""


@pytest.mark.parametrize(("function", "line"), [("train", 12), ("train_by_function", 16)])
def test_time_counts_for_the_line_that_calls_in_the_function_that_makes_the_steps(function, line):
    lines, opened = ScriptLines(time.perf_counter, ("/nowhere/", __file__)), []

    def stepped():
        lines.step() if opened else lines.open()
        opened.append(True)

    known = {"time": time, "stepped": stepped}
    exec(compile(SCRIPT, "/project/train.py", "exec"), known)
    known[function](11)
    lines.close()
    longest = max(lines.spent, key=lines.spent.get)
    assert longest == ("/project/train.py", line)
    assert 0.6 < lines.spent[longest] / sum(lines.spent.values()) < 0.95
    assert all(sys.monitoring.get_tool(each) is None for each in range(6))
