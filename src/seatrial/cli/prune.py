"""``seatrial prune``: give back the disk that ended runs hold."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Annotated

import typer

from seatrial.errors import EXIT_DONE
from seatrial.job.units import format_bytes
from seatrial.runs import run_actions
from seatrial.runs.store import RunStore

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(context_settings={"help_option_names": ["-h", "--help"]})
def prune(
    keep: Annotated[int, typer.Option("--keep", min=0, help="Keep the N newest ended runs.")] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be deleted.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    project: Annotated[Path, typer.Option("--project", "-C", metavar="DIR", help="The project folder.")] = Path(),
) -> int:
    """Delete ended runs of this project: logs, evidence, receipts and checkpoints. Saved models stay."""
    pruned = run_actions.prune(RunStore(project.absolute()), os.environ, keep=keep, dry_run=dry_run)
    if as_json:
        print(json.dumps({**dataclasses.asdict(pruned), "dry_run": dry_run}))
        return EXIT_DONE
    verb = "would remove" if dry_run else "removed"
    print(f"{verb} {pruned.runs} run{'s' * (pruned.runs != 1)}, {format_bytes(pruned.bytes)}")
    return EXIT_DONE
