"""The metrics and the progress that a script prints, read line by line: the script's own words, never evidence.

A number counts as a metric if the words in front of it name one. A number that is not surely a metric is left out.
"""

from __future__ import annotations

import json
import math
import re
from ast import literal_eval
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import resources
from typing import NamedTuple

from seatrial.receipt.fields import clean_line, number
from seatrial.receipt.reported import MAX_POINTS, MAX_SERIES, Point, thin

#: Of one state of a line, of the words in front of a number, and of the numbers of one state: bounds of the work.
_MOST_LETTERS, _MOST_NAME, _MOST_NUMBERS = 4000, 60, 100

#: Lines that differ in their numbers alone have one shape, and are read by the words of the first.
_MOST_SHAPES = 1000


#: Words: of a metric's name, also with digits behind them (acc1); of one whose figure is exact, as they have other
#: uses; of a position unless it is; of a setting, a duration or a count; of a sentence; that are no part of a name.
_METRICS, _IF_EXACT, _POSITIONS, _OTHERWISE, _PROSE, _FILLERS = (
    frozenset(words.split())
    for words in json.loads(resources.files("seatrial.receipt").joinpath("printed.json").read_text("utf-8")).values()
)
_HINT = re.compile("|".join(sorted(_METRICS | _IF_EXACT, key=len)).encode())

_PHASES = {"training": "train", "testing": "test", "evaluation": "eval"}
_PHASE = r"train(?:ing)?|test(?:ing)?|eval(?:uation)?|val(?:id(?:ation)?)?|dev"
_PHASE_IN = re.compile(rf"(?<![a-z])(?:{_PHASE})(?![a-z])")
#: A phase that stands for all numbers behind it: ``Test set:``, ``Train Epoch: 1``, ``| valid |``, ``Epoch(train)``.
_SECTION = re.compile(
    rf"(?:^|[\[(|=>*:]\s*|\s-\s+)({_PHASE})(?:\s+(?:set|results?|metrics?|phase))?\s*(?:[\]):|]|\s-\s|\s+epoch\b)", re.I
)

_NUMBER = re.compile(
    r"(?<![\w.@/\\-])([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|[+-]?(?:nan|inf)\b)(?:\s{0,9}/\s{0,9}(\d+)(?!\.?\d))?",
    re.I,
)
#: Behind a number: what makes it a part of a version, a time, a list, a size, or the value before a change.
_PART = re.compile(r"[A-Za-z_/]|[:.,]\d|\s{0,3}(?:-+>|→|of\s|out\s)")
_EXACT = re.compile(r"[.%e]", re.I)
_PERCENT = re.compile(r"\s?%")
_WRAPPED = re.compile(r"(?:tensor|np\.float\d+)\($")
_BETWEEN = re.compile(r"[,;|\[\](){}<>\t=:]|(?<!\w)['\"]|['\"](?!\w)|\s[-–—•*]\s|\s{2,}")
_WORD = re.compile(r"[A-Za-z][\w@./'+-]*")
_PARTS = re.compile(r"[a-z]+[0-9]*")
_TOP = re.compile(r"\btop\s(\d)\b", re.I)
_HUMP = re.compile(r"([a-z0-9])([A-Z])")
_OF_MODEL = re.compile(
    r"\b(accuracy|acc|loss|f1|error)\s+(?:of|on|for|over)\s((?:(?!class\b)[\w -]){3,60}?)\s?(?::|=|\bis\b)\s?$", re.I
)
#: Settings, and a table of COCO's whose numbers stand for many others.
_NONE = re.compile(
    r"\b(?:Namespace|config|args|arguments|hparams|hyper-?parameters|settings|options)\b\s*[(:=]|@\[", re.I
)
_ROW = re.compile(r"\s*[|│]\s*([A-Za-z][\w@./ -]{0,60}?)\s*[|│]\s*(\S+)\s*[|│]?\s*$")
_RULE = re.compile(r"[\s|+=─━═┼╪┃│:-]*$")
_BAR = re.compile(r":\s+\d+%\|")
_OTHER_RANK = re.compile(r"\[(?:rank|default)0*[1-9]\d*\]:")


class Value(NamedTuple):
    """A printed number. ``unit``: ``%`` or nothing."""

    name: str
    value: float
    unit: str = ""


