"""``seatrial k8s …``: what is about a cluster and not about one run."""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict
from typing import Annotated, Any

import typer

from seatrial.backends.kubernetes.cleanup import clean_up
from seatrial.backends.kubernetes.client import Cluster
from seatrial.cli.job_flags import takes_job
from seatrial.cli.screens.run import Screen
from seatrial.cli.typed_job import read_allowed_job, read_job
from seatrial.errors import EXIT_DONE, UsageError
from seatrial.job.keys import read_duration

#: A word that is a reference to an image and no script: it has a tag or a digest.
_IMAGE = re.compile(r"[\w.-]+(:\d+)?(/[\w.-]+)*(:[\w.-]+|@sha256:[0-9a-f]{64})")

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Kubernetes clusters: cleanup of what seatrial created, prepull of images.",
)


@app.callback()
def k8s() -> None:
    """Kubernetes clusters: cleanup of what seatrial created, prepull of images."""


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


@app.command()
@takes_job
def prepull(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="TARGET", help="An image with its tag, or what run takes.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the nodes and the pods, and do nothing.")] = False,
    wait: Annotated[str, typer.Option("--wait", metavar="TIME", help="How long to wait for all nodes.")] = "30m",
    *,
    flags: dict[str, Any],
) -> int:
    """Pull an image onto the nodes that a run may use, so that its start does not wait for that.

    One small pod for each node, removed when the image is there. Labels, taints and GPUs are those of the job.
    """
    from seatrial.runs.prepull import prepull as pull  # what plans and builds, which cleanup need not wait for

    screen, arguments = Screen(), []
    if words and len(words) == 1 and _IMAGE.fullmatch(words[0]):
        flags.setdefault("image", {})["ready"] = words.pop()
        arguments = ["true"]  # the image's command is not run
    try:
        wait_s = read_duration(wait)
    except ValueError as error:
        raise UsageError(f"--wait: {error}", run="seatrial k8s prepull … --wait 1h") from None
    flags = {**flags, "on": "k8s"}
    if dry_run:
        job = read_job(words or [], arguments, flags)
    else:
        job = read_allowed_job(words or [], arguments, flags, screen, building=True)
    print(pull(job, dict(os.environ), screen.say, timeout_s=wait_s, dry_run=dry_run), end="")
    return EXIT_DONE
