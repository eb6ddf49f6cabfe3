"""``seatrial run``, ``shell`` and ``up``; and one run in the foreground, from its Job to its receipt."""

from __future__ import annotations

import importlib
import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from seatrial.cli import options as cli
from seatrial.errors import EXIT_DONE, EXIT_GPU_CONTRACT, SeatrialError, UsageError

if TYPE_CHECKING:
    from seatrial.backends.base import State
    from seatrial.cli.screen import Screen
    from seatrial.job.model import Job
    from seatrial.runs.launch import Prepared
    from seatrial.system.host import Caller, Host


@cli.command(
    examples=(
        "seatrial run train.py --gpus 1 --data ./data -- --epochs 5",
        "seatrial run digits",
        "seatrial run --resume last",
        "seatrial run bench -- train digits --compare eager,graph",
        'seatrial run predict -- spam "WINNER!! Call now"',
    )
)
@cli.takes_job
@cli.WORDS
@cli.option("--detach", "-d", is_flag=True, group="Common", help="Run in the background.")
@cli.option("--resume", metavar="RUN", type=cli.RunReference(), help="Resume from a run's checkpoints.")
@cli.option(
    "--interactive", "-i", is_flag=True, help="Always forward stdin; terminals and pipes are forwarded by default."
)
@cli.RECEIPT_AS_JSON
@cli.VERBOSE
@cli.option("--quiet", "-q", is_flag=True, help="Print the target's output, warnings, and the verdict of a failure.")
@cli.option("--rank-of", metavar="N", type=click.IntRange(min=0), help="This machine's index in --nodes host1,host2.")
def run(
    words: tuple[str, ...],
    resume: str | None,
    detach: bool,
    interactive: bool,
    rank_of: int | None,
    as_json: bool,
    verbose: bool,
    quiet: bool,
    flags: dict[str, Any],
) -> int:
    """Run a script, module, recipe or image in a GPU container. Ends with a receipt.

    The target's own arguments go after --: seatrial run train.py --gpus 1 -- --epochs 5
    """
    if interactive and detach:
        problem = "--interactive and --detach exclude each other: nobody can type to a run in the background"
        raise UsageError(problem, run="seatrial run … --interactive")
    with cli.importing():
        from seatrial.cli.job import read_allowed_job
        from seatrial.cli.screen import Screen
        from seatrial.job.script import source_facts
        from seatrial.planning import launcher
        from seatrial.system.host import read_caller

    host, screen = cli.this_host(), Screen(json=as_json, whole=verbose, quiet=quiet and not verbose)
    job = launcher.join(read_allowed_job(words, flags, screen, resume=resume), rank_of, host)
    if job.hosts and job.node_rank is None:
        print(launcher.instructions(job, sys.argv[1:], source_facts(job)))
        return EXIT_DONE
    caller = read_caller(host, asks=interactive, shows_output=not as_json)
    return run_to_receipt(job, host, screen, detach=detach, caller=caller, notifies=True)


@cli.command(examples=("seatrial shell train.py --gpus all",))
@cli.takes_job
@cli.WORDS
def shell(words: tuple[str, ...], flags: dict[str, Any]) -> int:
    """Open an interactive shell in the container the target would get; its GPUs are checked first."""
    with cli.importing():
        from seatrial.cli.job import read_allowed_job
        from seatrial.cli.screen import Screen
        from seatrial.runs import launch

    host, screen, typed = cli.this_host(), Screen(), shlex.join(cli.target_arguments())
    if typed:
        own = [*sys.argv[sys.argv.index("shell") + 1 : sys.argv.index("--")], *([] if words else ["train.py"])]
        run = f"echo {shlex.quote(typed)} | seatrial shell {shlex.join(own)}"
        raise UsageError(f"seatrial shell takes no command: {typed}", run=run)
    job = read_allowed_job(words, flags, screen)
    prepared = launch.prepare(job, host, building=screen.building, interactive=True)
    screen.announce(prepared.plan)
    return launch.shell(prepared, host, screen.building)


@cli.command()
@cli.argument("names", nargs=-1, metavar="[NAME…]", help="Services of the Compose file; default: all.")
@cli.option("files", "--file", "-f", metavar="FILE", multiple=True, help="A Compose file; can be repeated.")
@cli.option(
    "profiles", "--profile", metavar="NAME", multiple=True, help="A profile of the Compose file; can be repeated."
)
@cli.option("plan_only", "--plan", is_flag=True, help="Show what would be done; change nothing.")
@cli.option("target", "--target", metavar="MACHINE", help="With --plan: plan for h100, or driver=535.129,gpu=A4000.")
@cli.option("--detach", "-d", is_flag=True, help="Run in the background.")
@cli.option("--gpus", metavar="REQUEST", help="Replace the GPU request of each service that has one, e.g. none.")
@cli.option("backend", "--on", metavar="BACKEND", help="auto or docker.")
@cli.option("name", "--name", metavar="TEXT", type=cli.RunReference(new=True), help="A name for the group.")
@cli.AS_JSON
@cli.option("--verbose", "-v", is_flag=True, help="Print every line of a build; with --plan, the override file.")
@cli.option("--quiet", "-q", is_flag=True, help="Print outputs, warnings, failures and the receipt alone.")
@cli.option("--trust", is_flag=True, help="Allow what the project's file requests without asking.")
@cli.project_option("The project folder; default: the repository.")
def up(
    files: tuple[str, ...], as_json: bool, verbose: bool, quiet: bool, trust: bool, project: Path | None, **request: Any
) -> int:
    """Run a Compose file as it is; ends with one receipt for all.

    \b
    seatrial up                        every service of compose.yaml
    seatrial up train -f gpu.yaml      one service, and the services it depends on
    seatrial up --plan                 what would be done
    seatrial runs stop GROUP           stop it
    """
    with cli.importing():
        from seatrial.cli.screen import front
        from seatrial.compose import commands
        from seatrial.compose.console import UpRequest
        from seatrial.system.project_files import project_root, real_project

    if request["target"] and not request["plan_only"]:
        run = f"seatrial up --plan --target {request['target']}"
        raise UsageError("--target needs --plan: nothing starts on another machine", run=run)
    folder = real_project(cli.check_folder(project or Path.cwd()))
    request |= {"project": folder if project else project_root(folder), "folder": folder}
    wanted = UpRequest(files=tuple(Path(file) for file in files), as_json=as_json, whole=verbose, **request)
    person = front(trust=trust, as_json=as_json, whole=verbose, quiet=quiet and not verbose)
    return commands.up(wanted, person, cli.this_host())


