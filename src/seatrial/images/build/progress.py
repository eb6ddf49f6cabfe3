"""Show the progress of a build in one line: step, packages and megabytes, from the lines of builders and pip."""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from seatrial.errors import SeatrialError, UsageError, fallback
from seatrial.images.build.failure import step_in_words
from seatrial.job.units import format_bytes, format_seconds, parse_bytes

READY = "image ready"
CACHED = f"{READY} (cached)"
#: The image's name follows.
PULLING = "pulling "

#: Printed before a builder's first package: their number, and the environment they are unpacked in, if visible.
_EXPECTED = re.compile(r"^packages to install: (?P<count>\d+)(?: in (?P<folder>.+))?$")

#: pip and uv, before they download a file, and for a file that is there.
_DOWNLOAD = re.compile(r"^\s*Downloading (?P<name>\S+)(?!\S)(?<!\.metadata)(?: \((?P<size>[\d.]+ ?[kKMG]?i?B)\))?")

_BASE = "getting the base image"

_OTHER_STEPS = (
    (re.compile(r"load metadata for|FROM .*@?sha256|^sha256:|^(Trying to pull|Copying blob)"), _BASE),
    (re.compile(r"exporting|COMMIT|writing image"), "writing the image"),
    (re.compile(r"^pushing "), "pushing the image"),
    # backends/local.py
    (re.compile(r"^creating the virtual environment$"), "creating the virtual environment"),
    (re.compile(r"^installing the packages with pip$"), "installing the packages with pip"),
)

#: BuildKit and Buildah, of a step of somebody's Dockerfile: its own words, as far as they fit. Not of ours that
#: take no time.
_RUN = re.compile(r"^(?:\[[^\]]*\d+/\d+\]|STEP \d+/\d+:) RUN (?:--\S+\s+)*(?P<words>(?!.*/layer\.py).{1,60})")


class BuildProgress:
    """Count what a build has done: its step, packages that are downloaded or present, and bytes of downloads."""

    def __init__(self, now_s: float) -> None:
        self.step = "preparing the build"
        self._files, self._bytes = set[str](), 0.0  # a later step names those of an earlier one again
        self._expected, self._unpacking = 0, 0
        self._folder: Path | None = None  # is seen while packages are unpacked
        self._started_s = now_s
        self._doing = ""

    def line(self, text: str) -> bool:
        """Take a line of the build; return True if another step begins."""
        step = _step(text)
        if step == _BASE and self.step.startswith(PULLING):
            step = None  # Podman prints the same for every image
        begun = step is not None and step != self.step
        if step is not None and begun:
            self.step, self._doing = step, ""
        if text.startswith(READY):
            self._expected = 0  # a cached layer names no package of its own
        elif match := _EXPECTED.match(text):
            self._expected = int(match["count"])
            self._folder = Path(match["folder"]) if match["folder"] else None
        elif match := _DOWNLOAD.match(text):
            self._files.add(_package(match["name"]))
            self._bytes += _bytes(match["size"])
            size = f" ({format_bytes(round(_bytes(match['size'])))})" if match["size"] else ""
            self._doing = f"downloading {_package(match['name'])}{size}"
        elif match := re.match(r"^\s*(?:Using cached|Processing) (?P<name>\S+)", text):
            self._files.add(_package(match["name"]))
            self._doing = ""
        elif match := re.match(r"^Installing collected packages: (?P<names>.+)", text):
            self._unpacking = len(match["names"].split(","))
            self._doing = f"unpacking {_packages(self._unpacking)}"
        return begun

    def words(self, now_s: float) -> str:
        """Return ``installing the framework with pip, 42 s: 9 packages, 214 MB downloaded; downloading x.whl``."""
        sentence = f"{self.step}, {format_seconds(max(1.0, round(now_s - self._started_s)))}"
        if totals := self.totals():
            sentence += f": {', '.join(totals)}"
        if self._unpacking and self._doing and self._folder is not None:
            unpacked = sum(1 for _ in self._folder.glob("lib/python3*/site-packages/*.dist-info"))
            return f"{sentence}; unpacked {min(unpacked, self._unpacking)} of {_packages(self._unpacking)}"
        return f"{sentence}; {self._doing}" if self._doing else sentence

    def totals(self) -> list[str]:
        """Return ``14 of 18 packages``, ``312 MB downloaded``, as far as there are any."""
        count = len(self._files)
        words = f"{count} of {_packages(self._expected)}" if count < self._expected else _packages(count)
        downloaded = [f"{format_bytes(round(self._bytes))} downloaded"] if self._bytes else []
        return ([words] if self._files else []) + downloaded


