"""Patch: changes that were measured from outside, as edits of the user's own files, and a diff of them."""

from __future__ import annotations

import difflib
import hashlib
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from seatrial.errors import ConfigError, UsageError
from seatrial.system.files import write_atomically
from seatrial.system.project_files import read_bytes
from seatrial.tuning.by_hand import by_hand, in_words

#: A file of a script's author; generated ones are larger.
_MOST_BYTES = 1_000_000


class FileChange(NamedTuple):
    """One file: where it really lies, its name in the diff, its bytes before and after, its mode."""

    path: Path
    name: str
    before: bytes
    after: bytes
    mode: int


class PatchResult(NamedTuple):
    """Attributes:

    diff: unified; empty when nothing is edited.
    left_out: sentences on what has to be written by hand, and why.
    files: what ``apply`` writes.
    """

    diff: str
    left_out: tuple[str, ...]
    files: tuple[FileChange, ...]


def patch(project: Path, places: Mapping[str, Sequence[str]], kept: Mapping[str, Any]) -> PatchResult:
    """Edits that do in the script what was kept.

    Args:
        project: places are seen from here. Only files in it are edited.
        places: key → ``file:line``, as the hook told them (agent/hook/changes.py); the script's word, so checked.
        kept: key of decision 0037's table → value.

    Raises ConfigError: a file cannot be read; UsageError: libcst is not installed.
    """
    try:
        from seatrial.tuning.file_patch import FilePatch
    except ImportError as error:
        raise UsageError(
            f"--patch needs {error.name}, which is not installed", run="pip install 'seatrial[tune]'"
        ) from error
    left_out: list[str] = []
    patches: dict[str, FilePatch] = {}
    for name in _names(places):
        outside = _outside(project, name)
        if outside is None:
            data = read_bytes(project / name, inside=project, limit_bytes=_MOST_BYTES)
            try:
                patches[name] = FilePatch(name, data)
            except ValueError:
                left_out.append(f"{name} cannot be parsed as Python, so nothing is written there.")
    for key in _ORDER:
        if key in kept:
            why = _edit(patches, places, key, kept[key])
            if why is not None:
                left_out.append(f"{in_words(key, kept[key])} is not in the patch: {why}. {by_hand(key, kept[key])}")
    files = []
    for name, each in patches.items():
        after = each.made()
        if after is None:
            left_out.append(f"{name}: the edited file would not parse, so it stays as it is.")
        elif after != each.before:
            path = Path(os.path.realpath(project / name))
            files.append(FileChange(path, name, each.before, after, stat.S_IMODE(path.stat().st_mode)))
    return PatchResult("".join(_diff(each) for each in files), tuple(left_out), tuple(files))


#: What is behind a call's other changes comes later.
_ORDER = (
    *("workers", "persistent_workers", "pin_memory", "prefetch_factor", "batch_size", "non_blocking"),
    *("fused_optimizer", "bucket_cap_mb", "gradient_as_bucket_view", "channels_last", "compile"),
    *("tf32", "cudnn_benchmark", "precision"),
)

#: Keys whose lines are others': of the model's move and of its call.
_ELSEWHERE = {"channels_last": ("model_to", "model"), "compile": ("model_to", "model"), "precision": ("model",)}
_AT_THE_TOP = ("tf32", "cudnn_benchmark")


def _names(places: Mapping[str, Sequence[str]]) -> list[str]:
    words = [word for lines in places.values() for word in lines]
    return sorted({name for name, line in map(_split, words) if line})


def _split(place: str) -> tuple[str, int]:
    """``train.py:31`` → its parts; line 0 for what is no place."""
    name, _, line = place.rpartition(":")
    return (name, int(line)) if name.endswith(".py") and line.isdigit() and len(line) < 8 else ("", 0)


def _outside(project: Path, name: str) -> str | None:
    path = Path(os.path.realpath(project / name))
    if Path(name).is_absolute() or not path.is_relative_to(project.resolve()) or not path.is_file():
        return f"{name} is no file of this project"
    return None


def _edit(patches: Mapping[str, Any], places: Mapping[str, Sequence[str]], key: str, value: Any) -> str | None:
    """Edit what ``key`` is about. Returns why not."""
    if key in _AT_THE_TOP:
        mains = [name for name, line in map(_split, places.get("main", ())) if line and name in patches]
        if not mains:
            return "the script's own file is not known"
        why: str | None = patches[mains[0]].edit_top(key)
        return why and f"{mains[0]}: {why}"
    keys = _ELSEWHERE.get(key, (key,))
    lines: dict[str, dict[str, list[int]]] = {}
    for each in keys:
        for name, line in map(_split, places.get(each, ())):
            if line:
                lines.setdefault(name, {}).setdefault(each, []).append(line)
    reasons = []
    for name, found in lines.items():
        if name not in patches:
            reasons.append(f"{name} is no file of this project")
            continue
        reasons.append(patches[name].edit(key, value, found, places))
        if reasons[-1] is not None and key in ("channels_last", "compile"):
            reasons[-1] = f"{name}: {reasons[-1]}"
    if not lines:
        return "where it belongs is not known"
    if any(reason is None for reason in reasons):  # in another file, the model is only called
        return None if key in ("channels_last", "compile") else next((r for r in reasons if r is not None), None)
    return next(reason for reason in reasons if reason is not None)


def _diff(change: FileChange) -> str:
    before, after = (_lines(data) for data in (change.before, change.after))
    made = difflib.unified_diff(before, after, f"a/{change.name}", f"b/{change.name}")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in made)


def _lines(data: bytes) -> list[str]:
    text = data.decode("utf-8", "surrogateescape")
    return (
        text.split("\n")
        if not text
        else [f"{line}\n" for line in text.split("\n")[:-1]]
        + ([text.rsplit("\n", 1)[-1]] if not text.endswith("\n") else [])
    )


def apply(result: PatchResult) -> None:
    """Write the files, each whole or not at all, with its mode and line endings.

    Raises ConfigError: a file is no longer as it was when the patch was made; nothing is written then. DiskError.
    """
    for change in result.files:
        now = change.path.read_bytes() if change.path.is_file() else b""
        if _digest(now) != _digest(change.before):
            raise ConfigError(
                f"{change.name} has been changed since it was measured, so nothing was written",
                run="seatrial tune … --patch   # measures it as it is now",
            )
    for change in result.files:
        write_atomically(change.path, change.after, change.mode)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