@dataclass
class Series:
    """All values of a name in one stream; ``line`` of the last, from 1; ``ended_as``: a last one that is nan or inf.

    Of many only some points are kept: first, last, lowest and highest are among them.
    """

    points: list[Point] = field(default_factory=list)
    count: int = 0
    line: int = 0
    unit: str = ""
    ended_as: str | None = None

    def add(self, value: Value, line: int) -> None:
        self.line, self.ended_as = line, None if math.isfinite(value.value) else str(value.value)
        if number(value.value) is not None and self.ended_as is None:
            self.unit, self.count = value.unit, self.count + 1
            self.points.append((float(self.count), value.value))
            self.points = thin(self.points) if len(self.points) > 4 * MAX_POINTS else self.points


_OF = r"(\d{1,9})\s{0,5}(?:/|\bof\b)\s{0,5}(\d{1,9})(?![\d.:/])"
_EPOCH = re.compile(rf"\b(?:epochs?|episodes?)\b[\s:#=\[(]{{0,4}}{_OF}", re.I)
_STEP = re.compile(rf"(?:\b(?:step|iter|iteration|update)s?\b[\s:#=\[(]{{0,9}}|^\[){_OF}", re.I)
_INNER = re.compile(rf"(?:\b(?:step|iter|iteration|update|batch)s?\b[\s:#=\[(]{{0,9}}|[\[(|]\s{{0,5}}|^){_OF}", re.I)


@dataclass
class Progress:
    """The position in the whole training, of a script that prints it: ``epoch 46/60``, ``step 100/500``.

    Attributes:
        inner: position in the epoch, 0 to 1, if one was printed since its number. ended: its values stood with it.
    """

    unit: str = ""
    done: int = 0
    total: int = 0
    inner: float | None = None
    ended: bool = False

    def read(self, text: str, *, ended: bool) -> None:
        """Read a state of a line."""
        unit, match = "epoch", _EPOCH.search(text)
        if match is None and self.unit != "epoch":
            unit, match = "step", _STEP.search(text)
        if match is not None and 0 < int(match[2]) >= int(match[1]):
            if (int(match[1]), int(match[2])) != (self.done, self.total):
                self.inner = None
            self.unit, self.done, self.total, self.ended = unit, int(match[1]), int(match[2]), ended
        inner = _INNER.search(text, match.end() if match else 0) if self.unit == "epoch" else None
        if inner is not None and 0 < int(inner[2]) >= int(inner[1]):
            self.inner = int(inner[1]) / int(inner[2])

    def share(self, of_pass: float | None = None) -> float | None:
        """Return the part of the training that is over, 0 to 1; ``of_pass``: that of a pass, as measured."""
        inner = (self.inner if self.inner is not None else of_pass or 0.0) if self.unit == "epoch" else 0.0
        begun = self.unit == "epoch" and (self.inner is not None or not self.ended)
        return min(1.0, max(0.0, self.done - begun + inner) / self.total) if self.total else None

    def __str__(self) -> str:
        return f"{self.unit} {self.done:,}/{self.total:,}"


@dataclass(frozen=True)
class Printed:
    """The numbers of all streams. ``series``: (stream, its values) by name; standard output's are the deliberate ones.

    Attributes:
        own: names of ``[metrics]``. progress: of the stream that shows it.
    """

    series: Mapping[str, tuple[str, Series]] = field(default_factory=dict)
    own: frozenset[str] = frozenset()
    progress: Progress = field(default_factory=Progress)


