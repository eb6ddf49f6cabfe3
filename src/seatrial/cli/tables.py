"""Print tables: ``runs ls`` with its filters and as many columns as fit, and a study's trials."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from datetime import datetime
from itertools import groupby, takewhile
from typing import TYPE_CHECKING, NamedTuple

from seatrial.cli import terminal
from seatrial.cli.options import quoted
from seatrial.compose.listing import Listed
from seatrial.errors import UsageError, fallback
from seatrial.job.units import format_seconds
from seatrial.runs.status import started_at
from seatrial.system.text import one_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from seatrial.search.request import Objective
    from seatrial.search.trial import Trial

#: Letters of a cell: every row is as wide as the widest.
_MOST_LETTERS = 4000
#: Values of ``--status``. ``unmet``: ended well, and criteria are not met.
STATUSES = ("starting", "waiting", "running", "done", "stopped", "failed", "unmet", "unknown")

_HEAD = ("RUN", "NAME", "TARGET", "ON", "GPUS", "AGE", "TIME", "STATUS")
#: Statuses that are followed by their reason.
_WITH_REASON = ("waiting", "stopped", "unknown", "unchanged", "skipped")
#: Columns that a narrow terminal does without, the first one first.
_LEFT_OUT = ("ON", "GPUS", "TIME", "AGE")
#: Characters of a target that stay while there are other columns, and without these; of a status that are shown before
#: other columns are; and of an ID's end, by which a run is found as well.
_TARGET, _LEAST, _STATUS, _ID_END = 14, 6, 32, 4

#: Beginnings of messages that are cut: the row already names the run, and only the reason is new.
_BEFORE_REASON = (
    (re.compile(r"^The run could not be started: "), "not started: "),
    (re.compile(r"^The target exited with (\d+)(?=$| and)"), r"exit code \1"),
    (re.compile(r"^The target (?:exited with \d+: |was |could not be run: )"), ""),
    (re.compile(r"^The GPU contract was violated, so [^:]+: "), "GPU contract: "),
    (re.compile(r"^not started: Building \S+ failed(?: while [^:]+)?: "), "its image: "),
)


def runs_lines(listed: Sequence[Listed], width: int | None, now: float) -> list[str]:
    """Return one line for each run, below a head. rich is not used: it takes a second for a thousand lines.

    At a narrow ``width`` (None: no terminal) the ID is shortened, columns are left out and the target is cut; of the
    state only the reason behind it is.
    """
    engines = {(each.line.backend, each.line.engine) for each in listed if each.line.engine}
    several = len(engines) > len({backend for backend, _ in engines})
    rows = [dict(zip(_HEAD, _row(each, now, engine=several), strict=True)) for each in listed]
    widths = {column: max(len(column), *(len(row[column]) for row in rows)) for column in _HEAD}
    wanted = min(_STATUS, widths["STATUS"])

    def missing() -> int:
        others = sum(widths[column] + 2 for column in widths if column != "STATUS")
        return others + wanted - (width or others + wanted)

    if missing() > 0:
        for row in rows:
            row["RUN"] = row["NAME"] if row["NAME"].strip() else row["RUN"][-_ID_END:]
        del widths["NAME"]
        widths["RUN"] = max(3, *(len(row["RUN"]) for row in rows))
        for column in (None, *_LEFT_OUT):
            if column is not None:
                del widths[column]
            least = min(widths["TARGET"], _TARGET if column != _LEFT_OUT[-1] else _LEAST)
            if missing() <= widths["TARGET"] - least:
                break
        widths["TARGET"] = max(least, widths["TARGET"] - max(0, missing()))
        for _, some in groupby(rows, key=lambda row: row["RUN"].startswith("  ")):
            _tell_apart([row for row in some if len(row["TARGET"]) > widths["TARGET"]])
    lines = [dict(zip(_HEAD, _HEAD, strict=True)), *rows]
    shown = ["  ".join(_cut(line[column], widths[column]).ljust(widths[column]) for column in widths) for line in lines]
    return [_cut(line.rstrip(), width or len(line)) for line in shown]


def _tell_apart(rows: Sequence[dict[str, str]]) -> None:
    """Begin the targets of a group's members, which do not fit, with the first word, or its option, that differs."""
    targets = [row["TARGET"].split() for row in rows if row["RUN"].startswith("  ")]
    same = len([*takewhile(lambda words: len({*words}) == 1, zip(*targets, strict=False))])
    at = same - 1 if same and targets[0][same - 1].startswith("-") else same
    if at and all(len(words) > same for words in targets) and len(targets) > 1:
        for row, words in zip(rows, targets, strict=True):
            row["TARGET"] = f"… {' '.join(words[at:])}"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def matches(listed: Listed, statuses: Sequence[str], since_s: float | None, now: float) -> bool:
    """Return True for a run with one of these statuses, started at most ``since_s`` seconds ago."""
    line = listed.line
    unmet = line.status == "done" and (line.headline or "").startswith("criteria not met")
    if statuses and line.status not in statuses and not (unmet and "unmet" in statuses):
        return False
    started = started_at(line.id)
    return since_s is None or (started is not None and now - started <= since_s)


def age(seconds: float) -> str:
    """Format an age in its largest unit: ``12s``, ``5m``, ``3h``, ``2d``."""
    units = (("d", 86400), ("h", 3600), ("m", 60))
    unit, size = next((each for each in units if seconds >= each[1]), ("s", 1))
    return f"{max(0.0, seconds) / size:.0f}{unit}"


