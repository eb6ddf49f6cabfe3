"""``seatrial runs …``: list, show and steer runs.

Commands import what they need: the plan's and receipt's models take longer to load than ``ls`` to list 5,000 runs.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from seatrial.cli import typed
from seatrial.cli.importing import importing
from seatrial.cli.typed import Reference
from seatrial.compose import listing
from seatrial.compose.group import Group, GroupStore
from seatrial.compose.output import find_run
from seatrial.errors import EXIT_DONE, EXIT_TARGET_FAILED, UsageError
from seatrial.runs.nearest import store_of
from seatrial.runs.store import RunStore
from seatrial.system.typed_path import from_here

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="List, inspect and control runs. RUN is an ID, part of it, a name, or last; some take a group.",
)

#: Between two looks of ``ls --watch``.
WATCH_INTERVAL_S = 2.0

Project = Annotated[
    Path | None,
    typer.Option("--project", "-C", metavar="DIR", help="The project folder; default: the nearest with runs."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="The whole receipt, not its verdict alone.")]


def _store(project: Path | None) -> RunStore:
    return store_of(project)


def _group(store: RunStore, reference: str) -> Group | None:
    """The group that is meant; None where it is a run. A run of the same name is found by its ID."""
    return None if reference == "last" else GroupStore(store).look_up(reference)


def _show_group(store: RunStore, group: Group, *, as_json: bool) -> int:
    from seatrial.cli.screens.front import front
    from seatrial.compose.commands import refresh
    from seatrial.compose.receipt import show_receipt
    from seatrial.runs.notified import notes

    group = refresh(GroupStore(store), group, os.environ)
    person = front(as_json=as_json)
    show_receipt(group, store, person, os.environ, as_json=as_json)
    for note in [] if as_json else notes(GroupStore(store).folder(group.id)):
        person.say(f"notified {note}")
    return EXIT_TARGET_FAILED if group.state in ("failed", "stopped") else EXIT_DONE


@app.command("ls")
def list_(
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, help="Number of runs to show; 0: all.")] = 20,
    status: Annotated[
        str | None,
        typer.Option("--status", metavar="STATUS", help="Only these: running, failed, done, unmet, … or a,b."),
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="Only those started at most so long ago: 30m, 2d.")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Again every 2 s, until Ctrl-C.")] = False,
    as_json: AsJson = False,
    project: Project = None,
) -> int:
    """List runs, newest first; those of seatrial up under their group."""
    from seatrial.cli.screens import runs_table

    if watch and as_json:
        raise UsageError("--watch and --json exclude each other", run="seatrial runs ls --watch")
    statuses = typed.statuses(status, runs_table.STATUSES)
    since_s = None if since is None else typed.duration(since)
    store = _store(project)

    def found() -> list[listing.Listed]:
        now = time.time()
        every = listing.listed(store, os.environ, limit=None if statuses or since_s else limit or None)
        kept = [each for each in every if runs_table.matches(each, statuses, since_s, now)]
        return kept[:limit] if limit and (statuses or since_s) else kept

    if as_json:
        print(json.dumps(listing.as_json(found()), indent=1))
        return EXIT_DONE
    while True:
        listed = found()
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        lines = runs_table.table(listed, width, time.time()) if listed else []
        if watch:
            print("\x1b[H\x1b[2J", end="") if sys.stdout.isatty() else None
        elif not listed:
            none = "No such runs" if statuses or since_s else "No runs yet. Start one: seatrial run digits"
            print(none, file=sys.stderr)
        if listed and store.project != Path(os.path.realpath("")):
            print(f"Runs of {from_here(store.project)}", file=sys.stderr)
        print("".join(f"{line}\n" for line in lines), end="", flush=True)
        if not watch:
            return EXIT_DONE
        time.sleep(WATCH_INTERVAL_S)


@app.command()
def show(reference: Reference = "last", as_json: AsJson = False, project: Project = None) -> int:
    """Show a run's receipt, or its progress. Exits with the run's own exit code."""
    with importing():
        from seatrial.cli.screens.run import Screen
        from seatrial.runs.finalise import finalise
        from seatrial.runs.notified import notes

    store = _store(project)
    if (group := _group(store, reference)) is not None:
        return _show_group(store, group, as_json=as_json)
    run = find_run(store, reference)
    receipt = finalise(run, os.environ)
    screen = Screen(json=as_json, whole=True)
    if not run.recorded:
        screen.say(f"{run.id} predates seatrial's own records: this receipt cannot be verified")
    if receipt is None:
        screen.plan(run.plan(), [], started=True)
        screen.say(f"{run.id} has not ended; seatrial runs logs -f {run.id}")
        return EXIT_DONE
    screen.receipt(receipt, run)
    for note in [] if as_json else notes(run.folder):
        screen.say(f"notified {note}")
    return receipt.exit_code


@app.command()
def logs(
    reference: Reference = "last",
    following: Annotated[bool, typer.Option("--follow", "-f", help="Follow until the run ends.")] = False,
    tail: Annotated[int | None, typer.Option("--tail", "-n", min=0, help="Start with about the last N lines.")] = None,
    rank: Annotated[
        int | None, typer.Option("--rank", min=0, help="Only this node's lines, for a multi-node run.")
    ] = None,
    project: Project = None,
) -> int:
    """Print what the target printed, both streams in order."""
    from seatrial.cli.screens.run import Screen
    from seatrial.runs.following.watch import follow, of_rank

    store = _store(project)
    if (group := _group(store, reference)) is not None:
        from seatrial.cli.screens.front import front
        from seatrial.compose.output import follow_group

        follow_group(GroupStore(store), group, front(), os.environ, until_end=following, tail=tail)
        return EXIT_DONE
    run = find_run(store, reference)
    screen = Screen()
    write = screen.write if rank is None else of_rank(run, rank, screen.write)
    follow(run, write, os.environ, tail=tail, until_end=following, say=screen.say)
    return EXIT_DONE


@app.command()
def attach(
    reference: Reference = "last", as_json: AsJson = False, verbose: Verbose = False, project: Project = None
) -> int:
    """Follow a run to its end and print its verdict. Ctrl-C detaches; the run continues."""
    from seatrial.cli.screens.run import Screen
    from seatrial.runs.finalise import finalise
    from seatrial.runs.following import recorder
    from seatrial.runs.following.watch import follow

    run = find_run(_store(project), reference)
    screen = Screen(json=as_json, whole=verbose)
    try:
        with screen.showing_progress(run) as show:
            follow(run, screen.write, os.environ, tail=10, say=screen.say, between_looks=show)
    except KeyboardInterrupt:
        recorder.ensure(run)
        screen.say(f"detached; {run.id} is still running")
        return EXIT_DONE
    receipt = finalise(run, os.environ)
    if receipt is None:
        screen.say(f"{run.id} has not started yet")
        return EXIT_DONE
    screen.receipt(receipt, run)
    return receipt.exit_code


@app.command()
def verify(reference: Reference = "last", project: Project = None) -> int:
    """Verify that a run's evidence and receipt are unchanged. Exits with 1 if not."""
    from seatrial.runs.verify import verify as check

    run = find_run(_store(project), reference)
    verdict = check(run)
    for sentence in verdict.sentences:
        print(f"{run.id} {sentence}")
    return EXIT_DONE if verdict.intact else EXIT_TARGET_FAILED


