"""``seatrial sweep`` and ``tune``: the same job with other settings, or changes to an unmodified script, measured."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from seatrial.cli import options as cli
from seatrial.errors import EXIT_DONE, EXIT_INTERRUPTED, EXIT_TARGET_FAILED, SeatrialError, TargetError, UsageError

if TYPE_CHECKING:
    from seatrial.cli.screen import SearchScreen
    from seatrial.runs.launch import Prepared
    from seatrial.search.search import Search
    from seatrial.search.trial import Trial


#: Behind --engine → the module of seatrial.search that runs trials: on this machine, or on a Ray cluster's nodes.
RUNNERS = {"local": "runner", "ray": "ray_tuner"}

#: Options that --resume takes; all others are the study's own.
_WITH_RESUME = ("resume", "trials", "budget", "parallel", "engine", "address", "as_json", "verbose", "quiet",
                "project", "trust")  # fmt: skip


@cli.command()
@cli.takes_job
@cli.WORDS
@cli.option(
    "settings",
    "--set",
    metavar="NAME=SPEC",
    multiple=True,
    help="V1,V2; LOW..HIGH[:STEP]; log:LOW..HIGH; int:LOW..HIGH.",
)
@cli.option("--search", metavar="SEARCH", help="grid (default), random or tpe (Optuna).")
@cli.option("--metric", metavar="NAME:max|min", help="The metric to maximise or minimise.")
@cli.option("--metric-from", metavar="PATTERN", help="Read it from the output: the pattern's first group.")
@cli.option("--trials", metavar="N", type=click.IntRange(min=1), help="Maximum number of trials.")
@cli.option("--budget", metavar="TIME", help="End the search after this long, e.g. 30m.")
@cli.option("--prune", metavar="NAME", help="Stop trials that fall behind: asha, median or none.")
@cli.option("--parallel", metavar="N", help="Number of parallel trials; auto: as many as fit.")
@cli.option("--seed", metavar="N", type=click.IntRange(min=0), help="Seed of the search; default 0.")
@cli.option("study", "--study", "--name", metavar="NAME", help="A name for the study.")
@cli.option("--resume", metavar="STUDY", help="Resume a study, from any terminal.")
@cli.option("--engine", metavar="NAME", default="local", help="The engine that runs the trials: local or ray.")
@cli.option("--address", metavar="HOST:PORT", help="Address of the Ray cluster's head, with --engine ray.")
@cli.option("as_json", "--json", is_flag=True, help="Print the trials as JSON.")
@cli.option("--verbose", is_flag=True, help="Every line of the build.")
@cli.option("--quiet", "-q", is_flag=True, help="Warnings, and the table at the end.")
def sweep(
    words: tuple[str, ...],
    trials: int | None,
    budget: str | None,
    parallel: str | None,
    study: str | None,
    resume: str | None,
    engine: str,
    address: str | None,
    as_json: bool,
    verbose: bool,
    quiet: bool,
    flags: dict[str, Any],
    **chosen: Any,
) -> int:
    """Run a job with several settings, and compare: a table here, and a page.

    \b
    seatrial sweep digits --set batch_size=32,64,128 --parallel 2
    seatrial sweep train.py --search tpe --set lr=log:1e-5..1e-1 --metric acc:max
    """
    with cli.importing():
        from seatrial.cli.job import read_job, require_consent
        from seatrial.cli.screen import SearchScreen
        from seatrial.job.loading import read_sweep
        from seatrial.search.request import define, parse_parallel
        from seatrial.search.search import open_search, resume_search
        from seatrial.search.trial import no_settings
        from seatrial.system.command import install_extra
        from seatrial.system.project_files import project_root

    if engine not in RUNNERS:
        raise UsageError(f"Unknown engine {engine!r}; available: {', '.join(RUNNERS)}", run="seatrial sweep --help")
    if engine == "ray" and find_spec("ray") is None:
        raise UsageError("--engine ray needs Ray, which is not installed", run=install_extra("ray"))
    if address is not None and engine != "ray":
        run = f"seatrial sweep … --engine ray --address {address}"
        raise UsageError("--address requires --engine ray", run=run)
    host, screen = cli.this_host(), SearchScreen(json=as_json, whole=verbose, quiet=quiet and not verbose)
    budget_s = None if budget is None else _seconds(budget)
    if resume is not None:
        _refuse_more(resume)
    project, trust = cli.check_folder(flags.get("project") or project_root(Path())), bool(flags.pop("trust", False))
    if resume is not None:
        at_once = parse_parallel(parallel)
        found = resume_search(project, resume, host, screen.note, trials=trials, budget_s=budget_s, parallel=at_once)
        require_consent(found.job, screen, trust=trust)
    else:
        for word in words[1:]:
            if "=" in word and not chosen.get("settings"):
                run = f"seatrial sweep {words[0]} --set {word}"
                raise TargetError(f"{word} needs --set before it", run=run, instead=(word, ["--set", word]))
        settings = chosen.pop("settings")
        typed = {**chosen, "trials": trials, "budget_s": budget_s, "parallel": parallel}
        table = read_sweep(project).changed(**{key: value for key, value in typed.items() if value is not None})
        job = read_job(words, flags).without_notify
        if not settings and not table.set:
            raise no_settings(job)
        definition, at_once = define(table, settings, study), parse_parallel(table.parallel)
        require_consent(job, screen, trust=trust)
        found = open_search(definition, job, host, screen.note, budget_s=table.budget_s, parallel=at_once)
    if engine == "ray":
        found.address = address
        found.parallel = 0 if parallel in (None, "auto") else found.parallel
    return _run_search(found, engine, screen, as_json=as_json)


def _refuse_more(study: str) -> None:
    """Raise UsageError for an option that a resumed study would ignore."""
    context = click.get_current_context()
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if name in _WITH_RESUME or source is None or source.name != "COMMANDLINE":
            continue
        if name == "words" and not context.params.get(name):
            continue
        flag = "target" if name == "words" else max(parameter.opts, key=len)
        cause = "it goes on with the study as it began; only --trials, --budget, --parallel and --engine can change"
        run = f"seatrial sweep --resume {study}"
        raise UsageError(f"--resume cannot be combined with {flag}", cause=cause, run=run)


def _run_search(search: Search, engine: str, screen: SearchScreen, *, as_json: bool) -> int:
    """Run the search, then print table and page; return the exit code, or raise the error that ended it early."""
    from seatrial.cli.tables import print_trials
    from seatrial.search import results
    from seatrial.system.names import Names, names_of
    from seatrial.system.text import as_typed

    name, job = search.study.definition.name, search.job
    names = Names() if job.with_names else names_of(search.host, secrets=job.secrets)
    screen.note(f"sweep {name}: {search.summary()}")

    def tick() -> None:
        screen.show(search)
        results.refresh(search, names)

    search.tick, search.building = tick, screen.building
    had_all = search.most is not None and sum(one.ending is not None for one in search.study.trials()) >= search.most
    try:
        with _interrupt_ends(search, screen):
            import_module(f"seatrial.search.{RUNNERS[engine]}").run_trials(search)
    except SeatrialError as error:
        search.end(error)
        with suppress(SeatrialError):  # the error may be that the study cannot be written
            search.leave(error)
            screen.note(f"go on: seatrial sweep --resume {name}")
            results.write(search, names)
        raise
    screen.close()
    trials = search.finish()
    print_trials(trials, search.objective, as_json=as_json)
    code = _summarise(search, trials, screen)
    screen.note(f"page: {as_typed(results.write(search, names))}")
    if search.problem is not None:
        raise search.problem
    _print_how_to_resume(search, screen, had_all=had_all, trials=len(trials))
    return code


def _summarise(search: Search, trials: list[Trial], screen: SearchScreen) -> int:
    """Print the best trial; return the exit code: with an objective there must be a best trial."""
    from seatrial.search.results import best_of, close_second

    best = best_of(trials, search.objective)
    if best is not None and search.objective is not None:
        screen.note(f"best: {best.reported(search.objective.metric)} with {best.label} (run {best.run_id})")
    elif best is not None:
        screen.note(f"best in every metric: {best.label} (run {best.run_id})")
    elif search.objective is None and len(trials) > 1:
        screen.note("no best trial: --metric NAME:max names what decides, --metric-from PATTERN finds it in the output")
    if (other := close_second(trials, search.objective)) is not None:
        screen.note(other)
    if search.problem is not None:
        return search.problem.exit_code
    if search.interrupted:
        return EXIT_INTERRUPTED
    if search.objective is not None:
        return EXIT_DONE if best is not None else EXIT_TARGET_FAILED
    failed = any(one.state == "failed" or (one.ending is not None and one.ending.exit_code) for one in trials)
    return EXIT_TARGET_FAILED if failed else EXIT_DONE


def _print_how_to_resume(search: Search, screen: SearchScreen, *, had_all: bool, trials: int) -> None:
    resume = f"seatrial sweep --resume {search.study.definition.name}"
    if search.interrupted:
        screen.note(f"go on: {resume}")
        return
    if had_all and search.expected == search.most:
        screen.note(f"it had all of its trials; for more: {resume} --trials {2 * trials}")
    if search.study.get("ended") is None and search.time_is_over():
        screen.note(f"the time was over; go on: {resume} --budget 30m")


def _seconds(text: str) -> float:
    from seatrial.job.keys import read_duration

    try:
        return float(read_duration(text))
    except ValueError as error:
        raise UsageError(f"--budget: {error}", run="seatrial sweep … --budget 30m") from None


@contextmanager
def _interrupt_ends(search: Search, screen: SearchScreen) -> Iterator[None]:
    """Let Ctrl-C or SIGTERM stop the trials cleanly the first time, and kill them the second."""
    from seatrial.runs.watch import handled

    def on_interrupt(number: int, _frame: FrameType | None) -> None:
        if search.interrupted:
            search.killed.set()
            return
        search.interrupted, search.by_ctrl_c = True, number == signal.SIGINT
        search.over.set()
        got = f"running trials got {signal.Signals(number).name} and have {search.job.grace_s:g} s"
        screen.note(f"Stopping: {'the build ends' if screen.builds else got}. Press Ctrl-C again to kill them.")

    with handled((signal.SIGINT, signal.SIGTERM), on_interrupt):
        yield


@cli.command(examples=("seatrial tune train.py --save", "seatrial tune train.py --only workers,bf16 -- --epochs 5"))
@cli.takes_job
@cli.WORDS
@cli.option("--steps", metavar="N", type=click.IntRange(min=10), default=60, help="Steps measured in a trial.")
@cli.option(
    "--seconds", metavar="N", type=click.FloatRange(min=1), default=20.0, help="Maximum seconds of steps per trial."
)
@cli.option("budget_s", "--budget", metavar="N", type=float, default=180.0, help="Seconds for all trials.")
@cli.option("--only", metavar="NAMES", help="Try only these: workers,bf16; a wrong name lists all.")
@cli.option("--fit", is_flag=True, help="Find the largest and the fastest batch size.")
@cli.option("--save", is_flag=True, help="Write the kept changes into seatrial.toml; later runs apply them.")
@cli.RECEIPT_AS_JSON
@cli.VERBOSE
def tune(
    words: tuple[str, ...],
    only: str | None,
    fit: bool,
    save: bool,
    as_json: bool,
    verbose: bool,
    flags: dict[str, Any],
    **limits: Any,
) -> int:
    """Try changes on an unmodified script and keep what is faster and trains the same: tune train.py -- --epochs 5

    Loader workers, pinned memory, TF32, bf16, channels_last, a fused optimizer, torch.compile, DDP's buckets: each is
    measured in a short trial from outside. No file of the project is changed without --save.
    """
    with cli.importing():
        from seatrial.cli.job import read_allowed_job
        from seatrial.cli.run import run_to_receipt
        from seatrial.cli.screen import Screen
        from seatrial.job.plan import gpu_models
        from seatrial.job.script import source_digest
        from seatrial.job.tables import Tuning
        from seatrial.receipt.model import load
        from seatrial.runs.jobs import tuning_job
        from seatrial.system.project_files import save_table

    tuning = Tuning(only=_names(only), fit=fit, **limits)
    screen = Screen(json=as_json, whole=verbose)
    job = tuning_job(read_allowed_job(words, flags, screen), tuning)
    begun: list[Prepared] = []
    digest = source_digest(job) if save else None
    code = run_to_receipt(job, cli.this_host(), screen, notifies=True, before_start=begun.append)
    found = load(begun[0].run.folder).tune if code == EXIT_DONE else None
    if found is None or fit or not found.kept:
        return code
    script = begun[0].plan.job.target.value
    if save:
        comment = f"measured by seatrial tune, run {begun[0].run.id}; --no-tune: without"
        where = {"script": script, "gpu": gpu_models(begun[0].plan.gpus), **({"digest": digest} if digest else {})}
        path = save_table(job.project, "tune", {**where, **found.kept}, comment)
        applied = f"runs of {script} on {where['gpu'] if begun[0].plan.gpus else 'the CPU'} apply it"
        screen.note(f"[tune] in {path.name} holds it: {applied} until the script is edited; --no-tune leaves it out")
    else:
        screen.note("keep it: the same command with --save applies it to later runs")
    return code


def _names(only: str | None) -> tuple[str, ...]:
    """Return the names in ``--only``. Raises UsageError for an unknown one."""
    from seatrial.common.tunables import GROUPS

    names = tuple(name.strip() for name in (only or "").split(",") if name.strip())
    for name in names:
        if name not in GROUPS:
            raise UsageError(f"--only {name}: known are {', '.join(GROUPS)}", run="seatrial tune … --only workers,bf16")
    return names
