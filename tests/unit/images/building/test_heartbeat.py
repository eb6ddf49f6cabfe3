"""A build that prints nothing is told of, with what it is at; one that prints is not."""

import re
import time

from seatrial.images.building.heartbeat import Heartbeat


def test_a_silent_step_is_named_with_its_time() -> None:
    said: list[str] = []
    with Heartbeat(said.append, every_s=0.1) as telling:
        telling.line("[build 4/7] RUN pip install --require-hashes -r requirements.txt")
        deadline = time.monotonic() + 10
        while len(said) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
    assert all(re.fullmatch(r"installing the packages with pip: 0 min \d\d s so far", line) for line in said[1:3])
    counted = len(said)
    time.sleep(0.3)
    assert len(said) == counted, "it goes on after the build has ended"


def test_a_build_that_prints_is_left_alone() -> None:
    said: list[str] = []
    with Heartbeat(said.append, every_s=5) as telling:
        for number in range(5):
            telling.line(f"line {number}")
    assert said == [f"line {number}" for number in range(5)]
