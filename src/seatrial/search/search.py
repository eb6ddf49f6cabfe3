"""Search: a study at work in this process, opened by a command line, resumed, or shown."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import math
import os
import re
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path

from seatrial.errors import RunNotFoundError, SeatrialError, UntrustedPathError, UsageError, fallback
from seatrial.job.gpu_request import GpuRequest
from seatrial.job.model import Job
from seatrial.planning.host import read_host
from seatrial.runs.store import RunStore
from seatrial.search.metrics import problem_of, series_of, unreported
from seatrial.search.request import Definition, Objective, require_optuna
from seatrial.search.space import Space
from seatrial.search.study import FILE, Study
from seatrial.search.trial import Ending, Trial, check_switches, varied, ways_in
from seatrial.system import nofollow
from seatrial.system.files import make_folder
from seatrial.system.host import Host
from seatrial.system.records import MAX_OUTPUT_BYTES
from seatrial.system.text import nearest

Note = Callable[[str], None]
#: Maximum number of threads that follow runs; more gain nothing.
_MOST_AT_ONCE = 64
#: Folder in a project with the pages of studies.
PLACE_FOLDER = (".seatrial", "sweeps")


@dataclass
class Search:
    """A study at work in this process.

    Attributes:
        job: of a trial, before its settings. address: HOST:PORT of the Ray cluster, as typed.
        most: maximum number of the study's trials; None for as many as there are.
        parallel: trials at once, of this process; 0: as many as its runner has capacity for.
        ends_at: ``time.monotonic()`` at which the budget is used up; None without a budget.
        building: context manager whose value receives build and pull output; None sends it to ``note``.
        page_s, page_trials: when the page was written last, and with how many ended trials.
        over: once set, no trial begins and running ones are stopped. killed: once set, they are killed.
        problem: error that ended the search early; raised at its end.
    """

    study: Study
    space: Space
    objective: Objective | None
    job: Job
    host: Host
    note: Note
    most: int | None = None
    parallel: int = 1
    address: str | None = None
    ends_at: float | None = None
    over: threading.Event = field(default_factory=threading.Event)
    interrupted: bool = False
    by_ctrl_c: bool = False  # then trials get SIGINT first, too
    killed: threading.Event = field(default_factory=threading.Event)
    building: Callable[[], AbstractContextManager[Note]] | None = None
    tick: Callable[[], None] = lambda: None
    page_s: float = field(default_factory=time.monotonic)
    page_trials: int = 0
    problem: SeatrialError | None = None

    @property
    def expected(self) -> int | None:
        """Return the number of trials; None if the budget ends the search."""
        if not self.space.is_finite:
            return self.most
        return self.space.size if self.most is None else min(self.most, self.space.size)

    def summary(self) -> str:
        """Return the sentence that is printed at the beginning."""
        definition, most = self.study.definition, self.expected
        of = f", at most {most} trial{'s' * (most != 1)}" if most is not None else ""
        prune = f", {definition.prune} prunes" if definition.prune != "none" else ""
        objective = f" for {self.objective}" if self.objective is not None else ""
        return f"{definition.search} search over {', '.join(definition.space)}{objective}{of}{prune}"

    def finish(self) -> list[Trial]:
        """Leave the study, which has ended if nothing is left to do; return all trials."""
        trials = self.study.trials()
        cut_short = self.time_is_over() and (self.expected is None or len(trials) < self.expected)
        if self.problem is not None:
            self.study.put("ended", self.problem.message)
        elif not self.interrupted and not cut_short and all(trial.ending is not None for trial in trials):
            self.study.put("ended", "complete")
        self.study.leave()
        return trials

    def leave(self, problem: SeatrialError) -> None:
        """Leave the study because of a problem of this process; the same command goes on with it."""
        self.study.put("problem", problem.message)
        self.study.leave()

    def ask(self) -> Trial | None:
        """Return the next trial; None if none are left or the time is over."""
        return None if self.time_is_over() else self.study.ask(most=self.most)

    def time_is_over(self) -> bool:
        """Return True if every trial is to end."""
        return self.over.is_set() or (self.ends_at is not None and time.monotonic() >= self.ends_at)

    def why_stop(self) -> tuple[str, str | None] | None:
        """Return (origin, why) with which running trials are stopped now; None if they go on."""
        if not self.time_is_over():
            return None
        if self.interrupted:
            return "user", None
        return "search", "the search has ended" if self.over.is_set() else "its time was over"

    def job_of(self, trial: Trial) -> Job:
        """Return the job of a trial: its settings as flags, arguments or variables of the target."""
        return varied(self.job, trial.settings, self._ways)

    @cached_property
    def _ways(self) -> dict[str, str]:
        return ways_in(self.job, self.space.names)

    def report(self, trial: Trial, step: int, value: float) -> str | None:
        """Record a value; return why the trial is to be stopped, or None."""
        falls_behind = self.study.report(trial.number, step, value)
        if not falls_behind or self.objective is None:
            return None
        others = sum(len(each.reports) >= step for each in self.study.trials())
        after = f"after {step} report{'s' * (step != 1)}"
        rank = "not in the best quarter" if self.study.definition.prune == "asha" else "below the median"
        return f"{self.objective.metric} {value:.4g} {after} is {rank} of {others} trials"

    def end_trial(self, trial: Trial, ending: Ending) -> None:
        """Record and print the end of a trial; end the search if it makes no sense to go on."""
        objective = self.objective
        silent = objective is not None and ending.state == "done" and ending.value is None
        if objective is not None and silent:
            ending = replace(ending, state="failed", outcome=f"reported no {objective.metric}")
        self.study.tell(trial.number, ending)
        trials = self.study.trials()
        now = self.study.trial(trial.number)
        value = f"{now.reported(objective.metric)}, " if objective is not None and now.value is not None else ""
        self.note(f"trial {now.number} ({now.label}): {value}{ending.outcome}")
        if objective is None:
            return
        if ending.value is not None and objective.pattern is None and self.study.get("series") is None:
            self.study.put("series", series_of(objective, ending))
        if silent and all(each.value is None for each in trials):
            self.end(unreported(objective, now, self._last_line(now)))
        elif (problem := problem_of(trials)) is not None:
            self.end(problem)

    @fallback("", on=(OSError, UntrustedPathError))
    def _last_line(self, trial: Trial) -> str:
        run = RunStore(self.job.project, self.host).run(trial.run_id or "")
        data = run.records.load("stdout.log", max_bytes=MAX_OUTPUT_BYTES)
        lines = data.decode("utf-8", "replace").strip().splitlines()
        return lines[-1][:200] if lines else ""

    def not_started(self, trial: Trial, error: SeatrialError) -> None:
        """End the search if no trial could start yet; later it is the failure of this one."""
        if any(each.state in ("done", "pruned") for each in self.study.trials()):
            self.end_trial(trial, Ending("failed", outcome=error.message, exit_code=error.exit_code))
            return
        self.study.again(trial.number)
        self.end(error)

    def end(self, problem: SeatrialError) -> None:
        """End the search early; the first reason counts."""
        self.problem = self.problem or problem
        self.over.set()


def open_search(
    definition: Definition, job: Job, host: Host, note: Note, *, budget_s: float | None = None, parallel: int | None = 1
) -> Search:
    """Return the search of a command line. Raises UsageError if the target takes no such setting."""
    require_optuna()
    space = definition.parsed_space()
    check_switches(ways_in(job, space.names), space.values())
    job = with_share(job, host)
    study = _joined(RunStore(job.project, host), _named(definition, job), note, named=bool(definition.name))
    return _search(study, definition.trials, budget_s, parallel, job, host, note)


def resume_search(
    project: Path,
    name: str,
    host: Host,
    note: Note,
    *,
    trials: int | None = None,
    budget_s: float | None = None,
    parallel: int | None = 1,
) -> Search:
    """Return the search that continues the study of this name. Raises RunNotFoundError."""
    study = find_study(RunStore(project, host), name)
    study.go_on()
    if stopped := study.retry_stopped():
        note(f"trials that were stopped and run again: {stopped}")
    job = Job.model_validate_json(study.definition.job, strict=False)
    return _search(study, trials or study.definition.trials, budget_s, parallel, job, host, note)


def find_study(store: RunStore, name: str) -> Study:
    """Return the project's study of this name, or the ``last`` one used. Raises RunNotFoundError."""
    files = sorted((store.record / "sweeps").glob(f"*/{FILE}"), key=lambda file: file.stat().st_mtime, reverse=True)
    known = [file.parent.name for file in files if file.is_file() and file.stat().st_size]
    name = known[0] if known and name == "last" else name
    if name not in known or not Study(_file(store, name)).is_made:
        advised = f"--resume {nearest(name, known) or known[0]}" if known else "train.py --set lr=0.1,0.01"
        cause = f"There {'is' if len(known) == 1 else 'are'} {', '.join(known[:12])}" if known else None
        raise RunNotFoundError(f"Study {name} not found in this project", cause=cause, run=f"seatrial sweep {advised}")
    return Study(_file(store, name))


