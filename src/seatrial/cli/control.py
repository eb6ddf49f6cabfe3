"""Commands that change runs or act in them: exec, stop, cp, rm, prune; and those that processes of ours start."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from seatrial.cli import options as cli
from seatrial.cli import terminal
from seatrial.compose.group import Group as RunGroup
from seatrial.compose.group import GroupStore, find_run
from seatrial.errors import EXIT_DONE, UsageError
from seatrial.runs.store import RunStore, store_of

if TYPE_CHECKING:
    from seatrial.backends.base import Freed
    from seatrial.runs.run_actions import Pruned

PROJECT = cli.project_option("The project folder; default: the nearest with runs.")
WHOLE_RECEIPT = cli.option("--verbose", "-v", is_flag=True, help="Print the whole receipt, not only its verdict.")


def group_of(store: RunStore, reference: str) -> RunGroup | None:
    """Return the group of that name, for ``last`` one that runs and is the newest; None if it is a run.

    A run of the same name is found by its ID.
    """
    group = GroupStore(store).look_up(reference)
    if reference != "last" or group is None:
        return group
    others = {run.id for run in store.newest(1)} - {member.run for member in group.members}
    return group if group.state == "running" and max(others, default="") < group.id else None


@cli.command("exec", examples=("seatrial runs exec last -- nvidia-smi",), context_settings=cli.TAKES_OPTIONS)
@cli.RUN_OR_LAST
@cli.argument("words", nargs=-1, metavar="[--] COMMAND…", help="The command, with its own options.")
@PROJECT
def execute(reference: str, words: tuple[str, ...], project: Path | None) -> int:
    """Run a command in a run that has not ended: seatrial runs exec RUN -- nvidia-smi"""
    from seatrial.runs import run_actions

    run = find_run(store_of(project), reference)
    interactive = sys.stdin.isatty() and sys.stdout.isatty()
    terminal.printing()
    return run_actions.execute(run, [*words, *cli.target_arguments()], cli.this_host(), interactive=interactive)


@cli.command(examples=("seatrial runs stop last", "seatrial runs stop --all"))
@cli.argument("reference", required=False, metavar="[RUN]", type=cli.RunReference())
@cli.option("--kill", is_flag=True, help="Send SIGKILL at once; leaves no time to save.")
@cli.option("everything", "--all", is_flag=True, help="Stop every group that seatrial up started in this project.")
@cli.AS_JSON
@WHOLE_RECEIPT
@PROJECT
def stop(
    reference: str | None, kill: bool, everything: bool, as_json: bool, verbose: bool, project: Path | None
) -> int:
    """End a run or a group: SIGTERM, its grace period, SIGKILL. Volumes of a group stay."""
    from seatrial.cli.screen import Screen, front
    from seatrial.runs import run_actions

    if (reference is None) is not everything:
        problem = "RUN is missing" if reference is None else "A run and --all exclude each other"
        raise UsageError(problem, run="seatrial runs stop --help")
    store = store_of(project)
    group = None if reference is None else group_of(store, reference)
    if reference is None or group is not None:
        from seatrial.compose.commands import down

        down(store, None if group is None else group.id, front(), cli.this_host())
        return EXIT_DONE
    run = find_run(store, reference)
    receipt = run_actions.stop(run, cli.this_host(), kill=kill)
    if as_json or verbose:
        Screen(json=as_json, whole=verbose).receipt(receipt, run)
    else:
        print(f"{run.id}: {receipt.outcome.sentence}")
    return EXIT_DONE


@cli.command("cp", examples=("seatrial runs cp last:digits.pth ./models",))
@cli.argument("reference", metavar="RUN[:PATH]", type=cli.RunReference(of_path=True))
@cli.argument("destination", metavar="FOLDER", type=click.Path(path_type=Path))
@PROJECT
def copy(reference: str, destination: Path, project: Path | None) -> int:
    """Fetch what a run on a cluster saved: seatrial runs cp RUN:digits.pth ./models"""
    from seatrial.runs import run_actions

    name, _, path = reference.partition(":")
    for file in run_actions.copy_models(find_run(store_of(project), name), path, destination, cli.this_host()):
        print(destination / file)
    return EXIT_DONE


@cli.command(hidden=True)
@cli.RUN
@PROJECT
def record(reference: str, project: Path | None) -> int:
    """Follow a run in the background and make its receipt; started by run --detach."""
    from seatrial.runs.watch import record as follow_to_the_end

    follow_to_the_end(store_of(project).find(reference), cli.this_host())
    return EXIT_DONE


@cli.command(hidden=True)
@click.argument("record", type=click.Path(path_type=Path))
def notify(record: Path) -> int:
    """Run the commands that announce the end of a run; started by the process that ends it."""
    from seatrial.runs.notify import deliver

    deliver(record, cli.this_host())
    return EXIT_DONE


@cli.command("rm", examples=("seatrial runs rm last",))
@cli.argument("references", nargs=-1, required=True, metavar="RUN…", type=cli.RunReference())
@cli.option("--force", "-f", is_flag=True, help="Kill the run first if it has not ended.")
@PROJECT
def remove(references: tuple[str, ...], force: bool, project: Path | None) -> int:
    """Delete ended runs: logs, evidence, receipt and checkpoints. Saved models stay."""
    from seatrial.runs import run_actions
    from seatrial.runs.status import line_of

    store = store_of(project)
    for run in {(run := find_run(store, reference)).id: run for reference in references}.values():
        line = line_of(run, cli.this_host())
        run_actions.remove(store, run, cli.this_host(), force=force)
        print(f"{run.id} deleted: {line.target}")
    return EXIT_DONE


@cli.command(examples=("seatrial runs prune --keep 10",))
@cli.option("--keep", metavar="N", type=click.IntRange(min=0), default=0, help="Keep the N newest ended runs.")
@cli.option("--dry-run", is_flag=True, help="Show what would be deleted.")
@cli.option("everything", "--all", is_flag=True, help="Also delete all unused images and build cache of seatrial.")
@cli.option("--yes", "-y", is_flag=True, help="Do not ask.")
@cli.AS_JSON
@PROJECT
def prune(keep: int, dry_run: bool, everything: bool, yes: bool, as_json: bool, project: Path | None) -> int:
    """Delete ended runs of this project and its old images: logs, evidence, receipts, checkpoints. Models stay."""
    import dataclasses

    folder = store_of(project).project
    if not (yes or dry_run):
        if as_json or not (sys.stdin.isatty() and sys.stdout.isatty()):
            run = f"seatrial runs prune{f' --keep {keep}' * (keep > 0)}{' --all' * everything} --yes"
            raise UsageError("runs prune asks before it deletes, which needs a terminal", run=run)
        if not _print_pruned("would remove", *_prune(folder, keep, everything=everything, dry_run=True)):
            return EXIT_DONE
        if not click.confirm("Delete this? Receipts and checkpoints of these runs are lost", default=False):
            print("nothing was removed")
            return EXIT_DONE
    pruned, freed = _prune(folder, keep, everything=everything, dry_run=dry_run)
    if as_json:
        engines = {name: each._asdict() for name, each in freed.items()}
        print(json.dumps({**dataclasses.asdict(pruned), "engines": engines, "dry_run": dry_run}))
    else:
        _print_pruned("would remove" if dry_run else "removed", pruned, freed)
    return EXIT_DONE


def _prune(folder: Path, keep: int, *, everything: bool, dry_run: bool) -> tuple[Pruned, Mapping[str, Freed]]:
    """Delete runs, groups without runs, and images."""
    from seatrial.runs import run_actions

    pruned = run_actions.prune(RunStore(folder), cli.this_host(), keep=keep, dry_run=dry_run)
    groups = GroupStore(RunStore(folder))
    for group in () if dry_run else groups.without_runs():
        groups.remove(group)
    return pruned, run_actions.free_images(None if everything else folder, cli.this_host(), dry_run=dry_run)


def _print_pruned(verb: str, pruned: Pruned, freed: Mapping[str, Freed]) -> bool:
    """Print what is or would be removed; return whether that is anything."""
    from seatrial.job.units import format_bytes

    print(f"{verb} {pruned.runs} run{'s' * (pruned.runs != 1)}, {format_bytes(pruned.bytes)}")
    print("".join(f"  {each}\n" for each in pruned.which), end="")
    least = "at least " if verb == "would remove" else ""
    unused = {name: each for name, each in freed.items() if each.images or each.steps}
    for name, each in unused.items():
        images = f"{each.images} image{'s' * (each.images != 1)}"
        steps = f"{each.steps} cached build step{'s' * (each.steps != 1)}"
        print(f"{name}: {verb} {images} and {steps} of seatrial's own, {least}{format_bytes(each.bytes)}")
    return bool(pruned.runs or unused)
