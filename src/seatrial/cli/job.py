"""The Job of a command line: its words, its flags and the project's seatrial.toml; and the user's consent to it."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from seatrial.backends import table
from seatrial.cli.options import WITH_TRUST, check_folder, target_arguments, this_host
from seatrial.errors import DiskError, TargetError, TrustError, UsageError
from seatrial.images.recipes import RECIPES
from seatrial.job.engine_grammar import image_refused
from seatrial.job.loading import load_job
from seatrial.job.model import Criteria, Job, Target, file_keys
from seatrial.job.own_workload import read_own
from seatrial.job.reading.modules import is_file
from seatrial.job.target import resolve_target
from seatrial.runs.resume import run_to_resume
from seatrial.runs.store import RunStore, store_of
from seatrial.system.project_files import project_root
from seatrial.system.records import TrustStore
from seatrial.system.text import as_typed, one_line

if TYPE_CHECKING:
    from seatrial.cli.screen import Screen

_UNITS = ("s", "m", "min", "h", "d", "g", "kb", "mb", "gb", "gib")


def read_allowed_job(
    words: Collection[str],
    flags: dict[str, Any],
    screen: Screen,
    *,
    arguments: list[str] | None = None,
    resume: str | None = None,
    building: bool = False,
) -> Job:
    """Read the job and have its permissions granted. Arguments of read_job and require_consent; raises TrustError."""
    trust = bool(flags.pop("trust", False))
    job = read_job(words, flags, arguments=arguments, resume=resume)
    require_consent(job, screen, trust=trust, building=building)
    return job


def read_job(
    words: Collection[str], flags: dict[str, Any], *, arguments: list[str] | None = None, resume: str | None = None
) -> Job:
    """Return the Job of a command line and the project's seatrial.toml.

    ``words``: those before ``--``. ``arguments``: the target's; None: those after ``--``.
    ``resume``: a run to continue; without a target, its job is taken, changed by the flags.
    """
    flags.pop("trust", None)
    for name in (each for each in flags.get("env") or () if each.isidentifier() and each not in os.environ):
        click.echo(f"seatrial warning: --env {name} is not set on this machine, so the run lacks it", err=True)
    leave_out = ("criteria",) if flags.pop("no_criteria", None) else ()
    named = flags.pop("project", None)
    of_runs = [*words] == ["predict"]  # the project of the nearest runs, also one that only ``-C`` named
    project = check_folder(named or (store_of(None).project if of_runs else project_root(Path())))
    theirs = target_arguments() if arguments is None else arguments
    if len(words) > 1:
        raise _too_many(list(words), theirs, named or Path(), flags)
    if (file := flags.pop("file", None)) is not None:
        return _own_job(file, project, flags, [*words, *theirs, *([f"--resume {resume}"] if resume else [])])
    if words:
        flags["target"] = next(iter(words))
    flags["args"] = theirs
    if resume is None:
        return _load(project, flags, leave_out)
    anew = bool({"target", "module", "image"} & flags.keys())
    earlier = run_to_resume(RunStore(project.absolute()) if anew else store_of(named), resume)
    if anew:
        return _load(project, {**flags, "resume": earlier.id}, leave_out)
    if (serving := earlier.plan().job.serve) is not None:
        problem = f"Run {earlier.id} was a server: it has nothing to resume"
        raise UsageError(problem, run=f"seatrial serve {serving.typed}")
    update: dict[str, Any] = {"resume": earlier.id, **({"criteria": Criteria()} if leave_out else {})}
    return _again(earlier.plan().job, flags, update)


def _too_many(words: list[str], arguments: list[str], project: Path, flags: Mapping[str, Any]) -> TargetError:
    """Make the error for words that a shell has split, or that are the target's."""
    module, unit = flags.get("module"), next((each for each in words if each.lower() in _UNITS), None)
    for key in (key for key, value in flags.items() if unit and str(value).isdecimal()):
        joined = f"--{key.replace('_', '-')} {flags[key]}{unit}"
        run = f"seatrial run {joined} {shlex.join(each for each in words if each != unit)}"
        return TargetError(f"Write the unit without a space: {joined}", run=run)
    for end in range(len(words), 1, -1):
        if module is None and is_file(project / (name := " ".join(words[:end]))):
            rest = [*words[end:], *arguments]
            run = f"seatrial run {shlex.join([name, *(['--', *rest] if rest else [])])}"
            return TargetError(f"The file {name} has a space in its name: put it in quotes", run=run)
    if module is None and (refused := image_refused(words[0], [*words[1:], *arguments])):
        return refused
    if module is None and not (is_file(project / words[0]) or words[0] in RECIPES or words[0].endswith(".py")):
        resolve_target(words, None, None, project.absolute(), RECIPES)
    target, theirs = (["-m", module], words) if module is not None else (words[:1], words[1:])
    run = f"seatrial run {shlex.join([*target, '--', *theirs, *arguments])}"
    return TargetError(f'"{theirs[0]}" is an unexpected argument: the target\'s own arguments go after --', run=run)


