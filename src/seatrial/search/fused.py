"""fused: several trials of a recipe as one run, whose model is theirs stacked (docs/decisions/0044).

The recipe writes trials.json after every epoch, which is read here as all is that a container can write: not through
links, to a limit, and not believed to be what it should.
"""

from __future__ import annotations

import json
import math
import shlex
import time
from collections.abc import Sequence
from typing import Any

from seatrial.errors import GpusHeldError, SeatrialError, UntrustedPathError, UsageError
from seatrial.job.model import Job
from seatrial.receipt.evidence.steps import PHASES
from seatrial.receipt.model import Receipt
from seatrial.runs.adopt import handle_of
from seatrial.runs.finalise import finalise
from seatrial.runs.following.watch import follow
from seatrial.runs.run import Run
from seatrial.runs.store import RunStore
from seatrial.search.endings import ending_of, problem_of
from seatrial.search.local import prepare_run, start_run, stop_run
from seatrial.search.objective import Objective
from seatrial.search.search import Search
from seatrial.search.space import Space
from seatrial.search.standing import best_of
from seatrial.search.trial import Ending, Trial
from seatrial.system import nofollow

RECIPES = ("mnist", "digits", "mnist-deep")
#: Name of a setting → the one that the recipes' --fused-settings has.
SETTINGS = {
    "lr": "learning_rate",
    "learning_rate": "learning_rate",
    "weight_decay": "weight_decay",
    "wd": "weight_decay",
}
SETTINGS |= {"seed": "seed"}
#: Series of trials.json → the name under which a lone run reports it, and what the recipes call it.
SERIES = {"losses": ("train_loss", "loss"), "test_losses": ("test_loss", "test_loss")}
SERIES |= {"accuracies": ("test_accuracy", "accuracy")}
#: Trials of one run, where --parallel says nothing: a grid is known before; TPE learns from one run for the next.
TOGETHER, TOGETHER_TPE = 64, 16
FILE = "trials.json"
_MOST_BYTES = 16 << 20
#: How often trials.json is looked at while the run goes on.
_LOOK_S = 1.0


def run_trials(search: Search) -> None:
    """Ask for as many trials as run together, run them as one, tell each; until there are no more."""
    check(search.job, search.space, search.objective)
    leave_pruner_out(search)
    lost: dict[str | None, list[Trial]] = {}
    for trial in search.study.take_lost():
        lost.setdefault(trial.run_id, []).append(trial)
    for run_id, trials in lost.items():
        run = RunStore(search.job.project, search.environ).run(run_id) if run_id else None
        if run is not None and run.folder.is_dir() and handle_of(run, search.environ) is not None:
            search.say(f"{_shown(trials)}: the searcher has gone; following run {run.id}")
            _see_through(search, trials, run)
        else:
            for trial in trials:
                search.study.again(trial.number)
    while trials := _asked(search):
        run = _start(search, trials)
        if run is None:
            return
        _see_through(search, trials, run)
        search.look()


def check(job: Job, space: Space, objective: Objective | None) -> None:
    """Raise UsageError for what does not train as one model, with the command that does it one by one."""
    settings = " ".join(f"--set {shlex.quote(one)}" for one in space.typed())
    plain = f"seatrial sweep {job.target.value or '…'} {settings}   # without --fused"
    if job.target.kind != "recipe" or job.target.value not in RECIPES:
        raise UsageError(
            f"Only the recipes {', '.join(RECIPES)} train several trials as one model, not {job.target.value}",
            run=plain,
        )
    if other := [name for name in space.names if _setting(name) is None]:
        raise UsageError(
            f"Trials that train as one model differ in learning rate, weight decay and seed, not in {other[0]}",
            run=plain,
        )
    if objective is not None and (objective.pattern or objective.metric not in known()):
        raise UsageError(
            f"Fused trials report {', '.join(dict.fromkeys(short for _, short in SERIES.values()))}, "
            f"not {objective.pattern or objective.metric}",
            run="seatrial sweep … --fused --metric accuracy:max",
        )


def leave_pruner_out(search: Search) -> None:
    """Trials of one model have one end."""
    if search.pruner is not None:
        search.say("fused trials train and end together: none is pruned")
        search.pruner = None


def known() -> dict[str, str]:
    """Names that an objective may have → the series of trials.json."""
    found = {}
    for series, names in SERIES.items():
        found.update(dict.fromkeys(names, series))
    return found


def _setting(name: str) -> str | None:
    return SETTINGS.get(name.lower().replace("-", "_"))


def _asked(search: Search) -> list[Trial]:
    together = search.parallel if search.parallel > 1 else TOGETHER
    if search.parallel == 1 and search.study.definition.search == "tpe":
        together = TOGETHER_TPE
    trials: list[Trial] = []
    while len(trials) < together and (trial := search.ask()) is not None:
        trials.append(trial)
    return trials


def _shown(trials: Sequence[Trial]) -> str:
    numbers = [trial.number for trial in trials]
    return f"trial {numbers[0]}" if len(numbers) == 1 else f"trials {min(numbers)} to {max(numbers)}"


