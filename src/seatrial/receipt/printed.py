"""The metrics and the progress that a script prints, read line by line: the script's own words, never evidence.

A number counts as a metric if the words in front of it name one. A number that is not surely a metric is left out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

from seatrial.receipt.reported import MAX_POINTS, MAX_SERIES, Point, ReportedSteps, thin
from seatrial.receipt.values import clean_line, number
from seatrial.system.project_files import own_table

#: Bounds of the work: characters of one state of a line, of the words before a number, and numbers of one state.
_MOST_LETTERS, _MOST_NAME, _MOST_NUMBERS = 4000, 60, 100
#: Lines that differ in their numbers alone have one shape, and are read by the words of the first.
_MOST_SHAPES = 1000

_RE = SimpleNamespace()
#: ``about 3 min left``, ``eta: 0:01:23``, ``remaining: 12 s``.
_LEFT = re.compile(r"\beta\b|\d \w+ left\b|\bremaining\b", re.IGNORECASE)
_WORDS: dict[str, frozenset[str]] = {}
_PHASES = {"training": "train", "testing": "test", "evaluation": "eval"}


@cache
def _load() -> None:
    """Read words and forms, which only a run's output needs."""
    tables = own_table(Path(__file__).with_suffix(".toml"))
    _WORDS.update({kind: frozenset(words.split()) for kind, words in tables["words"].items()})
    for name, form in tables["forms"].items():
        for part in ("within", "of", "phase"):
            form = form.replace(part.upper(), tables["forms"][part])
        setattr(_RE, name, re.compile(form, re.IGNORECASE))
    _RE.hint = re.compile("|".join(_WORDS["metric"] | _WORDS["exact"] | {"iters: ", "cost "}).encode())


class Figure(NamedTuple):
    """A printed number. ``unit``: ``%`` or nothing."""

    name: str
    value: float
    unit: str = ""


@dataclass
class PrintedSeries:
    """All values of a name in a stream; ``line`` of the last, from 1; ``ended_as``: a last one that is nan or inf.

    Of many only some points are kept: first, last, lowest and highest are among them.
    """

    stream: str
    points: list[Point] = field(default_factory=list)
    count: int = 0
    line: int = 0
    unit: str = ""
    ended_as: str | None = None

    def add(self, value: Figure, line: int) -> None:
        self.line, self.ended_as = line, None if math.isfinite(value.value) else str(value.value)
        if number(value.value) is not None and self.ended_as is None:
            self.unit, self.count = value.unit, self.count + 1
            self.points.append((float(self.count), value.value))
            self.points = thin(self.points) if len(self.points) > 4 * MAX_POINTS else self.points


@dataclass
class Position:
    """The position in the whole training, of a script that prints it: ``epoch 46/60``, ``step 100/500``.

    ``inner``: position in the epoch, 0 to 1, if one was printed since its number. ``ended``: its values stood with it.
    ``prints_left``: the script prints the time left itself.
    """

    unit: str = ""
    done: int = 0
    total: int = 0
    inner: float | None = None
    ended: bool = False
    prints_left: bool = False

    def read(self, text: str, *, ended: bool) -> None:
        """Read a state of a line."""
        unit, match = "epoch", _RE.epoch.search(text)
        if match is None and self.unit != "epoch":
            unit, match = "step", _RE.step.search(text)
        if match is not None and 0 < int(match[2]) >= int(match[1]):
            if (int(match[1]), int(match[2])) != (self.done, self.total):
                self.inner = None
            self.unit, self.done, self.total, self.ended = unit, int(match[1]), int(match[2]), ended
            self.prints_left = _LEFT.search(text) is not None
        inner = _RE.inner.search(text, match.end() if match else 0) if self.unit == "epoch" else None
        if inner is not None and 0 < int(inner[2]) >= int(inner[1]):
            self.inner = int(inner[1]) / int(inner[2])

    def share(self, of_pass: float | None = None) -> float | None:
        """Return the finished share of the training, 0 to 1; ``of_pass`` is the measured share of a pass."""
        inner = (self.inner if self.inner is not None else of_pass or 0.0) if self.unit == "epoch" else 0.0
        begun = self.unit == "epoch" and (self.inner is not None or not self.ended)
        return min(1.0, max(0.0, self.done - begun + inner) / self.total) if self.total else None

    def __str__(self) -> str:
        return f"{self.unit} {self.done:,}/{self.total:,}"


