"""The list of runs: a line for each run in words, with the numbers that it is sorted by; and the projects."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seatrial.errors import RunNotFoundError, SeatrialError
from seatrial.job.units import format_seconds
from seatrial.receipt.fields import number
from seatrial.receipt.formatting import figure
from seatrial.receipt.render.pages import LEVELS, STATES
from seatrial.receipt.reported import headline_metrics
from seatrial.runs.live import look
from seatrial.runs.run import Run, Summary, run_name
from seatrial.runs.status import started_at
from seatrial.runs.store import RunStore, is_run_id, known_projects
from seatrial.system.host import Host

#: Runs on one page of the list.
PAGE = 50

#: A line of a live run is kept for this long.
_LIVE_S = 1.5

#: Names of the filter → levels of ended runs; live runs are a filter of their own.
STATUSES = ("running", "good", "warning", "bad", "none")

#: Columns that a list can be sorted by, and whether more comes first.
SORTS = {"started": True, "name": False, "target": False, "project": False, "seconds": False, "loss": False,
         "accuracy": True, "status": False}  # fmt: skip

Line = dict[str, Any]


@dataclass(frozen=True)
class Wanted:
    """A request for the list. ``find``: in ID, name and target. Raises ValueError for an unknown column or status."""

    find: str = ""
    status: str = ""
    project: str = ""
    sort: str = "started"
    backwards: bool = False
    page: int = 0

    def __post_init__(self) -> None:
        for name, value, known in (("sort", self.sort, SORTS), ("status", self.status, ("", *STATUSES))):
            if value not in known:
                raise ValueError(f"{name} must be one of {', '.join(filter(None, known))}")


class Listing:
    """Lines of runs; those of ended runs are kept. Safe to read from several threads."""

    def __init__(self, projects: Projects) -> None:
        self._projects = projects
        self._lines: dict[Path, tuple[float, Line]] = {}  # each good until
        self._lock = threading.Lock()

    def page(self, wanted: Wanted) -> dict[str, Any]:
        """Return one page of the list, and the number of runs."""
        lines = [self.line(key, run) for key, run in self._projects.runs()]
        fitting = [line for line in lines if _fits(line, wanted)]
        downwards = SORTS[wanted.sort] != wanted.backwards
        known = [line for line in fitting if line["by"][wanted.sort] is not None]
        known.sort(key=lambda line: line["id"], reverse=True)
        known.sort(key=lambda line: line["by"][wanted.sort], reverse=downwards)
        every = known + [line for line in fitting if line["by"][wanted.sort] is None]
        return {
            "runs": every[wanted.page * PAGE : (wanted.page + 1) * PAGE],
            "total": len(every),
            "page": wanted.page,
            "pages": max(1, -(-len(every) // PAGE)),
            "live": sum(not line["ended"] for line in lines),
            "gpus": any(line["gpus"] for line in fitting),
        }

    def line(self, key: str, run: Run) -> Line:
        """Return the line of a run; an unreadable run is a line as well, and hides no other."""
        with self._lock:
            until_s, kept = self._lines.get(run.folder, (0.0, {}))
        if time.monotonic() < until_s:
            return self._shown(kept)
        try:
            line = _line_of(run)
        except Exception as error:  # noqa: BLE001  a run's files may hold anything
            unreadable = Summary(exit_code=0, outcome=f"cannot be read: {type(error).__name__}")
            line = _line(run, unreadable, ended=False)
        line["key"] = key
        with self._lock:
            self._lines[run.folder] = (math.inf if line["ended"] else time.monotonic() + _LIVE_S, line)
        return self._shown(line)

    def _shown(self, line: Line) -> Line:
        """Return the line with its age and its project's name now: another of that name may have come."""
        project = self._projects.name_of(line["key"])
        return {**_with_age(line), "project": project, "by": {**line["by"], "project": project}}


def _fits(line: Mapping[str, Any], wanted: Wanted) -> bool:
    text = f"{line['id']} {line['name'] or ''} {line['target']}".lower()
    status = "running" if not line["ended"] else line["level"]
    return wanted.find.lower() in text and wanted.status in ("", status) and wanted.project in ("", line["key"])


def _line_of(run: Run) -> Line:
    """Read summary.json or, while the run goes on, its plan and the end of its evidence."""
    if (summary := run.summary()) is not None:
        return _line(run, summary, ended=True)
    try:
        plan = run.plan()
    except SeatrialError as error:
        return _line(run, Summary(exit_code=0, outcome=error.message), ended=False)
    now, begun = look(run, plan.gpus[0].name if plan.gpus else "", plan.job.metrics), started_at(run.id)
    so_far = Summary(
        exit_code=0,
        target=plan.job.target.value or plan.job.image.ready or "",
        backend=plan.backend,
        gpus=plan.gpus_asked,
        outcome=now.progress,
        seconds=None if begun is None else max(0.0, time.time() - begun),
        metrics=dict(now.latest),
        percent=tuple(now.percent),
    )
    return _line(run, so_far, ended=False)


