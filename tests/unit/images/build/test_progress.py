"""A build's progress line, its lines in a log, and the lines left of a build that ends early."""

from __future__ import annotations

import re
import time
from pathlib import Path
from queue import Queue

import pytest

from seatrial.errors import ImageError
from seatrial.images.build import progress
from seatrial.images.build.progress import BuildProgress, BuildReporter
from tables import cases


@cases("lines", "shown")
def test_line_has_step_packages_and_megabytes(lines: str, shown: tuple[str, ...]) -> None:
    progress = BuildProgress(0.0)
    found = []
    for second, line in enumerate(lines.splitlines(), 1):
        progress.line(line)
        found.append(progress.words(float(second)))
    assert tuple(found) == shown


@cases("line", "step")
def test_step_of_an_own_dockerfile_keeps_its_words(line: str, step: str) -> None:
    progress = BuildProgress(0.0)
    assert progress.line(line) == (step != "preparing the build")
    assert progress.step == step


def test_packages_are_counted_against_those_of_the_lock(tmp_path: Path) -> None:
    progress = BuildProgress(0.0)
    progress.line("installing the packages with pip")
    progress.line(f"packages to install: 2 in {tmp_path}")
    progress.line("Downloading torch-2.13.0-cp311-none-linux.whl (180.5 MB)")
    assert progress.words(1.0).startswith("installing the packages with pip, 1 s: 1 of 2 packages, 180 MB downloaded")
    progress.line("Downloading torch-2.13.0-cp311-none-linux.whl.metadata (30 kB)")
    progress.line("Processing /opt/wheels/torch-2.13.0-cp311-none-linux.whl")  # of the next step
    assert ": 1 of 2 packages," in progress.words(1.0)
    progress.line("Using cached numpy-2.4.0-cp311-none-linux.whl")
    progress.line("Installing collected packages: numpy, torch")
    (tmp_path / "lib/python3.11/site-packages/numpy-2.4.0.dist-info").mkdir(parents=True)
    assert progress.words(2.0).endswith("2 packages, 180 MB downloaded; unpacked 1 of 2 packages")


STEP = "[build 4/7] RUN pip install --require-hashes -r requirements.txt"


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(progress, "EVERY_S", 0.05)


@pytest.mark.parametrize("whole", [False, True])
def test_silent_step_is_repeated_with_its_time(whole: bool) -> None:
    printed = Queue[str]()
    with BuildReporter(printed.put, printed.put, whole=whole) as reporter:
        reporter.line(STEP)
        lines = [printed.get(timeout=300) for _ in range(3)]
    assert lines[0] == (STEP if whole else "installing the packages with pip")
    assert all(re.fullmatch(r"installing the packages with pip, \d+ s", line) for line in lines[1:])
    assert not reporter._thread.is_alive()


def test_nothing_is_printed_before_the_first_line_nor_after_the_image_is_ready() -> None:
    printed: list[str] = []
    with BuildReporter(printed.append, printed.append) as reporter:
        time.sleep(0.2)
        assert printed == []
        reporter.line("image ready (cached)")
        time.sleep(0.2)
    assert printed == ["image ready (cached)"]


@pytest.mark.parametrize(
    ("error", "log"), [(ImageError("a full disk"), [STEP, "no space left"]), (KeyboardInterrupt(), [])]
)
def test_a_failure_leaves_the_log_and_a_stop_does_not(error: BaseException, log: list[str]) -> None:
    printed: list[str] = []
    with pytest.raises(type(error)), BuildReporter(lambda line: None, printed.append) as reporter:
        reporter.line(STEP)
        reporter.line("no space left")
        raise error
    assert [line for line in printed if line in (STEP, "no space left")] == log


def test_of_a_long_log_the_first_lines_are_left_out_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "EVERY_S", 600.0)
    printed: list[str] = []
    with pytest.raises(ImageError), BuildReporter(printed.append, printed.append) as reporter:
        for number in range(progress._MOST_LINES + 1001):
            reporter.line(f"line {number}")
        raise ImageError("a full disk")
    assert printed[:2] == ["… 1,001 lines before", "line 1001"] and len(printed) == progress._MOST_LINES + 1