def _own_job(file: Path, project: Path, flags: Mapping[str, Any], more: Collection[str]) -> Job:
    """Return the job of a workload's own file; of seatrial.toml, what does not concern its pods. Raises ConfigError."""
    own, typed = read_own(file, project, flags)
    if more:
        line = f"{' '.join(more)}: --file names all that is run"
        raise UsageError(line, run=f"seatrial run -f {as_typed(file)}")
    of_pods = set(file_keys()) - {"name", "criteria", "watch", "notify", "metrics", "kubernetes", "timeout", "strict"}
    job = _load(project, typed, of_pods)
    return job.changed(own=own, target=Target(kind="image", value="", args=own.argv, typed=f"-f {as_typed(file)}"))


def _load(project: Path, flags: Mapping[str, Any], leave_out: Collection[str] = ()) -> Job:
    return load_job(project, flags, recipes=RECIPES, without_container=table.runs_here, leave_out=leave_out)


def _again(earlier: Job, flags: dict[str, Any], update: dict[str, Any]) -> Job:
    """Return an earlier run's job with the flags' changes and ``update``."""
    target = earlier.target
    same: dict[str, Any] = {"module" if target.kind == "module" else "target": target.value}
    if target.kind == "image":
        same = {"image": {"ready": earlier.image.ready}}
    same |= {"args": list(target.args), "on": earlier.backend}
    given = {key: value for key, value in flags.items() if value not in (None, [])}
    plain, wanted = _load(earlier.project, same), _load(earlier.project, {**same, **given})
    changed = {key: value for key in Job.model_fields if (value := getattr(wanted, key)) != getattr(plain, key)}
    asks = tuple(dict.fromkeys([*(ask for ask in earlier.asks if not ask.hides), *wanted.asks]))
    return earlier.changed(**{"name": None, **changed, "notify": wanted.notify, "asks": asks, **update})


def require_consent(job: Job, screen: Screen, *, trust: bool, building: bool = False) -> None:
    """Require the user's consent to the project's requests, given now or before. An ordinary project has none.

    ``building``: requests that no build acts on need no answer. Raises TrustError: refused, or nobody answers.
    """
    if not job.asks or (building and not any(ask.builds for ask in job.asks)):
        return
    store = TrustStore(this_host())
    lines, wishes = [ask.remembered for ask in job.asks], [one_line(ask.words) for ask in job.asks]
    if store.allows(job.project, lines):
        return
    if store.problem:
        screen.note(f"warning: {store.problem}")
    if not trust and not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise TrustError(
            "This project needs permissions that were not granted yet, and no terminal is attached to confirm them",
            cause="\n    ".join(["it requests:", *wishes]),
            run=WITH_TRUST,
        )
    if not trust:
        screen.asks(wishes)
        if not click.confirm("Allow this? Any changed line needs a new confirmation", default=False, err=True):
            raise TrustError("Not started: the requested permissions were denied", run="seatrial plan …   # lists it")
    try:
        store.allow(job.project, lines)
    except DiskError as error:  # allowed all the same; the next run requests it again
        screen.note(f"warning: your answer was not saved: {error.message}")
