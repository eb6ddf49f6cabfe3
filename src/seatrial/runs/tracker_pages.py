"""Where a run stands in the trackers that are up: links for its receipt, and the receipt for MLflow's own run."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote

from seatrial.job.plan import Plan
from seatrial.receipt.model import Receipt
from seatrial.receipt.sections.what_ran import TrackerPage
from seatrial.receipt.store import HTML_NAME, JSON_NAME, MARKDOWN_NAME
from seatrial.runs.mlflow_login import login_of
from seatrial.runs.mlflow_server import OUTCOME_TAG, Found, MlflowServer
from seatrial.runs.run import Run
from seatrial.runs.services import Service, ServiceStore
from seatrial.runs.tracked import URI

#: In an MLflow run's artifacts.
FOLDER = "seatrial"
_FILES = {JSON_NAME: "application/json", MARKDOWN_NAME: "text/markdown", HTML_NAME: "text/html"}

#: Runs of MLflow's that one of ours begins, of which the receipt has links; more are still given the receipt.
_MOST_LINKS = 5


@dataclass(frozen=True)
class Standing:
    """A run in the trackers.

    Attributes:
        found: its runs in MLflow, at ``server``.
        warnings: what the receipt says of a tracker that did not answer.
    """

    pages: tuple[TrackerPage, ...] = ()
    server: MlflowServer | None = None
    found: tuple[Found, ...] = field(default=())
    warnings: tuple[str, ...] = ()


def standing(run: Run, plan: Plan, environ: Mapping[str, str]) -> Standing:
    """Look the run up. Never raises: a tracker is no part of a run's judgement."""
    services = ServiceStore(run.folder.parents[1]).all()
    pages: list[TrackerPage] = []
    if "tensorboard" in services and plan.cluster is None:
        pages.append(TrackerPage(name="TensorBoard", url=_in_tensorboard(services["tensorboard"], run)))
    service = services.get("mlflow")
    if service is None or URI not in plan.job.env:
        return Standing(tuple(pages))
    server = MlflowServer(service.url, login_of(service, environ))
    try:
        found = tuple(server.runs_of(run.id))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        why = f"MLflow at {service.url} did not answer, so it has no copy of this receipt: {error}"
        return Standing(tuple(pages), warnings=(why,))
    pages += [TrackerPage(name="MLflow", url=server.page(each)) for each in found[:_MOST_LINKS]]
    return Standing(tuple(pages), server, found)


def with_pages(receipt: Receipt, stands: Standing) -> Receipt:
    """The receipt with its links."""
    if not stands.pages and not stands.warnings:
        return receipt
    return receipt.model_copy(update={"pages": stands.pages, "warnings": (*receipt.warnings, *stands.warnings)})


def hand_over(run: Run, receipt: Receipt, stands: Standing) -> None:
    """Give each MLflow run the receipt as an artifact and its outcome as a tag, and end one that nobody ended."""
    if stands.server is None:
        return
    with contextlib.suppress(OSError, ValueError):
        for found in stands.found:
            stands.server.tag(found, OUTCOME_TAG, receipt.outcome.sentence)
            for name, media_type in _FILES.items() if found.artifacts else ():
                stands.server.upload(found, f"{FOLDER}/{name}", (run.folder / name).read_bytes(), media_type)
            if found.status in ("RUNNING", "SCHEDULED"):
                stopped = receipt.exit_cause.id in ("pruned", "stopped")
                status = "KILLED" if stopped else "FINISHED" if receipt.exit_code == 0 else "FAILED"
                stands.server.end(found, status, time.time())


def _in_tensorboard(service: Service, run: Run) -> str:
    """The page with this run alone, where it has written into its own folder.

    Source: tensorboard/webapp/routes/dashboard_deeplink_provider.ts, ``runFilter``.
    """
    try:
        with os.scandir(run.events_folder) as entries:
            own = any(entries)
    except OSError:
        own = False
    return f"{service.url}?runFilter={quote(run.id)}#timeseries" if own else f"{service.url}#timeseries"