@app.command()
def compare(
    references: Annotated[list[str], typer.Argument(metavar="A B...", callback=typed.references)],
    as_json: AsJson = False,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Also write a page with plots.")] = None,
    project: Project = None,
) -> int:
    """Runs side by side: what differs, what was measured against the first; --html adds their curves."""
    from rich.console import Console

    from seatrial.monitor import compare as comparison
    from seatrial.monitor.run_view import Receipts
    from seatrial.runs.finalise import finalise

    store, receipts = _store(project), Receipts()
    if len(references) < 2:
        raise UsageError("A comparison needs two runs or more", run="seatrial runs ls")
    found_runs = [find_run(store, reference) for reference in references]
    for run in found_runs:
        finalise(run, os.environ)
    found = comparison.compare(*(receipts.of(run) for run in found_runs))
    if html is not None:
        comparison.write_page(html, found)
    if as_json:
        print(json.dumps(comparison.to_json(found), indent=1))
    else:
        comparison.print_table(found, Console(highlight=False))
    return EXIT_DONE


@app.command("exec")
def execute(context: typer.Context, reference: Reference = "last", project: Project = None) -> int:
    """Run a command inside a live run: seatrial runs exec RUN -- nvidia-smi"""
    from seatrial.runs import run_actions

    argv: list[str] = context.obj
    if not argv:
        raise UsageError("No command to run: put it after --", run=f"seatrial runs exec {reference} -- nvidia-smi")
    run = find_run(_store(project), reference)
    return run_actions.execute(run, argv, os.environ, interactive=sys.stdin.isatty() and sys.stdout.isatty())


