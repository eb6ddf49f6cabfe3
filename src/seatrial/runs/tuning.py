"""tune as a job, and the [tune] table with the changes it kept."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from seatrial.errors import ConfigError, UsageError
from seatrial.job.model import Job
from seatrial.job.tables import Changes, Tuning
from seatrial.planning.new_project import FILE
from seatrial.system import nofollow
from seatrial.system.project_files import MAX_PARSED_BYTES, parse_toml, read_text
from seatrial.system.text import as_typed

#: Seconds of a budget below which a baseline and one change do not fit.
_LEAST_BUDGET_S = 20.0


def tuning_job(job: Job, tuning: Tuning) -> Job:
    """Return the job with its script tuned in place of run: without ``[tune]`` of the file, and with no criteria.

    Raises UsageError: a recipe, several nodes, a budget that is too small, or no hook.
    """
    if job.target.kind == "recipe":
        raise UsageError(
            f"{job.target.value} is a recipe, which is tuned already; seatrial tune is for scripts",
            run="seatrial tune train.py",
        )
    if job.nodes > 1:
        raise UsageError("seatrial tune runs on one machine", run="seatrial tune …   # without --nodes")
    if job.no_hook:
        raise UsageError("seatrial tune measures with the hook that --no-hook leaves out", run="seatrial tune …")
    if tuning.budget_s < _LEAST_BUDGET_S:
        raise UsageError(
            f"--budget {tuning.budget_s:g}: a baseline and one change need at least {_LEAST_BUDGET_S:g} s",
            run="seatrial tune … --budget 180",
        )
    return job.changed(
        tuning=tuning, tune=Changes(), criteria=job.criteria.only("max_image_bytes"), restarts=0, resume=None
    )


_PYPROJECT = "pyproject.toml"
_HEADER = re.compile(r"^[ \t]*\[")


def save_changes(project: Path, changes: Mapping[str, Any], comment: str) -> Path:
    """Write changes as ``[tune]`` into seatrial.toml, or ``[tool.seatrial.tune]`` if pyproject.toml is the file.

    Args:
        comment: one line above the keys.

    Raises ConfigError: the file cannot be edited so that all else in it stays the same.
    """
    path, table = _file(project)
    before = read_text(path, inside=project, limit_bytes=MAX_PARSED_BYTES) if path.exists() else ""
    after = with_table(before, table, changes, comment)
    _check(path, before, after, table, changes)
    return nofollow.write_inside(project, path.name, data=after.encode())


def _file(project: Path) -> tuple[Path, str]:
    own, pyproject = project / FILE, project / _PYPROJECT
    if not own.exists() and pyproject.exists():
        text = read_text(pyproject, inside=project, limit_bytes=MAX_PARSED_BYTES)
        if "seatrial" in parse_toml(text, pyproject).get("tool", {}):
            return pyproject, "tool.seatrial.tune"
    return own, "tune"


def with_table(text: str, table: str, changes: Mapping[str, Any], comment: str) -> str:
    """Put the table into ``text``, in the place of the one of its name, or at the end."""
    lines = text.splitlines()
    header = re.compile(rf"^[ \t]*\[[ \t]*{re.escape(table)}[ \t]*\][ \t]*(#.*)?$")
    begin = next((at for at, line in enumerate(lines) if header.match(line)), None)
    made = [
        f"[{table}]",
        f"# {comment}",
        *(f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in sorted(changes.items())),
    ]
    if begin is None:
        return "\n".join([*lines, *([""] if lines and lines[-1].strip() else []), *made]) + "\n"
    end = next((at for at in range(begin + 1, len(lines)) if _HEADER.match(lines[at])), len(lines))
    while end > begin + 1 and (not lines[end - 1].strip() or (end < len(lines) and lines[end - 1].startswith("#"))):
        end -= 1  # what stands right above the next table is about that one
    return "\n".join([*lines[:begin], *made, *lines[end:]]) + "\n"


def _check(path: Path, before: str, after: str, table: str, changes: Mapping[str, Any]) -> None:
    """Check that only the table has changed, to these values. Raises ConfigError."""
    *outer, last = table.split(".")
    expected, found = parse_toml(before, path), parse_toml(after, path)
    inner: dict[str, Any] = expected
    for name in outer:
        inner = inner.setdefault(name, {})
    inner[last] = dict(changes)
    if expected != found:
        raise ConfigError(
            f"{path.name}: [{table}] cannot be written without changing what else is there",
            cause="it stands there in another form, such as an inline table",
            run=f"${{EDITOR:-vi}} {as_typed(path)}",
        )
