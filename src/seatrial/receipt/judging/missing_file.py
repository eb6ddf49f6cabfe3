"""A file that the target did not find: where it was looked for, where it lies, and the option that brings it there."""

from __future__ import annotations

import os
import posixpath
import re
import shlex
from pathlib import Path, PurePosixPath

from seatrial.findings.catalogue import by_id
from seatrial.findings.finding import Finding
from seatrial.job.plan import CONTAINER_PROJECT, Plan
from seatrial.job.reading.modules import is_file
from seatrial.receipt.judging.judging_input import Case
from seatrial.receipt.model import ExitCause

_NOT_FOUND = re.compile(r"FileNotFoundError: \[Errno 2\] No such file or directory: '([^'\x00]+)'")

#: The function of Python's subprocess that starts one.
_STARTS_A_PROGRAM = "_execute_child"

#: Longer paths there are none (Linux's PATH_MAX).
_MAX_PATH = 4096


def missing_file(case: Case, cause: ExitCause) -> Finding | None:
    """The finding for a target that ended with FileNotFoundError, or None; a program that is missing has another."""
    said = _NOT_FOUND.search(case.output.exception or "") if cause.target_exit_code else None
    if said is None or len(said[1]) > _MAX_PATH:
        return None
    named = f"'{said[1]}'"
    if any(named in line for finding in case.output.findings for line in finding.evidence):
        return None
    if case.output.raised_in == _STARTS_A_PROGRAM and "/" not in said[1]:
        return _program(said[1], case.plan)
    return _finding(said[1], case.plan)


def _program(name: str, plan: Plan) -> Finding:
    known = by_id("program-missing")
    evidence = [f"subprocess found no program {name}"]
    fix = f"sudo apt-get install {shlex.quote(name)}   # or the package that has it" if plan.on_the_host else None
    return known.finding(evidence, values={"program": name}, fix=fix)


def _finding(path: str, plan: Plan) -> Finding:
    job = plan.job
    project = os.path.normpath(job.project)
    root = project if plan.on_the_host else CONTAINER_PROJECT
    start = posixpath.join(root, job.workdir or "")
    target = posixpath.normpath(posixpath.join(start, path))
    known = by_id("file-missing")
    values = {"path": path, "folder": posixpath.dirname(target)}
    evidence = [f"FileNotFoundError: [Errno 2] No such file or directory: '{path}'"]
    folder = None if path.startswith("/") else _started_from(path, plan)
    if folder is not None:
        workdir = folder if plan.on_the_host else f"{CONTAINER_PROJECT}/{folder}"
        return known.finding(
            evidence,
            values=values,
            cause=f"The target starts in {start.rstrip('/')}; the file is there when it starts in {folder}/",
            fix=f"seatrial run … --workdir {shlex.quote(workdir)}",
        )
    if PurePosixPath(target).is_relative_to(root) or plan.on_the_host:
        lacks = f"{posixpath.dirname(path) or '.'}/ of the project"
        if path.startswith("/"):
            folder = posixpath.dirname(target)
            lacks = f"{folder}/" if plan.on_the_host else f"{posixpath.relpath(folder, root)}/ of the project"
        return known.finding(
            evidence,
            values=values,
            cause=f"{target} is not there: it is data to download or make first, or a path to change",
            fix=f"put it into {lacks}, or pass the script its path",
        )
    lies = _lies_at(path, target, Path(project))
    cause = f"In the container that is {target}, outside of the project's folder {CONTAINER_PROJECT}"
    if lies is None:
        return known.finding(evidence, values=values, cause=cause)
    return known.finding(evidence, values=values, cause=cause, fix=f"seatrial run … --mount {shlex.quote(lies)}")


def _started_from(path: str, plan: Plan) -> str | None:
    """The script's own folder, if the path is right from there; None where the target starts there already.

    Not for a module, which is found from the folder that it is started in.
    """
    target = plan.job.target
    if plan.job.workdir or target.kind != "script":
        return None
    folder = posixpath.dirname(target.value)
    there = posixpath.normpath(posixpath.join(folder, path))
    if not folder or there.startswith("../"):
        return None
    return folder if is_file(plan.job.project / there) else None


def _lies_at(path: str, target: str, project: Path) -> str | None:
    """``SOURCE:TARGET`` of the mount that would bring it: by its last folders in the project, or as seen from there."""
    parts = PurePosixPath(target).parts[1:]
    for at in range(len(parts) - 1):
        if is_file(project.joinpath(*parts[at:])):
            return f"./{parts[at]}:/{posixpath.join(*parts[: at + 1])}"
    beside = Path(os.path.normpath(project / path))
    if not is_file(beside):
        return None
    return f"{os.path.relpath(beside.parent, project)}:{posixpath.dirname(target)}"