class Printed:
    """Reads the lines of a run in their order. Of a name in both streams, standard output has the deliberate values.

    ``patterns``, of ``[metrics]``: name → regular expression whose first group is the value.
    """

    def __init__(self, patterns: Mapping[str, str] | None = None) -> None:
        _load()
        self.patterns = {name: re.compile(pattern) for name, pattern in (patterns or {}).items()}
        self._columns: list[str] = []
        self._shapes: dict[str, list[tuple[int, str, str]]] = {}
        self.series: dict[str, PrintedSeries] = {}
        self.progress = Position()

    def add(self, raw: bytes, line: int = 0, stream: str = "stdout") -> list[Figure]:
        """Read a line of a stream; return its values."""
        raw = raw if b"\r" in raw or b"\x08" in raw else raw[:_MOST_LETTERS]
        found, lower = [], raw.lower()
        hinted = bool(self._columns) or _RE.hint.search(lower) is not None
        placed = b"/" in lower or b" of " in lower
        drawn = re.split(rb"[\r\x08]+", raw) if hinted or placed or self.patterns else ()  # one over the other
        for text in (clean_line(state[:_MOST_LETTERS].decode("utf-8", "replace")).rstrip() for state in drawn):
            values = [value for name, each in self.patterns.items() for value in _matched(name, each, text)]
            values += self.values(text) if hinted else ()
            found += values
            if placed:
                self.progress.read(text, ended=bool(values) or "nd of epoch" in text)
        for value in found:
            if value.name in self.series or len(self.series) < MAX_SERIES:
                if (known := self.series.get(value.name)) is None or known.stream == "stderr" != stream:
                    known = self.series[value.name] = PrintedSeries(stream)
                if known.stream == stream:
                    known.add(value, line)
        return found

    def values(self, text: str) -> list[Figure]:
        """Return the metrics of one state of a line. A name that has two values there has none."""
        if self._columns and (cells := self._cells(text)) is not None:
            return cells
        self._columns = _columns(text)
        text = _RE.top.sub(r"top\1", text)
        numbers = list(_RE.number.finditer(text))[:_MOST_NUMBERS]
        if (shape := _RE.number.sub(_kind, text)) not in self._shapes:
            self._shapes = self._shapes if len(self._shapes) < _MOST_SHAPES else {}
            self._shapes[shape] = list(_named(text, numbers))
        kept: dict[str, Figure | None] = {}
        for place, name, unit in self._shapes[shape]:
            value = Figure(name, float(numbers[place][1]), unit)
            if (whole := numbers[place][2]) is not None:  # 9812/10000
                value = Figure(name, 100 * value.value / max(1.0, float(whole)), "%")
            kept[name] = value if kept.get(name, value) == value else None
        return [value for name, value in kept.items() if value is not None and name not in self.patterns]

    def _cells(self, text: str) -> list[Figure] | None:
        """Return the metrics of a row below a table's head; None if the table has ended."""
        if _RE.rule.match(text):
            return []
        cells = _RE.bar.split(text, maxsplit=1)[0].replace("|", " ").replace("│", " ").split()
        if len(cells) != len(self._columns) or not any(map(_RE.number.match, cells)):
            return None
        words = [cell for cell in cells if cell[0].isalpha() and cell.lower() not in ("all", "nan", "inf")]
        found = []
        for name, cell in zip(self._columns, cells, strict=True):
            value = None if words else _RE.number.fullmatch(cell.removesuffix("%"))
            if value is not None and value[2] is not None and name.lower() == "epoch":
                self.progress.read(f"epoch {cell}", ended=False)
            elif value is not None and value[2] is None and is_metric(name.split(), cell):
                found.append(Figure(name.lower().replace(" ", "_"), float(value[1]), "%" if cell[-1] == "%" else ""))
        return found

    def complement(self, steps: ReportedSteps, *, own: bool) -> dict[str, PrintedSeries]:
        """Return the numbers that are not reported; ``own``: those of ``[metrics]`` alone, as the script reports."""
        names = (self.patterns if own else self.series).keys() - steps.series.keys()
        return {name: each for name, each in self.series.items() if name in names and each.points}


def _matched(name: str, pattern: re.Pattern[str], text: str) -> Iterator[Figure]:
    """Yield the first group of each match as a number, with its exponent, without a full stop or percent sign."""
    for match in pattern.finditer(text):
        digits = (match[1] or "").strip().rstrip("%.,;)")
        exponent = _RE.exponent.match(text, match.end(1)) if digits[-1:].isdigit() else None
        with suppress(ValueError):
            yield Figure(name, float(digits + (exponent[0] if exponent is not None else "")))