class PrintedLines:
    """Reads the lines of one stream in their order.

    Args:
        patterns: name → regular expression whose first group is the value, of ``[metrics]``.

    Attributes:
        series: name → its values, of at most MAX_SERIES names.
    """

    def __init__(self, patterns: Mapping[str, str] | None = None) -> None:
        self._patterns = {name: re.compile(pattern) for name, pattern in (patterns or {}).items()}
        self._columns: list[str] = []
        self._shapes: dict[str, list[tuple[int, str, str]]] = {}
        self.series: dict[str, Series] = {}
        self.progress = Progress()

    def add(self, raw: bytes, line: int) -> None:
        """Read a line."""
        lower = raw.lower()
        hinted = bool(self._columns) or _HINT.search(lower) is not None
        placed = b"/" in lower or b" of " in lower
        for text in states(raw) if hinted or placed or self._patterns else ():
            values = [Value(name, value) for name, each in self._patterns.items() for value in matched(each, text)]
            values += self.values(text) if hinted else ()
            for value in values:
                if value.name in self.series or len(self.series) < MAX_SERIES:
                    self.series.setdefault(value.name, Series()).add(value, line)
            if placed:
                self.progress.read(text, ended=bool(values) or "nd of epoch" in text)

    def values(self, text: str) -> list[Value]:
        """Return the metrics of one state of a line. A name that has two values there has none."""
        if self._columns and (cells := self._cells(text)) is not None:
            return cells
        self._columns = _columns(text)
        if text.count("{") > 1 and (nested := _nested(text)):
            return nested
        text = _TOP.sub(r"top\1", text)
        numbers = list(_NUMBER.finditer(text))[:_MOST_NUMBERS]
        shape = _NUMBER.sub(_kind, text)
        if shape not in self._shapes:
            self._shapes = self._shapes if len(self._shapes) < _MOST_SHAPES else {}
            self._shapes[shape] = list(_named(text, numbers))
        kept: dict[str, Value | None] = {}
        for place, name, unit in self._shapes[shape]:
            value = _value(name, unit, numbers[place])
            kept[name] = value if kept.get(name, value) == value else None
        return [value for name, value in kept.items() if value is not None and name not in self._patterns]

    def _cells(self, text: str) -> list[Value] | None:
        """Return the metrics of a row below a table's head; None if the table has ended."""
        if _RULE.match(text):
            return []
        cells = _BAR.split(text, maxsplit=1)[0].replace("|", " ").replace("│", " ").split()
        if len(cells) != len(self._columns) or not any(map(_NUMBER.match, cells)):
            return None
        words = [cell for cell in cells if cell[0].isalpha() and cell.lower() not in ("all", "nan", "inf")]
        found = []
        for name, cell in zip(self._columns, cells, strict=True):
            value = None if words else _NUMBER.fullmatch(cell.removesuffix("%"))
            if value is not None and value[2] is not None and name.lower() == "epoch":
                self.progress.read(f"epoch {cell}", ended=False)
            elif value is not None and value[2] is None and is_metric(name.split(), cell):
                found.append(Value(name.lower().replace(" ", "_"), float(value[1]), "%" if cell[-1] == "%" else ""))
        return found


def together(streams: Mapping[str, PrintedLines], own: Iterable[str] = ()) -> Printed:
    """Return the numbers of streams; of a name in several of them, those of the first."""
    found: dict[str, tuple[str, Series]] = {}
    for stream, lines in streams.items():
        for name, series in lines.series.items():
            if series.count and len(found) < MAX_SERIES:
                found.setdefault(name, (stream, series))
    progress = [lines.progress for lines in streams.values() if lines.progress.total]
    return Printed(found, frozenset(own), progress[0] if progress else Progress())


def states(raw: bytes) -> Iterator[str]:
    """Yield what a line showed, one after the other, where a progress bar has drawn over it."""
    for part in re.split(rb"[\r\x08]+", raw):
        if part.strip():
            yield clean_line(part[:_MOST_LETTERS].decode("utf-8", "replace")).rstrip()


#: It belongs to a number and is easily left out of a pattern: ``([\d.]+)`` on ``1.2e-05`` is not 1.2.
_EXPONENT = re.compile(r"[eE][+-]?\d+")


def matched(pattern: re.Pattern[str], text: str) -> Iterator[float]:
    """Yield the first group of each match as a number, with its exponent, without a full stop or percent sign."""
    for match in pattern.finditer(text):
        digits = (match[1] or "").strip().rstrip("%.,;)")
        exponent = _EXPONENT.match(text, match.end(1)) if digits[-1:].isdigit() else None
        with suppress(ValueError):
            yield float(digits + (exponent[0] if exponent is not None else ""))


def is_metric(words: Sequence[str], figure: str) -> bool:
    """Return whether these words name a metric that has such a figure."""
    joined = " ".join(words).replace("'s", "")
    parts = _PARTS.findall(joined.lower()) + _PARTS.findall(_HUMP.sub(r"\1 \2", joined).lower())
    if any(part in _OTHERWISE for part in parts):
        return False
    exact = _EXACT.search(figure) is not None
    names = {*parts, *(part.rstrip("0123456789") for part in parts)}
    strong = not names.isdisjoint(_METRICS) or any(name.endswith(("loss", "accuracy")) for name in names)
    return (exact and not names.isdisjoint(_IF_EXACT)) or (strong and (exact or names.isdisjoint(_POSITIONS)))


