"""How a build is told where no line can change, and what stays of one that ends early."""

from __future__ import annotations

import re
import threading

import pytest

from seatrial.errors import ImageError
from seatrial.images.build import progress
from seatrial.images.build.progress import Telling

STEP = "[build 4/7] RUN pip install --require-hashes -r requirements.txt"


class Lines:
    """What was printed, and a wait for so many lines of it."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self._more = threading.Condition()

    def __call__(self, line: str) -> None:
        with self._more:
            self.said.append(line)
            self._more.notify_all()

    def wait_for(self, count: int) -> list[str]:
        with self._more:
            assert self._more.wait_for(lambda: len(self.said) >= count, timeout=30), self.said
            return list(self.said)


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(progress, "EVERY_S", 0.05)


@pytest.mark.parametrize("whole", [False, True])
def test_a_silent_step_is_told_again_with_its_time(whole: bool) -> None:
    printed = Lines()
    with Telling(printed, printed, whole=whole) as told:
        told.line(STEP)
        said = printed.wait_for(3)
    assert said[0] == (STEP if whole else "installing the packages with pip")
    assert all(re.fullmatch(r"installing the packages with pip, \d+ s", line) for line in said[1:])
    assert not told._thread.is_alive()


def test_nothing_is_told_before_the_first_line_nor_once_the_image_is_ready() -> None:
    printed, waited = Lines(), threading.Event()
    with Telling(printed, printed) as told:
        waited.wait(0.2)
        assert printed.said == []
        told.line("image ready (cached)")
        waited.wait(0.2)
    assert printed.said == ["image ready (cached)"]


@pytest.mark.parametrize(
    ("error", "log"), [(ImageError("no room"), [STEP, "no space left"]), (KeyboardInterrupt(), [])]
)
def test_a_failure_leaves_the_log_and_a_stop_does_not(error: BaseException, log: list[str]) -> None:
    said, printed = Lines(), Lines()
    with pytest.raises(type(error)), Telling(said, printed) as told:
        told.line(STEP)
        told.line("no space left")
        raise error
    assert [line for line in printed.said if line in (STEP, "no space left")] == log


def test_of_a_long_log_the_first_lines_are_left_out_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "EVERY_S", 600.0)
    printed = Lines()
    with pytest.raises(ImageError), Telling(printed, printed) as told:
        for number in range(progress._MOST_LINES + 1001):
            told.line(f"line {number}")
        raise ImageError("no room")
    assert printed.said[:2] == ["… 1,001 lines before", "line 1001"] and len(printed.said) == progress._MOST_LINES + 1