def _row(listed: Listed, now: float, *, engine: bool) -> tuple[str, ...]:
    """Return the row of a run, a group, or below it a member; ``engine``: with the engine that it is on."""
    line = listed.line
    reason = line.headline or line.outcome or ""
    for pattern, words in _BEFORE_REASON:
        reason = pattern.sub(words, reason)
    stopped = line.outcome.lower().startswith("stopped")
    whole = {"done": line.headline or "done", "stopped": line.outcome if stopped else None}.get(line.status)
    words = {"failed": reason}.get(line.status, line.outcome if line.status in _WITH_REASON else "")
    status = ": ".join(filter(None, (whole, line.address) if whole else (line.status, words, line.address)))
    seconds = format_seconds(line.seconds) if line.seconds is not None else ""
    gpus = "?" if line.gpus is None else str(line.gpus)
    started = started_at(line.id)
    old = "" if started is None else age(now - started)
    run_id, name = (f"  {line.id}", f"  {listed.member}") if listed.member else (line.id, line.name or "")
    backend = f"{line.backend} {line.engine}" if engine and line.engine else line.backend
    cells = run_id, name, line.target, backend, gpus, old, seconds, status
    return tuple(one_line(cell[:_MOST_LETTERS]) for cell in cells)


def parse_statuses(text: str | None) -> tuple[str, ...]:
    """Read ``failed`` or ``failed,unmet``. Raises UsageError for an unknown one."""
    words = tuple(word.strip() for word in (text or "").split(",") if word.strip())
    if (text is not None and not words) or (strange := [word for word in words if word not in STATUSES]):
        wrong = quoted(strange[0] if words else text or "")
        problem = f"{wrong} is not a status: choose from {', '.join(STATUSES)}"
        raise UsageError(problem, run="seatrial runs ls --status failed")
    return words


def parse_since(text: str) -> float:
    """Return the seconds of ``30m``, ``2d``, ``1w``, or since ``2026-11-30``, in local time. Raises UsageError."""
    from seatrial.job.units import parse_seconds

    at = fallback(None, on=(ValueError, OverflowError))(lambda: datetime.fromisoformat(text.strip()).timestamp())()
    if "-" in text and at is not None:
        return time.time() - at
    if days := re.fullmatch(r"([0-9]{1,4})([dw])", text.strip()):
        return float(days[1]) * {"d": 86400, "w": 604800}[days[2]]
    try:
        return parse_seconds(text)
    except UsageError as error:
        raise UsageError(f"--since: {error.message}", run="seatrial runs ls --since 2d") from None


# ------------------------------------------------------------------------------------------------ a study's trials

#: Columns of a terminal that outcomes get at least; they go on in the next line.
_LEAST_OUTCOME = 16
#: Between two columns.
_GAP = 2


class _Column(NamedTuple):
    title: str
    cells: Sequence[Text]

    @property
    def width(self) -> int:
        return max(len(self.title), *(len(cell) for cell in self.cells))


def print_trials(
    trials: Sequence[Trial], objective: Objective | None, console: Console | None = None, *, as_json: bool = False
) -> None:
    """Print settings, numbers (the best bold) and each trial's end. Without a terminal nothing is left out."""
    if as_json:
        print(json.dumps([trial.as_dict() for trial in trials], indent=1))
    if as_json or not trials:
        return
    from rich.table import Table
    from rich.text import Text

    from seatrial.search.results import best_of

    console = console or terminal.console()
    best = best_of(trials, objective)
    trial = _Column("trial", [Text(str(each.number), style="bold" if each is best else "") for each in trials])
    settings = [_Column(name, [Text(each.settings.get(name, "")) for each in trials]) for name in trials[0].settings]
    numbers = _numbers(trials, objective)
    outcome = _Column("outcome", [Text(each.ending.outcome if each.ending else each.state) for each in trials])
    every = [trial, *settings, *numbers, outcome]
    if not console.is_terminal:
        console.width = _width(every)
    shown = numbers[:1]
    space = console.width - _width([trial, *shown]) - min(outcome.width, _LEAST_OUTCOME) - 2 * _GAP
    if _width(settings) <= space:
        space -= _width(settings)
    else:
        settings = [_Column("settings", [Text(each.label) for each in trials])]
        longest = max(len(f"{name}={value}") for each in trials for name, value in each.settings.items())
        space -= max(longest, space // 2)
    for number in numbers[1:]:
        space -= number.width + _GAP
        if space < 0:
            break
        shown.append(number)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in (trial, *settings, *shown, outcome):
        table.add_column(column.title, no_wrap=column is trial or column in shown, overflow="fold")
    for row in zip(*(column.cells for column in (trial, *settings, *shown, outcome)), strict=True):
        table.add_row(*row)
    console.print(table)
    if left_out := [column.title for column in numbers[len(shown) :]]:
        console.print(Text(f"too narrow for {', '.join(left_out)}: see the page, or --json", style="dim"))


def _numbers(trials: Sequence[Trial], objective: Objective | None) -> list[_Column]:
    """Return a column for each number, its best bold."""
    from rich.text import Text

    from seatrial.search.results import best_in, columns

    found = []
    for column in columns(trials, objective):
        best, values = best_in(trials, column), [column.number(each) for each in trials]
        texts = ["" if value is None else f"{value:.4g}" for value in values]
        styles = ["bold" if best is each else "" for each in trials]
        found.append(_Column(column.title, [Text(*each) for each in zip(texts, styles, strict=True)]))
    return found


def _width(listed: Sequence[_Column]) -> int:
    """Return the width of columns and the gaps between them."""
    return sum(column.width for column in listed) + _GAP * max(0, len(listed) - 1)
