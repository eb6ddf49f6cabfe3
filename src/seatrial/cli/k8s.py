"""``seatrial k8s …``: what is about a cluster and not about one run."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from typing import Annotated

import typer

from seatrial.backends.kubernetes.cleanup import clean_up
from seatrial.backends.kubernetes.client import Cluster
from seatrial.errors import EXIT_DONE

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Kubernetes clusters: what seatrial created there.",
)


@app.callback()
def k8s() -> None:
    """Kubernetes clusters: what seatrial created there."""


@app.command()
def cleanup(
    namespace: Annotated[str | None, typer.Option("--namespace", help="Default: the context's.")] = None,
    context: Annotated[str | None, typer.Option("--context", help="Of the kubeconfig.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Also remove running ones.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be deleted, and why.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Delete seatrial resources of ended runs on a cluster, and only those with seatrial's label. Volumes stay.

    A run has ended when its Job, PyTorchJob, TrainJob or JobSet says so: one that waits for quota or its queue stays.
    """
    removed = clean_up(Cluster(os.environ, context, namespace), everything=everything, dry_run=dry_run)
    if as_json:
        print(json.dumps([asdict(one) for one in removed]))
        return EXIT_DONE
    for one in removed:
        print(f"would remove {one.name}: {one.why}" if dry_run else f"removed {one.name}")
    if not removed:
        print("no seatrial resources to remove")
    return EXIT_DONE
