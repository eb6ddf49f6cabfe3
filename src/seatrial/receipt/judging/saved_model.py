"""Was a model saved: a file that matches, is not empty, and is newer than the target's start."""

from __future__ import annotations

import glob
import stat
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

from seatrial.events import MODEL_SUFFIXES, AgentStarted, FilesOutside, ModelsSaved
from seatrial.job.plan import CONTAINER_HOME, CONTAINER_RUN
from seatrial.job.units import format_bytes
from seatrial.receipt.evidence.fields import clean, number
from seatrial.receipt.formatting import count
from seatrial.receipt.judging.judgement import Judgement
from seatrial.receipt.judging.judging_input import Case
from seatrial.system.nofollow import NO_RESULTS, files_below

#: Files looked at, at most: os.walk over the 125 000 of a /usr took 1.2 s from a warm cache, 6 s from a cold one.
MAX_FILES = 200_000

#: File times come from the kernel's coarse clock, which is up to one tick (10 ms at HZ=100) behind.
CLOCK_SLACK_S = 0.01


def judge_saved_model(case: Case) -> Judgement:
    """Look in the models folder, then in the project, in HOME, and in what was copied out of the container.

    Without ``criteria.model`` the usual suffixes are looked for. A job that names neither a model nor a models
    folder, and leaves nothing, is not judged: not every script saves a model, and it did not promise one.
    """
    started = started_at(case)
    if started is None:
        return Judgement("not judged", "the target was not started")
    patterns = case.plan.job.criteria.model
    if case.plan.cluster is not None:
        return _told_by_pods(case, patterns)
    plan = case.plan
    looked = (case.models_folder, plan.job.project, case.host_folder(CONTAINER_HOME), *_copied(case))
    folders = [folder for folder in looked if folder is not None]
    found = list(dict.fromkeys(file for folder in folders for file in _candidates(folder, patterns, case.run_dir)))
    new = [(path, size) for path, size, modified in found if modified >= started - CLOCK_SLACK_S]
    saved = [(path, size) for path, size in new if size]
    if saved:
        path, size = max(saved, key=lambda file: file[1])
        more = f" and {count(len(saved) - 1, 'more file')}" if len(saved) > 1 else ""
        return Judgement("pass", f"{_shown(path, folders)}, {format_bytes(size)}{more}, written by this run")
    wanted = ", ".join(patterns) or "a new model file"
    if new:
        return Judgement("fail", f"{_shown(new[0][0], folders)} was written but is empty", wanted, "0 B")
    if found and (patterns or case.promises_a_model):
        path = max(found, key=lambda file: file[2])[0]
        return Judgement("fail", f"{_shown(path, folders)} exists, but is older than this run", wanted, "no new file")
    if case.plan.agent.node_rank is not None:
        return Judgement("not judged", "nothing was written here: rank 0 saves, and it may be on another host")
    if patterns or case.promises_a_model:
        where = f"in {_shown(case.models_folder, folders[1:])} or " if case.models_folder else ""
        return Judgement("fail", f"no matching file was written {where}in the project", wanted, "no new file")
    return Judgement(
        "not judged", "no model file was written, and the job names no models folder (--models) or [criteria] model"
    )


def _told_by_pods(case: Case, patterns: tuple[str, ...]) -> Judgement:
    """On a cluster the agents look, at the end of each attempt."""
    told = case.evidence.all(ModelsSaved)
    if not told:
        return Judgement("not judged", "no agent reported saved models")
    files = {
        str(file["path"]): int(file["bytes"])
        for event in told
        for file in event.keys.get("files") or []
        if not patterns or any(fnmatch(str(file["path"]), pattern.removeprefix("/models/")) for pattern in patterns)
    }
    where = str(case.plan.job.kubernetes.models or "the pod")
    wanted = ", ".join(patterns) or "a new model file"
    if not files and (patterns or case.plan.job.kubernetes.models is not None):
        return Judgement("fail", f"no matching file was written to {where}", wanted, "no new file")
    if not files:
        return Judgement("not judged", "no model file was written, and the job names no volume for models (--models)")
    path, size = max(files.items(), key=lambda file: file[1])
    if not size:
        return Judgement("fail", f"{clean(path)} was written to {where} but is empty", wanted, "0 B")
    more = f" and {count(len(files) - 1, 'more file')}" if len(files) > 1 else ""
    kept = "" if case.plan.job.kubernetes.models is not None else ", which was deleted with it"
    return Judgement("pass", f"{clean(path)}, {format_bytes(size)}{more}, on {where}{kept}, written by this run")


def _copied(case: Case) -> list[Path]:
    outputs = case.host_folder(CONTAINER_RUN)
    names = [Path(str(event.keys.get("folder"))).name for event in case.evidence.all(FilesOutside)]
    return [outputs / name for name in names if outputs is not None]


def started_at(case: Case) -> float | None:
    """Unix time from which a file is this run's: the agent's start, since a target can be quicker than its event."""
    if case.evidence.target_started is None:
        return None
    begin = case.evidence.first(AgentStarted) or case.evidence.target_started
    return number(begin.keys.get("t"))


def _candidates(folder: Path, patterns: tuple[str, ...], run_dir: Path) -> Iterator[tuple[Path, int, float]]:
    """(path, bytes, modification time) of the files that match."""
    names = _walk(folder, run_dir)
    if patterns:  # glob, unlike Path.glob, takes absolute patterns too
        names = (folder / name for p in patterns for name in glob.iglob(p, root_dir=folder, recursive=True))  # noqa: PTH207
    for path in names:
        try:
            status = path.lstat()
        except OSError:  # gone since
            continue
        if stat.S_ISREG(status.st_mode):  # no link: what it leads to is not this run's
            yield path, status.st_size, status.st_mtime


def _walk(folder: Path, run_dir: Path) -> Iterator[Path]:
    """Files with a model's suffix. A container may have written here: no link is followed, and there is an end."""
    for entry in files_below(folder, most_entries=MAX_FILES, skip=NO_RESULTS):
        if entry.name.lower().endswith(MODEL_SUFFIXES) and not Path(entry.path).is_relative_to(run_dir):
            yield Path(entry.path)


def _shown(path: Path, folders: list[Path]) -> str:
    """Relative to the folder it is in, with that folder's name: ``models/mnist.pth``."""
    folder = next((f for f in folders if path.is_relative_to(f)), None)
    return clean(str(Path(folder.name, path.relative_to(folder)) if folder else path))