@app.command()
def stop(
    reference: Reference,
    kill: Annotated[bool, typer.Option("--kill", help="SIGKILL at once, with no time to save.")] = False,
    as_json: AsJson = False,
    verbose: Verbose = False,
    project: Project = None,
) -> int:
    """End a run: SIGTERM, its grace period, SIGKILL. Prints its verdict."""
    from seatrial.cli.screens.run import Screen
    from seatrial.runs import run_actions

    store = _store(project)
    if (group := _group(store, reference)) is not None:
        from seatrial.cli.screens.front import front
        from seatrial.compose.commands import down

        down(store, group.id, front(), os.environ)
        return EXIT_DONE
    run = find_run(store, reference)
    Screen(json=as_json, whole=verbose).receipt(run_actions.stop(run, os.environ, kill=kill), run)
    return EXIT_DONE


@app.command("cp")
def copy(
    reference: Annotated[
        str,
        typer.Argument(
            metavar="RUN[:PATH]", help="The run, and a path under its /models.", callback=typed.reference_and_path
        ),
    ],
    destination: Annotated[Path, typer.Argument(metavar="FOLDER")],
    project: Project = None,
) -> int:
    """Fetch what a run on a cluster saved: seatrial runs cp RUN:digits.pth ./models"""
    from seatrial.runs import run_actions

    name, _, path = reference.partition(":")
    for file in run_actions.copy_models(find_run(_store(project), name), path, destination, os.environ):
        print(destination / file)
    return EXIT_DONE


@app.command(hidden=True)
def record(reference: Reference, project: Project = None) -> int:
    """Follow a run in the background and make its receipt; started by run --detach."""
    from seatrial.runs.following.recorder import record as follow_to_the_end

    follow_to_the_end(_store(project).find(reference), os.environ)
    return EXIT_DONE


@app.command(hidden=True)
def notify(record: Path) -> int:
    """Tell who is to be told of an end; started by whoever knows it."""
    from seatrial.runs.notify import deliver

    deliver(record, os.environ)
    return EXIT_DONE


@app.command("rm")
def remove(
    references: Annotated[list[str], typer.Argument(metavar="RUN…", callback=typed.references)],
    force: Annotated[bool, typer.Option("--force", "-f", help="Kill the run first if it has not ended.")] = False,
    project: Project = None,
) -> int:
    """Delete ended runs: logs, evidence, receipt and checkpoints. Saved models stay."""
    from seatrial.runs import run_actions

    store = _store(project)
    for run in [find_run(store, reference) for reference in references]:
        run_actions.remove(store, run, os.environ, force=force)
        print(run.id)
    return EXIT_DONE
