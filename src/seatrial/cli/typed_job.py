"""The Job of a command line: its words, its flags and the project's seatrial.toml."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seatrial.backends import table
from seatrial.cli.options import this_host
from seatrial.cli.typed import check_folder
from seatrial.errors import TargetError, UsageError
from seatrial.images.recipes import RECIPES
from seatrial.job.loading import load_job
from seatrial.job.model import Criteria, Job
from seatrial.job.reading.modules import is_file
from seatrial.runs.resume import run_to_resume
from seatrial.runs.store import RunStore, store_of

if TYPE_CHECKING:
    from seatrial.cli.screen import Screen


def read_job(words: list[str], target_arguments: list[str], flags: dict[str, Any], *, resume: str | None = None) -> Job:
    """The Job of a command line and the project's seatrial.toml.

    Args:
        words: what stands before ``--``: the target, or nothing.
        target_arguments: what stands behind it.
        resume: a run to go on from; without a target, its job is taken, and the flags given change it.
    """
    flags.pop("trust", None)
    leave_out = ("criteria",) if flags.pop("no_criteria", None) else ()
    named = flags.pop("project", None)
    project = check_folder(named or Path.cwd())
    if len(words) > 1:
        raise _too_many(words, target_arguments, project, flags.get("module"))
    if words:
        flags["target"] = words[0]
    flags["args"] = target_arguments
    if resume is None:
        return _load(project, flags, leave_out)
    anew = bool({"target", "module", "image"} & flags.keys())
    earlier = run_to_resume(RunStore(project.absolute()) if anew else store_of(named), resume)
    if anew:
        return _load(project, {**flags, "resume": earlier.id}, leave_out)
    if (serving := earlier.trusted_plan().job.serve) is not None:
        raise UsageError(
            f"Run {earlier.id} was a server: it has nothing to resume", run=f"seatrial serve {serving.typed}"
        )
    update: dict[str, Any] = {"resume": earlier.id, **({"criteria": Criteria()} if leave_out else {})}
    return _again(earlier.trusted_plan().job, flags).changed(**update)


def _too_many(words: list[str], target_arguments: list[str], project: Path, module: str | None) -> TargetError:
    """For words that a shell has split, or that are the target's."""
    for end in range(len(words), 1, -1):
        if module is None and is_file(project / (name := " ".join(words[:end]))):
            rest = [*words[end:], *target_arguments]
            return TargetError(
                f"The file {name} has a space in its name: put it in quotes",
                run=f"seatrial run {shlex.join([name, *(['--', *rest] if rest else [])])}",
            )
    target, theirs = (["-m", module], words) if module is not None else (words[:1], words[1:])
    return TargetError(
        f'"{theirs[0]}" is an unexpected argument: the target\'s own arguments go after --',
        run=f"seatrial run {shlex.join([*target, '--', *theirs, *target_arguments])}",
    )


def _load(project: Path, flags: Mapping[str, Any], leave_out: Collection[str] = ()) -> Job:
    def runs_here(backend: str) -> bool:
        return not table.isolates(backend)

    return load_job(project, flags, recipes=RECIPES, without_container=runs_here, leave_out=leave_out)


def _again(earlier: Job, flags: dict[str, Any]) -> Job:
    """An earlier run's job with what the flags change."""
    target: dict[str, Any] = (
        {"module": earlier.target.value} if earlier.target.kind == "module" else {"target": earlier.target.value}
    )
    if earlier.target.kind == "image":
        target = {"image": {"ready": earlier.image.ready}}
    args = {"args": list(earlier.target.args)}
    plain = _load(earlier.project, {**target, **args})
    given = {key: value for key, value in flags.items() if value not in (None, [])}
    asked = _load(earlier.project, {**target, **args, **given})
    changed = {key: value for key in Job.model_fields if (value := getattr(asked, key)) != getattr(plain, key)}
    told_in_full = (ask for ask in earlier.asks if not ask.hides)
    asks = tuple(dict.fromkeys([*told_in_full, *asked.asks]))
    return earlier.changed(**{"name": None, **changed, "notify": asked.notify, "asks": asks})


def read_allowed_job(
    words: list[str],
    target_arguments: list[str],
    flags: dict[str, Any],
    screen: Screen,
    *,
    resume: str | None = None,
    building: bool = False,
) -> Job:
    """As read_job, of a project that may have what its file asks for: the user is asked where it is the first time.

    Raises TrustError (consent.require_consent).
    """
    from seatrial.cli.screen import require_consent  # a plan asks nothing

    trust = bool(flags.pop("trust", False))
    job = read_job(words, target_arguments, flags, resume=resume)
    require_consent(job, this_host(), screen, trust=trust, building=building)
    return job