def _kind(match: re.Match[str]) -> str:
    """Return what stands for a number in the shape of its line: names depend on no more of it."""
    figure = match[1].lower()
    return "/" if match[2] is not None else "n" if figure[-1] in "nf" else "." if _EXACT.search(figure) else "0"


def _value(name: str, unit: str, match: re.Match[str]) -> Value | None:
    """Return the value; of ``9812/10000`` the share."""
    value = float(match[1])
    if match[2] is None:
        return Value(name, value, unit)
    return Value(name, 100 * value / float(match[2]), "%") if 0 <= value <= float(match[2]) != 0 else None


def _named(text: str, numbers: Sequence[re.Match[str]]) -> Iterator[tuple[int, str, str]]:
    """Yield the places of the numbers whose words in front of them name a metric, with name and unit."""
    if _NONE.search(text) or _OTHER_RANK.match(text):
        return
    sections = [(match.end(), match[1].lower()) for match in _SECTION.finditer(text)]
    row = _ROW.match(text)
    end = 0
    for place, match in enumerate(numbers):
        begin, end = end, match.end()
        before, unit = text[max(0, match.start() - 2 * _MOST_NAME) : match.start()], _PERCENT.match(text, end)
        if row is not None:
            words = row[1].split() if row.start(2) == match.start() else None
        elif (model := _OF_MODEL.search(before)) is not None:
            words = [*re.findall(rf"\b{_PHASE}\b", model[2], re.I)[:1], model[1]]
        else:
            words = _words(before[begin - match.start() :])
        if words is None or _PART.match(text, end) or not is_metric(words, match[1] + "%" * (unit is not None)):
            continue
        name = "_".join(words).lower()
        if match[2] is not None and not any(part.startswith("acc") for part in _PARTS.findall(name)):
            continue  # 9812/10000 is a share of examples, if anything
        spoken = next((phase for at, phase in reversed(sections) if at <= match.start()), None)
        if spoken is not None and not _PHASE_IN.search(name):
            name = f"{_PHASES.get(spoken, spoken)}_{name}"
        elif len(words) > 1 and re.fullmatch(_PHASE, words[0], re.I):
            sections.append((match.start(), words[0].lower()))
        yield place, name, "%" if unit else ""


def _words(before: str) -> list[str] | None:
    """Return the words of the name in front of a number; None if it has none."""
    stripped = _WRAPPED.sub("", before).rstrip(" \t'\"")
    named = re.sub(r"[:=]$| is$", "", stripped).rstrip(" \t'\"")
    if named == stripped and (stripped == before or not is_metric(stripped.split()[-1:], "1.0")):
        return None  # with nothing but a space between them the last word names it
    stripped = re.sub(r"\s?\(([\w %/]{1,12})\)$", r" \1", named)
    words = [word.rstrip(".") for word in _BETWEEN.split(stripped)[-1].split()]
    while words and (words[0].lower() in _FILLERS or (len(words) > 1 and not _WORD.fullmatch(words[0]))):
        words.pop(0)
    fits = 0 < len(words) <= 4 and all(_WORD.fullmatch(word) and word.lower() not in _PROSE for word in words)
    return words if fits else None


def _nested(text: str) -> list[Value]:
    """Return the metrics of the objects in an object of JSON or Python, with its name in front; [] for other text."""
    try:
        loaded = json.loads(text) if '"' in text else literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return []
    found = []
    for before, table in loaded.items() if isinstance(loaded, dict) else ():
        for key, value in table.items() if isinstance(table, dict) else ():
            name = f"{before}_{key}"
            plain = isinstance(value, (int, float)) and not isinstance(value, bool)
            if plain and len(name) <= _MOST_NAME and name.isprintable() and is_metric([str(key)], repr(value)):
                found.append(Value("_".join(name.lower().split()), float(value)))
    return found


def _columns(text: str) -> list[str]:
    """Return the names of a table's columns, if this line is its head."""
    if _NUMBER.search(text) and not _BAR.search(text):
        return []
    names = [name for name in re.split(r"\s{2,}|\s*[|│]\s*|\t", _BAR.split(text, maxsplit=1)[0].strip(" |│")) if name]
    names = [re.sub(r"^\w+\(|\)$", "", name) for name in names]
    fits = 3 <= len(names) <= 40 and all(
        _WORD.fullmatch(word) or word == "#" for name in names for word in name.split()
    )
    return names if fits and any(is_metric(name.split(), "1.0") for name in names) else []