def job_of(search: Search, trials: Sequence[Trial]) -> Job:
    """The job that trains these trials. Raises UsageError for a value that is no number."""
    told = []
    for trial in trials:
        each: dict[str, float] = {}
        for name, text in trial.settings.items():
            try:
                each[str(_setting(name))] = json.loads(text) if _setting(name) == "seed" else float(text)
            except ValueError:
                raise UsageError(
                    f"{name}={text} is no number", run=f"seatrial sweep … --fused --set {name}=1,2"
                ) from None
        told.append(each)
    target = search.job.target
    args = [*target.args, "--fused-settings", json.dumps(told)]
    if search.objective is not None:
        args += [
            "--fused-metric",
            {series: short for series, (_, short) in SERIES.items()}[known()[search.objective.metric]],
        ]
        best = best_of(search.study.trials(), search.objective)
        if best is not None and best.value is not None:  # an earlier run's model is only replaced by a better one
            args += ["--fused-unless", repr(best.value)]
    own = f" -- {shlex.join(target.args)}" if target.args else ""
    what = f"{len(trials)} trials as one model: {_shown(trials)} of study {search.study.definition.name}"
    typed = f"sweep {target.value} --fused{own} # {what}"
    return search.job.model_copy(update={"target": target.model_copy(update={"args": tuple(args), "typed": typed})})


def _start(search: Search, trials: Sequence[Trial]) -> Run | None:
    """Their run, started as soon as there is a GPU for it; None where it could not be, which ends the search."""
    told, problem = False, None
    while not search.time_is_over() and problem is None:
        try:
            prepared = prepare_run(search, job_of(search, trials))
            for trial in trials:
                search.study.begin(trial.number, prepared.run.id)
            if not start_run(search, prepared):
                break
            search.say(f"{_shown(trials)}: one run, {prepared.run.id}")
            return prepared.run
        except GpusHeldError as error:
            if not told:
                told = True
                search.say(f"{_shown(trials)} wait for a GPU: {error.message}")
            search.look()
            search.over.wait(_LOOK_S)
        except KeyboardInterrupt:
            break
        except SeatrialError as error:
            problem = error
    for trial in trials:
        search.study.again(trial.number)
    if problem is not None:
        search.end(problem)
    return None


def _see_through(search: Search, trials: Sequence[Trial], run: Run) -> None:
    """Follow the run, write reports down, tell each trial's end."""
    told, looked, stopping = [0] * len(trials), 0.0, False

    def look() -> None:
        nonlocal looked, stopping
        search.look()
        if search.time_is_over() and not stopping:
            stopping = True
            origin = "user" if search.interrupted else "search"
            stop_run(search, run, origin, None if search.interrupted else "its time was over")
        if time.monotonic() - looked < _LOOK_S:
            return
        looked = time.monotonic()
        _report(search, trials, records(run), told)

    follow(run, lambda stream, data: None, search.environ, between_looks=look)
    receipt = finalise(run, search.environ)
    if receipt is None:  # it still lives, or the engine does not know: another searcher asks again
        return
    found = records(run)
    _report(search, trials, found, told)
    for place, trial in enumerate(trials):
        search.study.tell(trial.number, ending(search, receipt, found, place, len(trials)))
    now = search.study.trials()
    best = best_of(now, search.objective)
    if best is not None and search.objective is not None:
        search.say(f"{_shown(trials)}: {receipt.outcome.brief}; best so far {search.objective.metric} {best.value:.4g}")
    if (problem := problem_of(now)) is not None:
        search.end(problem)


def records(run: Run) -> list[dict[str, Any]]:
    """The trials of trials.json, in order; [] where there is none or it says something else."""
    try:
        told = json.loads(nofollow.read_regular(run.outputs / FILE, most_bytes=_MOST_BYTES))
        found = told["trials"]
    except (OSError, UntrustedPathError, SeatrialError, ValueError, KeyError, TypeError, RecursionError):
        return []
    whole = isinstance(found, list) and all(
        isinstance(each, dict) and each.get("trial") == n for n, each in enumerate(found)
    )
    return found if whole else []


def _numbers(record: dict[str, Any], series: str) -> list[float]:
    """The finite numbers of a series; what is none ends it."""
    found: list[float] = []
    told = record.get(series)
    for value in told if isinstance(told, list) else ():
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            break
        found.append(float(value))
    return found


def _report(search: Search, trials: Sequence[Trial], found: list[dict[str, Any]], told: list[int]) -> None:
    if search.objective is None:
        return
    series = known()[search.objective.metric]
    for place, (trial, record) in enumerate(zip(trials, found, strict=False)):
        values = _numbers(record, series)
        for step in range(told[place], len(values)):
            search.study.report(trial.number, step + 1, values[step])
        told[place] = max(told[place], len(values))


def ending(search: Search, receipt: Receipt, found: list[dict[str, Any]], place: int, together: int) -> Ending:
    """One trial's end: its numbers, and its share of what the run took."""
    of_run = ending_of(receipt, None)
    shared = ("seconds", "energy_j", "cpu_s", "images_per_s")
    measured = {name: value / together if name in shared else value for name, value in of_run.measured.items()}
    record = found[place] if place < len(found) else {}
    metrics = {name: values[-1] for series, (name, _) in SERIES.items() if (values := _numbers(record, series))}
    value = None
    if search.objective is not None:
        names = [phase + search.objective.metric for phase in PHASES]
        value = next((metrics[name] for name in names if name in metrics), None)
    state, outcome = (
        of_run.state,
        f"{of_run.outcome}, one of {together} fused",
    )
    if state == "done" and record.get("diverged"):
        state, value, outcome = "failed", None, f"diverged at step {record['diverged']!s:.12}"
    elif state == "done" and not metrics:
        state, outcome = "failed", "the run left no record of it"
    return Ending(state, value, outcome, of_run.exit_code, measured, metrics)
