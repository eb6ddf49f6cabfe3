"""``seatrial prune``: give back the disk that ended runs hold, and images and build cache that nothing uses."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from seatrial.backends.base import Freed
from seatrial.compose.group import GroupStore
from seatrial.errors import EXIT_DONE
from seatrial.job.units import format_bytes
from seatrial.runs import run_actions
from seatrial.runs.free_images import free_images
from seatrial.runs.store import RunStore

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(context_settings={"help_option_names": ["-h", "--help"]})
def prune(
    keep: Annotated[int, typer.Option("--keep", min=0, help="Keep the N newest ended runs.")] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be deleted.")] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Also all images and build cache of seatrial that no container uses.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    project: Annotated[Path, typer.Option("--project", "-C", metavar="DIR", help="The project folder.")] = Path(),
) -> int:
    """Delete ended runs of this project and its old images: logs, evidence, receipts, checkpoints. Models stay."""
    folder = project.absolute()
    asks = sys.stdin.isatty() and sys.stdout.isatty() and not (yes or dry_run or as_json)
    if asks:
        if not _tell("would remove", *_prune(folder, keep, everything=everything, dry_run=True)):
            return EXIT_DONE
        if not typer.confirm("Delete this? Receipts and checkpoints of these runs are lost", default=False):
            print("nothing was removed")
            return EXIT_DONE
    pruned, freed = _prune(folder, keep, everything=everything, dry_run=dry_run)
    if as_json:
        engines = {name: dataclasses.asdict(each) for name, each in freed.items()}
        print(json.dumps({**dataclasses.asdict(pruned), "engines": engines, "dry_run": dry_run}))
    else:
        _tell("would remove" if dry_run else "removed", pruned, freed)
    return EXIT_DONE


def _prune(
    folder: Path, keep: int, *, everything: bool, dry_run: bool
) -> tuple[run_actions.Pruned, Mapping[str, Freed]]:
    """Runs, groups that have none any more, and images."""
    pruned = run_actions.prune(RunStore(folder), os.environ, keep=keep, dry_run=dry_run)
    groups = GroupStore(RunStore(folder))
    for group in () if dry_run else groups.without_runs():
        groups.remove(group)
    return pruned, free_images(None if everything else folder, os.environ, dry_run=dry_run)


def _tell(verb: str, pruned: run_actions.Pruned, freed: Mapping[str, Freed]) -> bool:
    """Print what goes; whether that is anything."""
    print(f"{verb} {pruned.runs} run{'s' * (pruned.runs != 1)}, {format_bytes(pruned.bytes)}")
    least = "at least " if verb == "would remove" else ""
    unused = {name: each for name, each in freed.items() if each.images or each.steps}
    for name, each in unused.items():
        images = f"{each.images} image{'s' * (each.images != 1)}"
        steps = f"{each.steps} cached build step{'s' * (each.steps != 1)}"
        print(f"{name}: {verb} {images} and {steps} of seatrial's own, {least}{format_bytes(each.bytes)}")
    return bool(pruned.runs or unused)
