"""How far a build is, in one line: the step, packages and megabytes so far, from the lines that builders and pip print.

Pure: whoever feeds it the lines says what time it is.
"""

from __future__ import annotations

import re

from seatrial.errors import UsageError
from seatrial.images.building.build_failure import step_in_words
from seatrial.job.units import format_bytes, format_seconds, parse_bytes

_SIZE = r"(?P<size>[\d.]+) ?(?P<unit>[kKMG]?i?B)"

#: pip and uv, before they download a file, and for one that is there; apt, for each package.
_DOWNLOAD = re.compile(rf"^\s*Downloading (?P<name>\S+)(?: \({_SIZE}\))?")
_AT_HAND = re.compile(r"^\s*(?:Using cached|Processing) (?P<name>\S+)")
_APT = re.compile(rf"^Get:\d+ .*\[{_SIZE}\]$")
_INSTALLING = re.compile(r"^Installing collected packages: (?P<names>.+)")

#: BuildKit, of a layer of the base that it pulls: how much it has, of how much.
_LAYER = re.compile(r"^(?P<digest>sha256:[0-9a-f]+) (?P<size>[\d.]+)(?P<unit>[kKMG]?B) / [\d.]+[kKMG]?B")

#: Begins the line of building/pull.py: the image's name follows.
PULLING = "pulling "

#: Docker, of a layer of an image that is pulled → whether it has arrived, and is unpacked.
_PULLED = re.compile(
    r"^(?P<digest>[0-9a-f]{12}): (?P<state>Pulling fs layer|Download complete|Pull complete|Already exists)$"
)
_LAYER_STATES = {"Pulling fs layer": (False, False), "Download complete": (True, False)}

_BASE = "getting the base image"

_OTHER_STEPS = (
    (re.compile(r"load metadata for|FROM .*@?sha256|^sha256:|^(Trying to pull|Copying blob)"), _BASE),
    (re.compile(r"exporting|COMMIT|writing image"), "writing the image"),
    (re.compile(r"^pushing "), "pushing the image"),
    # backends/local/venv.py
    (re.compile(r"^creating the virtual environment$"), "creating the virtual environment"),
    (re.compile(r"^installing the packages with pip$"), "installing the packages with pip"),
)

#: BuildKit and Buildah, of a step of somebody's Dockerfile: its own words, as far as a line has room. Not of ours that
#: take no time.
_RUN = re.compile(r"^(?:\[[^\]]*\d+/\d+\]|STEP \d+/\d+:) RUN (?:--\S+\s+)*(?P<words>(?!.*/layer\.py).{1,60})")

#: A rate of less time says nothing.
_LEAST_S = 1.0


class BuildProgress:
    """What a build has done.

    Attributes:
        step: in words.
        packages: of the whole build, downloaded or at hand.
        downloaded_bytes: of files and layers that have arrived.
    """

    def __init__(self, now_s: float) -> None:
        self.step = "preparing the build"
        self.packages = 0
        self._started_s = now_s
        self._step_bytes, self._earlier_bytes = 0.0, 0.0
        self._first_s: float | None = None
        self._last_s = now_s
        self._coming_bytes = 0.0
        self._layers: dict[str, float] = {}
        self._pulled: dict[str, tuple[bool, bool]] = {}
        self._doing = ""

    @property
    def downloaded_bytes(self) -> float:
        return self._earlier_bytes + self._step_bytes + sum(self._layers.values())

    def line(self, text: str, now_s: float) -> bool:
        """Take a line of the build's; whether another step has begun."""
        self._arrived(now_s)
        step = _step(text)
        if step == _BASE and self.step.startswith(PULLING):
            step = None  # Podman says the same of every image
        begun = step is not None and step != self.step
        if step is not None and begun:
            self.step, self._doing, self._first_s = step, "", None
            self._earlier_bytes, self._step_bytes = self._earlier_bytes + self._step_bytes, 0.0
        if match := _LAYER.match(text):
            self._layers[match["digest"]] = _bytes(match)
        elif match := _PULLED.match(text):
            self._pulled[match["digest"]] = _LAYER_STATES.get(match["state"], (True, True))
        elif match := _DOWNLOAD.match(text):
            self.packages += 1
            self._first_s = now_s if self._first_s is None else self._first_s
            self._coming_bytes = _bytes(match) if match["size"] else 0.0
            size = f" ({_size(self._coming_bytes)})" if match["size"] else ""
            self._doing = f"downloading {_package(match['name'])}{size}"
        elif match := _APT.match(text):
            self.packages += 1
            self._first_s = now_s if self._first_s is None else self._first_s
            self._coming_bytes = _bytes(match)
        elif match := _AT_HAND.match(text):
            self.packages += 1
            self._doing = ""
        elif match := _INSTALLING.match(text):
            count = len(match["names"].split(","))
            self._doing = f"unpacking {count} package{'' if count == 1 else 's'}"
        return begun

    def words(self, now_s: float) -> str:
        """``installing the framework with pip, 42 s: 9 packages, 214 MB downloaded, 12 MB/s; downloading x.whl``."""
        told = f"{self.step}, {format_seconds(max(1.0, round(now_s - self._started_s)))}"
        numbers = self.totals()
        if self._pulled:
            arrived, unpacked = (sum(each) for each in zip(*self._pulled.values(), strict=True))
            count = len(self._pulled)
            numbers.append(
                f"{unpacked} of {count} layers unpacked" if arrived == count else f"{arrived} of {count} layers"
            )
        rate_s = self._last_s - self._first_s if self._first_s is not None else 0.0
        if self._coming_bytes and self._step_bytes and rate_s >= _LEAST_S:
            numbers.append(f"{_size(self._step_bytes / rate_s)}/s")
        if numbers:
            told += f": {', '.join(numbers)}"
        return f"{told}; {self._doing}" if self._doing else told

    def totals(self) -> list[str]:
        """``14 packages``, ``312 MB downloaded``, as far as there are any."""
        packages = [f"{self.packages} package{'' if self.packages == 1 else 's'}"] if self.packages else []
        return packages + ([f"{_size(self.downloaded_bytes)} downloaded"] if self.downloaded_bytes else [])

    def _arrived(self, now_s: float) -> None:
        """The line behind a download comes when that has ended."""
        if self._coming_bytes:
            self._last_s = now_s
        self._step_bytes += self._coming_bytes
        self._coming_bytes = 0.0


def _step(text: str) -> str | None:
    """The step that a line begins, in words; None: it begins none."""
    other = (words for pattern, words in _OTHER_STEPS if pattern.search(text))
    if (known := step_in_words(text) or next(other, None)) is not None:
        return known
    if text.startswith(PULLING):
        return text
    run = _RUN.match(text)
    return f"RUN {run['words'].strip()}" if run is not None else None


def _package(file: str) -> str:
    """``torch-2.13.0-cp311-….whl`` → ``torch 2.13.0``."""
    parts = file.rpartition("/")[2].split("-")
    return f"{parts[0]} {parts[1]}" if file.endswith(".whl") and parts[2:] else file


def _bytes(match: re.Match[str]) -> float:
    try:
        return float(parse_bytes(f"{match['size']}{match['unit']}"))
    except UsageError:  # 0 B, or no number
        return 0.0


def _size(size_bytes: float) -> str:
    return format_bytes(round(size_bytes))