def looked_at(study: Study, host: Host) -> Search:
    """Return a study to show, not to continue."""
    job = Job.model_validate_json(study.definition.job, strict=False)
    return _search(study, study.definition.trials, None, 1, job, host, lambda line: None)


def _named(definition: Definition, job: Job) -> Definition:
    """Return what is searched with its job and a name, which is made from both if none was typed."""
    title = " ".join((job.target.value or job.image.ready or "image", *job.target.args))
    made = replace(definition, title=title, job=job.model_dump_json())
    if made.name:
        return made
    stem = re.sub(r"[^A-Za-z0-9]+", "-", Path(job.target.value or "image").stem).strip("-")[:40] or "study"
    digest = hashlib.sha256(json.dumps(asdict(made), sort_keys=True).encode()).hexdigest()
    return replace(made, name=f"{stem}-{digest[:6]}")


def _joined(store: RunStore, definition: Definition, note: Note, *, named: bool) -> Study:
    """Return the study that this command has left unfinished or another terminal works on; else a new one."""
    name = definition.name
    for place in range(1, 1000):
        wanted = definition if place == 1 else replace(definition, name=f"{name}-{place}")
        path = _file(store, wanted.name)
        make_folder(path.parent)
        with (path.parent / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not Study(path).is_made:
                study = Study.create(path, wanted)
                parts = (*PLACE_FOLDER, wanted.name)
                with nofollow.folder(store.project, *parts, make=True) as shown, contextlib.suppress(FileExistsError):
                    os.symlink(path, FILE, dir_fd=shown)
                return study
        study = Study(path)
        if named and replace(study.definition, trials=wanted.trials) != wanted:
            another = f"{study.definition.title}, {' '.join(study.definition.space)}"
            run = f"seatrial sweep --resume {name}   # or another --study"
            raise UsageError(f"The study {name} searches something else: {another}", run=run)
        if named or study.get("ended") is None:
            study.go_on()
            count = len(study.trials())
            note(f"study {wanted.name}: going on with {count} trial{'s' * (count != 1)} so far")
            return study
    raise UsageError(f"The study {name} exists a thousand times", run="seatrial sweep … --study another-name")


def _file(store: RunStore, name: str) -> Path:
    return store.record / "sweeps" / name / FILE


def _search(
    study: Study, most: int | None, budget_s: float | None, parallel: int | None, job: Job, host: Host, note: Note
) -> Search:
    space, objective = study.definition.parsed_space(), study.definition.parsed_objective()
    parallel = how_many(job, host) if parallel is None else parallel
    ends_at = None if budget_s is None else time.monotonic() + budget_s
    return Search(study, space, objective, job, host, note, most=most, parallel=parallel, ends_at=ends_at)


def with_share(job: Job, host: Host) -> Job:
    """Return a job that limits its GPU memory and names no GPUs with a request for that part of one GPU."""
    gpus = read_host(host).gpus if job.gpu_memory_bytes and job.gpus.kind == "auto" else ()
    if not gpus or job.gpu_memory_bytes is None:
        return job
    share = math.ceil(100 * job.gpu_memory_bytes / min(gpu.memory_bytes for gpu in gpus)) / 100
    return job if share >= 1 else job.changed(gpus=GpuRequest("count", count=1, share=share))


def how_many(job: Job, host: Host) -> int:
    """Return how many trials run at once: by requested GPUs; on the CPU by --cpus, or one, which takes all cores."""
    gpus, wanted = read_host(host).gpus, job.gpus
    if wanted.kind == "none" or not gpus:
        return max(1, min(_MOST_AT_ONCE, int(len(os.sched_getaffinity(0)) // job.cpus))) if job.cpus else 1
    parents = {gpu.index for gpu in gpus if gpu.mig}
    units = len([gpu for gpu in gpus if gpu.mig or gpu.index not in parents])
    if wanted.kind == "devices":
        return 1
    if wanted.share:
        return max(1, min(_MOST_AT_ONCE, units * int(1 / wanted.share + 1e-6)))
    each = {"all": units, "count": wanted.count or 1}.get(wanted.kind, 1)
    return max(1, min(_MOST_AT_ONCE, units // each))