def run_to_receipt(
    job: Job,
    host: Host,
    screen: Screen,
    *,
    detach: bool = False,
    caller: Caller | None = None,
    notifies: bool = False,
    before_start: Callable[[Prepared], None] = lambda prepared: None,
) -> int:
    """Plan, build, start and follow; return the exit code of the command.

    ``detach``: return once it has started. ``caller``: has the target's terminal and input. ``notifies``: commands in
    ``[notify]`` announce its end. ``before_start``: gets the run's folder before anything starts.
    """
    with cli.importing():
        from seatrial.runs import launch
        from seatrial.runs.watch import handled
        from seatrial.system.command import remembering

    with remembering():
        with handled((signal.SIGTERM,), signal.default_int_handler):  # raises KeyboardInterrupt for it, too
            caller = None if detach else caller
            with screen.working("planning"):
                prepared = launch.prepare(job, host, building=screen.building, caller=caller, notifies=notifies)
            screen.announce(prepared.plan)
            try:
                before_start(prepared)
                with screen.working("starting"), screen.building() as progress:
                    launch.start(prepared, host, progress)
            except SeatrialError:
                _receipt(prepared, host, screen, error_follows=True)
                raise
            except KeyboardInterrupt:
                return _receipt(prepared, host, screen)
        return _detach(prepared, host, screen) if detach else _follow(prepared, host, screen)


def _detach(prepared: Prepared, host: Host, screen: Screen) -> int:
    """Leave the run to its recorder; a server, once it answers."""
    from seatrial.runs.jobs import ready_words, wait_until_ready
    from seatrial.runs.run_actions import is_live
    from seatrial.runs.watch import ensure_recorder, follow

    serving = prepared.plan.job.serve
    ensure_recorder(prepared.run)
    if serving is not None:
        seconds = wait_until_ready(serving, lambda: not is_live(prepared.run, host))
        if seconds is None:  # it ended first
            follow(prepared.run, screen.write, host, echo=screen.note)
            return _receipt(prepared, host, screen)
        screen.note(ready_words(serving, seconds))
    screen.detached(prepared.plan)
    return EXIT_DONE


def _follow(prepared: Prepared, host: Host, screen: Screen) -> int:
    """Show the run to its end, then its receipt."""
    from seatrial.runs.jobs import report_when_ready
    from seatrial.runs.run_actions import is_live
    from seatrial.runs.streams import TYPING_INTERVAL_S, passing_on
    from seatrial.runs.watch import LOG_INTERVAL_S, ensure_recorder, follow, interrupt_stops

    run, plan = prepared.run, prepared.plan
    looks_s = LOG_INTERVAL_S if plan.agent.input is None else TYPING_INTERVAL_S
    with interrupt_stops(run, host, screen.note):  # at once: the target may be at work already
        with cli.importing():  # while the container starts: its end need not wait for it
            importlib.import_module("seatrial.runs.ending")
            from seatrial.receipt.render.pages import PACKAGE, compile_pages
        compile_pages(PACKAGE)
        ready = report_when_ready(plan.job.serve, screen.note)
        try:
            with ready, passing_on(run, plan), screen.showing_progress(run) as show:
                ended = follow(run, screen.write, host, echo=screen.note, between_looks=show, log_interval_s=looks_s)
        except BrokenPipeError:
            if is_live(run, host):
                ensure_recorder(run)
                screen.note(f"{run.id} is still running without a reader; to stop it: seatrial runs stop {run.id}")
            raise
    exit_code = _receipt(prepared, host, screen, ended=ended)
    if exit_code == EXIT_GPU_CONTRACT and plan.on_this_host:  # its GPUs are not of this host
        from seatrial.doctor.examine import second_opinion

        screen.note(second_opinion(host, in_container=plan.container is not None))
    return exit_code


def _receipt(
    prepared: Prepared, host: Host, screen: Screen, *, ended: State | None = None, error_follows: bool = False
) -> int:
    from seatrial.runs.status import finalise

    receipt = finalise(prepared.run, host, ended=ended)
    assert receipt is not None, "a run followed to its end must have ended"
    screen.receipt(receipt, prepared.run, error_follows=error_follows)
    return receipt.exit_code