def _packages(count: int) -> str:
    return f"{count} package{'' if count == 1 else 's'}"


def _step(text: str) -> str | None:
    """Return the step that a line begins; None if it begins none."""
    other = (words for pattern, words in _OTHER_STEPS if pattern.search(text))
    if (known := step_in_words(text) or next(other, None)) is not None:
        return known
    if text.startswith(PULLING):
        return text
    run = _RUN.match(text)
    return f"RUN {run['words'].strip()}" if run is not None else None


def _package(file: str) -> str:
    """Return ``torch 2.13.0`` for ``torch-2.13.0-cp311-….whl``."""
    parts = file.rpartition("/")[2].split("-")
    return f"{parts[0]} {parts[1]}" if file.endswith(".whl") and parts[2:] else file


@fallback(0.0, on=UsageError)  # 0 B, or no number
def _bytes(size: str | None) -> float:
    return float(parse_bytes(size.replace(" ", ""))) if size else 0.0


#: Interval of a log's lines: an ordinary step is one line, and nobody believes that the build has stopped.
EVERY_S = 10.0

_LOOK_EVERY_S = 0.5

#: pip's longest dependency conflict and a compiler's errors fit; the first lines of a longer log are left out.
_MOST_LINES = 4000


class ProgressLine(Protocol):
    """A line that changes, e.g. cli.terminal.LiveLine."""

    def show(self, text: str) -> str | None: ...

    def clear(self) -> None: ...


class BuildReporter:
    """Receive the lines of a build, as a context manager; its own thread prints the progress.

    Args:
        note: prints a line of ours that stays. progress: prints a line of the build.
        live: draws a line over the one before; None: a log.
        whole: every line is printed as it comes.
        printing: held while something is printed.
    """

    def __init__(
        self,
        note: Callable[[str], None],
        progress: Callable[[str], None],
        *,
        live: ProgressLine | None = None,
        whole: bool = False,
        printing: AbstractContextManager[object] | None = None,
    ) -> None:
        self._note, self._print = note, progress
        self._live, self._whole = None if whole else live, whole
        self._printing = printing or threading.RLock()
        self._state = BuildProgress(time.monotonic())
        self._reported_s = time.monotonic()
        self._goes_on = False
        self._log: deque[str] = deque(maxlen=_MOST_LINES)
        self._left_out = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="build", daemon=True)

    def __enter__(self) -> BuildReporter:
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._ended.set()
        self._thread.join()
        with self._printing:
            if self._live is not None:
                self._live.clear()
            if isinstance(error, SeatrialError) and not self._whole:
                before = [f"… {self._left_out:,} lines before"] if self._left_out else []
                for line in (*before, *self._log):
                    self._print(line)

    def line(self, text: str) -> None:
        """Receive a line of the build, or of a preparation for it."""
        with self._printing:
            if text.startswith(READY):
                self._ready(text)
                return
            self._goes_on = True
            self._left_out += len(self._log) == _MOST_LINES
            self._log.append(text)
            begun = self._state.line(text)
            if self._whole:
                self._report(text)
            elif begun and self._live is None:
                self._report(self._state.step)

    def _ready(self, text: str) -> None:
        if self._live is not None:
            self._live.clear()
        self._state.line(text)
        self._note(", ".join([text, *(self._state.totals() if text != CACHED else [])]))
        self._log.clear()
        self._goes_on = False

    def _report(self, text: str) -> None:
        self._reported_s = time.monotonic()
        self._print(text)

    def _watch(self) -> None:
        while not self._ended.wait(_LOOK_EVERY_S):
            with self._printing:
                now_s = time.monotonic()
                if not self._goes_on:
                    continue
                if self._live is not None:
                    self._live.show(self._state.words(now_s))
                elif now_s - self._reported_s >= EVERY_S:
                    self._report(self._state.words(now_s))
