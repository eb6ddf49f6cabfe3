"""``seatrial sweep``: the same job with other settings, chosen by a grid, at random, or by Optuna."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from seatrial.cli.options import WORDS, command, option, takes_job, target_arguments, this_host
from seatrial.cli.root import importing
from seatrial.cli.typed import check_folder
from seatrial.errors import EXIT_DONE, EXIT_INTERRUPTED, EXIT_TARGET_FAILED, SeatrialError, UsageError

if TYPE_CHECKING:
    from seatrial.cli.trials import SearchScreen
    from seatrial.job.notify import Notify
    from seatrial.search.search import Search
    from seatrial.search.trial import Trial


def _local(search: Search) -> None:
    from seatrial.search import runner

    runner.run_trials(search)


def _ray(search: Search) -> None:
    from seatrial.search.ray_cluster import require_ray

    require_ray()
    from seatrial.search import ray_tuner

    ray_tuner.run_trials(search)


#: Behind --engine: trials as runs of this machine, or of a Ray cluster's nodes.
RUNNERS: dict[str, Callable[[Search], None]] = {"local": _local, "ray": _ray}


@command()
@takes_job
@WORDS
@option(
    "settings",
    "--set",
    metavar="NAME=SPEC",
    multiple=True,
    help="V1,V2; LOW..HIGH[:STEP]; log:LOW..HIGH; int:LOW..HIGH.",
)
@option("--search", metavar="NAME", help="grid (default), random or tpe (Optuna).")
@option("--metric", metavar="NAME:max|min", help="The metric that a good trial has most or least of.")
@option("--metric-from", metavar="PATTERN", help="Read it from the output: the pattern's first group.")
@option("--trials", metavar="N", type=click.IntRange(min=1), help="Maximum number of trials.")
@option("--budget", metavar="TIME", help="End the search after this long, e.g. 30m.")
@option("--prune", metavar="NAME", help="Stop trials that fall behind: asha, median or none.")
@option("--parallel", metavar="N", help="Number of parallel trials; auto: as many as fit.")
@option("--seed", metavar="N", type=click.IntRange(min=0), help="Of the engine; default 0.")
@option("--study", metavar="NAME", help="A name for the study.")
@option("--resume", metavar="STUDY", help="Go on with a study, from any terminal.")
@option("--engine", metavar="NAME", default="local", help="The engine that runs the trials: local or ray.")
@option("--address", metavar="HOST:PORT", help="Of the Ray cluster's head; --engine ray.")
@option("as_json", "--json", is_flag=True, help="Print the trials as JSON.")
@option("--verbose", is_flag=True, help="Every line of the build.")
@option("--quiet", "-q", is_flag=True, help="Warnings, and the table at the end.")
def sweep(
    words: tuple[str, ...],
    settings: tuple[str, ...],
    search: str | None,
    metric: str | None,
    metric_from: str | None,
    trials: int | None,
    budget: str | None,
    prune: str | None,
    parallel: str | None,
    seed: int | None,
    study: str | None,
    resume: str | None,
    engine: str,
    address: str | None,
    as_json: bool,
    verbose: bool,
    quiet: bool,
    flags: dict[str, Any],
) -> int:
    """Run a job with several settings, and compare: a table here, and a page.

    \b
    seatrial sweep digits --set batch_size=32,64,128 --set mixed_precision=true,false --parallel 2
    seatrial sweep train.py --search tpe --set lr=log:1e-5..1e-1 --trials 40 --metric accuracy:max
    """
    with importing():
        from seatrial.cli.screen import require_consent
        from seatrial.cli.trials import SearchScreen
        from seatrial.cli.typed_job import read_allowed_job
        from seatrial.job.loading import read_notify, read_sweep
        from seatrial.search.request import Flags, make_request, parse_parallel
        from seatrial.search.search import open_search, resume_search

    if engine not in RUNNERS:
        raise UsageError(f"There is no engine {engine!r}: {', '.join(RUNNERS)}", run="seatrial sweep --help")
    if address is not None and engine != "ray":
        raise UsageError(
            "--address requires --engine ray",
            run=f"seatrial sweep … --engine ray --address {address}",
        )
    screen = SearchScreen(json=as_json, whole=verbose, quiet=quiet and not verbose)
    host = this_host()
    budget_s = None if budget is None else _seconds(budget)
    if resume is not None:
        _refuse_more(resume)
        project = check_folder(flags.get("project") or Path.cwd())
        wanted = parse_parallel("1" if parallel is None else parallel)
        found = resume_search(project, resume, host, screen.say, trials=trials, budget_s=budget_s, parallel=wanted)
        told, asks = read_notify(project, flags.get("notify") or ())
        asking = found.job.changed(asks=(*found.job.asks, *asks))
        require_consent(asking, this_host(), screen, trust=bool(flags.get("trust")))
    else:
        typed = Flags(settings, search, metric, metric_from, prune, trials, budget_s, parallel, seed, study)
        request = make_request(typed, read_sweep(check_folder(flags.get("project") or Path.cwd())))
        job = read_allowed_job(list(words), target_arguments(), flags, screen)
        told, job = job.notify, job.without_notify
        found = open_search(request, job, host, screen.say)
    if engine == "ray":
        found.address = address
        found.parallel = 0 if parallel in (None, "auto") else found.parallel
    return _carry_out(found, engine, screen, told, as_json=as_json)


#: What may stand beside --resume; all else is the study's own.
_WITH_RESUME = (
    "resume", "trials", "budget", "parallel", "engine", "notify", "address", "as_json", "verbose", "quiet",
    "project", "trust",
)  # fmt: skip


def _refuse_more(study: str) -> None:
    """Raise UsageError for a flag that a study which goes on would ignore."""
    context = click.get_current_context()
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name in _WITH_RESUME or source is None or source.name != "COMMANDLINE":
            continue
        words = context.params.get(parameter.name or "")
        if parameter.name == "words" and not words:
            continue
        flag = "target" if parameter.name == "words" else max(parameter.opts, key=len)
        raise UsageError(
            f"--resume cannot be combined with {flag}",
            cause="it goes on with the study as it began; only --trials, --budget, --parallel and --engine can change",
            run=f"seatrial sweep --resume {study}",
        )


def _carry_out(search: Search, engine: str, screen: SearchScreen, told: Notify, *, as_json: bool) -> int:
    """Run it, then table, page and exit code; what ended it early is raised behind them. ``told``: of its end."""
    from seatrial.cli.trials import print_table
    from seatrial.search import results
    from seatrial.search.results import notify_end
    from seatrial.system.names import Names, names_of
    from seatrial.system.typed_path import as_typed

    began_s, name = time.monotonic(), search.study.definition.name
    screen.say(f"study {name}: {search.summary()}")
    job = search.job
    names = Names() if job.with_names else names_of(search.host, secrets=job.secrets)

    def tick() -> None:
        screen.show(search)
        results.refresh(search, names)

    def tell(code: int) -> None:
        try:
            trials, seconds = search.study.trials(), time.monotonic() - began_s
            notify_end(search, trials, told, names, search.host, exit_code=code, seconds=seconds)
        except SeatrialError as error:  # the sweep itself has come to what it has come to
            screen.say(f"warning: nobody was told of the end: {error.message}")

    search.tick, search.building = tick, screen.building
    had_all = search.most is not None and sum(one.ending is not None for one in search.study.trials()) >= search.most
    try:
        with _interrupt_ends(search, screen):
            RUNNERS[engine](search)
    except SeatrialError as error:
        search.end(error)
        with suppress(SeatrialError):  # the error may be that the study cannot be written
            search.leave(error)
            screen.say(f"go on: seatrial sweep --resume {name}")
            results.write(search, names)
        tell(error.exit_code)
        raise
    screen.close()
    trials = search.finish()
    if as_json:
        print(json.dumps([trial.as_dict() for trial in trials], indent=1))
    else:
        print_table(trials, search.objective)
    _summary(search, trials, screen)
    screen.say(f"page: {as_typed(results.write(search, names))}")
    code = _exit_code(search, trials)
    tell(code)
    if search.problem is not None:
        raise search.problem
    if search.interrupted:
        screen.say(f"go on: seatrial sweep --resume {name}")
        return code
    if had_all and search.expected == search.most:
        screen.say(f"it had all of its trials; for more: seatrial sweep --resume {name} --trials {2 * len(trials)}")
    if search.study.get("ended") is None and search.time_is_over():
        screen.say(f"the time was over; go on: seatrial sweep --resume {name} --budget 30m")
    return code


def _summary(search: Search, trials: list[Trial], screen: SearchScreen) -> None:
    from seatrial.search.results import best_of

    best = best_of(trials, search.objective)
    if best is not None and search.objective is not None:
        screen.say(f"best: {search.objective.metric} {best.value:.6g} with {best.label} (run {best.run_id})")
    for line in search.remarks(trials):
        screen.say(line)


def _exit_code(search: Search, trials: list[Trial]) -> int:
    """Without an objective each trial counts; with one, that there is a best."""
    from seatrial.search.results import best_of

    if search.problem is not None:
        return search.problem.exit_code
    if search.interrupted:
        return EXIT_INTERRUPTED
    if search.objective is None:
        return EXIT_TARGET_FAILED if any(one.state == "failed" or _code(one) for one in trials) else EXIT_DONE
    return EXIT_DONE if best_of(trials, search.objective) is not None else EXIT_TARGET_FAILED


def _code(trial: Trial) -> int:
    return (trial.ending.exit_code if trial.ending else None) or 0


def _seconds(text: str) -> float:
    from seatrial.job.keys import read_duration

    try:
        return float(read_duration(text))
    except ValueError as error:
        raise UsageError(f"--budget: {error}", run="seatrial sweep … --budget 30m") from None


@contextmanager
def _interrupt_ends(search: Search, screen: SearchScreen) -> Iterator[None]:
    """Ctrl-C or SIGTERM once stops the trials cleanly, and twice kills them."""

    from seatrial.runs.following.watch import handled

    def on_interrupt(_signal: int, _frame: FrameType | None) -> None:
        if search.interrupted:
            search.killed.set()
            return
        search.interrupted = True
        search.over.set()
        grace = f"{search.job.grace_s:g} s"
        what = "the build ends" if screen.builds else f"running trials got SIGTERM and have {grace}"
        screen.say(f"Stopping: {what}. Press Ctrl-C again to kill them.")

    with handled((signal.SIGINT, signal.SIGTERM), on_interrupt):
        yield
