"""``seatrial prune``: give back the disk that ended runs hold, and images and build cache that nothing uses."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Annotated

import typer

from seatrial.errors import EXIT_DONE
from seatrial.job.units import format_bytes
from seatrial.pipelines.group import GroupStore
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
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    project: Annotated[Path, typer.Option("--project", "-C", metavar="DIR", help="The project folder.")] = Path(),
) -> int:
    """Delete ended runs of this project and its old images: logs, evidence, receipts, checkpoints. Models stay."""
    folder = project.absolute()
    pruned = run_actions.prune(RunStore(folder), os.environ, keep=keep, dry_run=dry_run)
    groups = GroupStore(RunStore(folder))
    for group in () if dry_run else groups.without_runs():
        groups.remove(group)
    freed = free_images(None if everything else folder, os.environ, dry_run=dry_run)
    if as_json:
        engines = {name: dataclasses.asdict(each) for name, each in freed.items()}
        print(json.dumps({**dataclasses.asdict(pruned), "engines": engines, "dry_run": dry_run}))
        return EXIT_DONE
    verb = "would remove" if dry_run else "removed"
    print(f"{verb} {pruned.runs} run{'s' * (pruned.runs != 1)}, {format_bytes(pruned.bytes)}")
    for name, each in freed.items():
        if each.images or each.steps:
            images = f"{each.images} image{'s' * (each.images != 1)}"
            steps = f"{each.steps} cached build step{'s' * (each.steps != 1)}"
            least = "at least " if dry_run else ""
            print(f"{name}: {verb} {images} and {steps} of seatrial's own, {least}{format_bytes(each.bytes)}")
    return EXIT_DONE