def is_metric(words: Sequence[str], figure: str) -> bool:
    """Return whether these words name a metric that has such a figure."""
    joined = " ".join(words).replace("'s", "")
    parts = _RE.parts.findall(joined.lower()) + _RE.parts.findall(re.sub("([a-z0-9])([A-Z])", r"\1 \2", joined).lower())
    names, exact = {*parts, *(part.rstrip("0123456789") for part in parts)}, _RE.exact.search(figure) is not None
    if names & _WORDS["otherwise"]:
        return False
    if names & _WORDS["metric"] or any(name.endswith(("loss", "accuracy", "acc")) for name in names):
        return exact or not names & _WORDS["position"]
    return exact and bool(names & _WORDS["exact"])


def _kind(match: re.Match[str]) -> str:
    """Return the sign that replaces a number in the shape of its line: names depend on no more of it."""
    return "/" if match[2] is not None else "." if _RE.exact.search(match[1]) else "0"


def _named(text: str, numbers: Sequence[re.Match[str]]) -> Iterator[tuple[int, str, str]]:
    """Yield the places of the numbers whose words in front of them name a metric, with name and unit."""
    if _RE.without.search(text):
        return
    sections = [(match.end(), match[1].lower()) for match in _RE.section.finditer(text)]
    row, losses = _RE.row.match(text), _RE.losses.search(text)
    end = 0
    for place, match in enumerate(numbers):
        begin, end = end, match.end()
        before, unit = text[max(0, match.start() - 2 * _MOST_NAME) : match.start()], _RE.percent.match(text, end)
        at = _RE.at.search(before)
        if row is not None:
            words = row[1].split() if row.start(2) == match.start() else None
        elif (model := _RE.model.search(before)) is not None:
            words = [*(_RE.named.findall(model[2])[:1] or _RE.part_of.findall(model[2])), model[1]]
        elif at is not None:
            words = _words(f"{at[1]}:")
        else:
            words = _words(_RE.glued.sub("", before[begin - match.start() :]) if begin else before)
        lost = losses is not None and losses.end() <= match.start()
        kind = ["loss"] if lost or (at is not None and words and words[-1].lower() == "cost") else []
        figure = match[1] + "%" * (unit is not None)
        if words is None or _RE.part.match(text, end) or not is_metric([*words, *kind], figure):
            continue
        name = "_".join(words).lower()
        if match[2] is not None and not any(part.startswith("acc") for part in _RE.parts.findall(name)):
            continue  # 9812/10000 is a share of examples, if anything
        spoken = next((phase for at, phase in reversed(sections) if at <= match.start()), None)
        if spoken is not None and not _RE.named.search(name):
            name = f"{_PHASES.get(spoken, spoken)}_{name}"
        elif len(words) > 1 and _RE.phase.fullmatch(words[0]):
            sections.append((match.start(), words[0].lower()))
        yield place, name, "%" if unit else ""


def _words(before: str) -> list[str] | None:
    """Return the words of the name in front of a number; None if it has none."""
    stripped = _RE.wrapped.sub("", before).rstrip(" \t'\"")
    named = _RE.sign.sub("", stripped).rstrip(" \t'\"")
    if named == stripped and (stripped == before or not is_metric(stripped.split()[-1:], "1.0")):
        return None  # with nothing but a space between them the last word names it
    stripped = _RE.unit.sub(r" \1", named)
    words = [word.rstrip(".") for word in _RE.between.split(stripped)[-1].split()]
    while words and (words[0].lower() in _WORDS["filler"] or (len(words) > 1 and not _RE.word.fullmatch(words[0]))):
        words.pop(0)
    plain = all(_RE.word.fullmatch(word) and word.lower() not in _WORDS["prose"] for word in words)
    return words if plain and 0 < len(words) <= 4 else None


def _columns(text: str) -> list[str]:
    """Return the names of a table's columns, if this line is its head."""
    if _RE.number.search(text) and not _RE.bar.search(text):
        return []
    head = _RE.column.split(_RE.bar.split(text, maxsplit=1)[0].strip(" |│"))
    names = [re.sub(r"^\w+\(|\)$", "", name) for name in head if name]
    fits = 3 <= len(names) <= 40 and all(_RE.word.match(name) or name == "#" for name in names)
    return names if fits and any(is_metric(name.split(), "1.0") for name in names) else []
