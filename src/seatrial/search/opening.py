"""Opening a search: a new study, one that the same command has left unfinished, or one by its name."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

from seatrial.errors import RunNotFoundError, UsageError
from seatrial.job.keys import NAME
from seatrial.job.model import Job
from seatrial.runs.store import RunStore
from seatrial.search.engines import ENGINES, PRUNERS
from seatrial.search.parallel import how_many, with_share
from seatrial.search.request import Request
from seatrial.search.search import Say, Search
from seatrial.search.settings import check_switches, ways_in
from seatrial.search.study import FILE, Definition, Study
from seatrial.system import nofollow
from seatrial.system.files import make_folder
from seatrial.system.near import nearest

#: In a project, what people look at.
PLACE_FOLDER = (".seatrial", "sweeps")


def open_search(request: Request, job: Job, environ: Mapping[str, str], say: Say) -> Search:
    """A search by what was typed. Raises UsageError where the target takes no such setting."""
    check_switches(ways_in(job, request.space.names), request.space.values())
    job = with_share(job, environ)
    definition = _definition(request, job)
    store = RunStore(job.project, environ)
    study = _joined(store, definition, say, named=request.name is not None)
    return _search(study, request.trials, request.budget_s, request.parallel, job, environ, say)


def resume_search(
    project: Path,
    name: str,
    environ: Mapping[str, str],
    say: Say,
    *,
    trials: int | None = None,
    budget_s: float | None = None,
    parallel: int | None = 1,
) -> Search:
    """The study of this name, to go on with. Raises RunNotFoundError."""
    store = RunStore(project, environ)
    study = find_study(store, name)
    definition = study.definition
    job = Job.model_validate_json(definition.job, strict=False)
    study.go_on()
    stopped = study.retry_stopped()
    if stopped:
        say(f"{stopped} trials that were stopped run again")
    return _search(study, trials or definition.trials, budget_s, parallel, job, environ, say)


def find_study(store: RunStore, name: str) -> Study:
    """Raises RunNotFoundError."""
    path = _file(store, name) if re.fullmatch(NAME, name) else None
    if path is None or not Study(path).is_made:
        studies = (folder / FILE for folder in sorted((store.record / "sweeps").glob("*")) if folder.name != name)
        known = sorted(file.parent.name for file in studies if file.is_file())
        near = nearest(name, known)
        raise RunNotFoundError(
            f"There is no study {name} in this project",
            cause=f"There {'is' if len(known) == 1 else 'are'} {', '.join(known[:12])}" if known else None,
            run=f"seatrial sweep --resume {near or known[0]}" if known else "seatrial sweep train.py --set lr=0.1,0.01",
        )
    return Study(path)


def studies_of(store: RunStore) -> list[Study]:
    """Every study of a project."""
    studies = (Study(folder / FILE) for folder in sorted((store.record / "sweeps").glob("*")))
    return [study for study in studies if study.is_made]


def looked_at(study: Study, environ: Mapping[str, str]) -> Search:
    """A study to be shown, and not to go on with."""
    definition = study.definition
    job = Job.model_validate_json(definition.job, strict=False)
    return _search(study, definition.trials, None, 1, job, environ, lambda line: None)


def place_of(project: Path, name: str) -> Path:
    """Where people find a study's page."""
    return project.joinpath(*PLACE_FOLDER, name)


def _definition(request: Request, job: Job) -> Definition:
    objective = request.objective
    made = Definition(
        name="",
        title=" ".join((job.target.value or job.image.ready or "image", *job.target.args)),
        space=tuple(request.space.typed()),
        search=request.search,
        objective=None if objective is None else str(objective),
        pattern=None if objective is None else objective.pattern,
        prune=request.prune,
        trials=request.trials,
        seed=request.seed,
        job=job.model_dump_json(),
    )
    if request.name is not None:
        if not re.fullmatch(NAME, request.name):
            raise UsageError(
                f"--study {request.name!r} is no name: letters, digits, . _ -", run="seatrial sweep … --study lr-search"
            )
        return replace(made, name=request.name)
    stem = re.sub(r"[^A-Za-z0-9]+", "-", Path(job.target.value or "image").stem).strip("-")[:40] or "study"
    digest = hashlib.sha256(json.dumps(asdict(made), sort_keys=True).encode()).hexdigest()
    return replace(made, name=f"{stem}-{digest[:6]}")


def _joined(store: RunStore, definition: Definition, say: Say, *, named: bool) -> Study:
    """The study that this command has left unfinished or another terminal works on; else a new one."""
    name = definition.name
    for place in range(1, 1000):
        wanted = definition if place == 1 else replace(definition, name=f"{name}-{place}")
        path = _file(store, wanted.name)
        make_folder(path.parent)
        with (path.parent / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not Study(path).is_made:
                return _create(store, path, wanted)
        study = Study(path)
        if named and replace(study.definition, trials=wanted.trials) != wanted:
            raise UsageError(
                f"The study {name} searches something else: {study.definition.title}, "
                f"{' '.join(study.definition.space)}",
                run=f"seatrial sweep --resume {name}   # or another --study",
            )
        if named or study.get("ended") is None:
            study.go_on()
            told = len(study.trials())
            say(f"study {wanted.name}: going on with {told} trial{'s' * (told != 1)} so far")
            return study
    raise UsageError(f"The study {name} exists a thousand times", run="seatrial sweep … --study another-name")


def _create(store: RunStore, path: Path, definition: Definition) -> Study:
    study = Study.create(path, definition)
    with (
        nofollow.folder(store.project, *PLACE_FOLDER, definition.name, make=True) as place,
        contextlib.suppress(FileExistsError),
    ):
        os.symlink(path, FILE, dir_fd=place)
    return study


def _file(store: RunStore, name: str) -> Path:
    return store.record / "sweeps" / name / FILE


def _search(
    study: Study,
    most: int | None,
    budget_s: float | None,
    parallel: int | None,
    job: Job,
    environ: Mapping[str, str],
    say: Say,
) -> Search:
    definition = study.definition
    pruner = PRUNERS.get(definition.prune)
    return Search(
        study=study,
        space=definition.parsed_space(),
        objective=definition.parsed_objective(),
        engine=ENGINES[definition.search](definition.seed),
        pruner=pruner() if pruner is not None else None,
        job=job,
        environ=environ,
        say=say,
        most=most,
        parallel=how_many(job, environ) if parallel is None else parallel,
        ends_at=None if budget_s is None else time.monotonic() + budget_s,
    )