def _level(summary: Summary) -> str:
    """Return the level of a summary; older ones have none, so their exit code decides."""
    if summary.level in LEVELS:
        return summary.level
    return "none" if summary.cause == "stopped" else "good" if summary.exit_code == 0 else "bad"


def _line(run: Run, summary: Summary, *, ended: bool) -> Line:
    """Return the line of a run, from its summary or the one that it would have now."""
    last, level = summary.last, _level(summary) if ended else "none"
    shown = [(number(last.get(name)), name in summary.percent) for name in headline_metrics(last)]
    words = [None if at is None else figure(float(f"{at:.4g}")) + " %" * share for at, share in shown]
    loss, accuracy = (at if at is None or not share else at / 100 for at, share in shown)
    name, began, seconds = run_name(run), started_at(run.id), summary.seconds
    chip = LEVELS[level] if ended else STATES["running"]
    headline = summary.headline or summary.outcome or "?"
    chip_words, reason = _chip_words(headline, level) if ended else ("running", summary.outcome)
    return {
        "id": run.id,
        "name": name,
        "target": summary.target,
        "backend": summary.backend,
        "gpus": summary.gpus,
        "ended": ended,
        "level": level,
        "chip": {"colour": chip.colour, "words": f"{chip.mark}{chip_words}"},
        "reason": reason,
        "outcome": summary.outcome,
        "began": began,
        "started": "–" if began is None else time.strftime("%d %b %H:%M", time.localtime(began)),
        "time": None if seconds is None else format_seconds(seconds),
        **dict(zip(("loss", "accuracy"), words, strict=True)),
        "by": {
            "started": began,
            "name": (name or run.id).lower(),
            "target": summary.target.lower(),
            "seconds": seconds,
            "loss": loss,
            "accuracy": accuracy,
            "status": STATUSES.index(level) if ended else 0,
        },
    }


#: Words of a chip at most; more stands below it.
_MOST_LETTERS = 30


def _chip_words(headline: str, level: str) -> tuple[str, str]:
    """Return the words of the chip and the words below it: ``failed``, and how."""
    begin, _, rest = headline.partition(": ")
    if begin.startswith("criteria not met"):
        return begin, rest
    if level == "bad":
        return "failed", "" if headline == "failed" else headline
    if headline.lower().startswith("stopped "):
        return "stopped", headline
    return (headline, "") if len(headline) <= _MOST_LETTERS else ("stopped" if level == "none" else level, headline)


def _with_age(line: Line) -> Line:
    """Return the line with its age now, in its largest unit alone: ``3 h ago``."""
    if line["began"] is None:
        return {**line, "ago": ""}
    words = format_seconds(max(1, round(time.time() - line["began"]))).split()
    return {**line, "ago": f"{' '.join(words[:2])} ago"}


class Projects:
    """The stores of one project, or of every project of this user, by keys that reveal nothing of them.

    The registry is the state folder: the first run of a project writes ``projects/<key>/project.json`` there.

    Args:
        first: the project where somebody stands, or that was named.
        host: whose other projects are found; None: there is only the first.
    """

    def __init__(self, first: RunStore, host: Host | None = None) -> None:
        self.first, self._host = first, host
        self._stores = {_key(first.record): first}

    def all(self) -> dict[str, RunStore]:
        """Return key → store, the first one first; new projects are found each time."""
        if self._host is not None:
            for store in (RunStore(path, self._host) for path in known_projects(self._host)):
                self._stores.setdefault(_key(store.record), store)
        return dict(self._stores)

    def name_of(self, key: str) -> str:
        """Return the name of the folder of a project that ``all`` returned; its path if another has that name."""
        own = self._stores[key].project
        alone = sum(store.project.name == own.name for store in self._stores.values()) == 1
        return own.name if alone else str(own)

    def find(self, run_id: str) -> tuple[str, Run]:
        """Return (project's key, run) by ID alone, among the stores' own folders: no path can be made of it.

        Raises RunNotFoundError.
        """
        if is_run_id(run_id):
            for key, store in self.all().items():
                run = store.run(run_id)
                if run.folder.is_dir() and not run.folder.is_symlink():
                    return key, run
        raise RunNotFoundError("Run not found")

    def runs(self) -> Iterator[tuple[str, Run]]:
        """Yield (project's key, run) of every run, in no order."""
        for key, store in self.all().items():
            for run in store.all():
                yield key, run


def _key(record: Path) -> str:
    """Return the digest at the end of the folder's name."""
    return record.name.rpartition("-")[2]
