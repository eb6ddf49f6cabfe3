"""Steering a started run from any process: stop, remove, run a command inside, prune what has ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from seatrial.backends.base import Backend, Handle
from seatrial.errors import EngineUnavailableError, SeatrialError, UsageError
from seatrial.runs.adopt import handle_of
from seatrial.runs.following.watch import request_stop
from seatrial.runs.liveness import backend_of, leases, state_of
from seatrial.runs.run import Run
from seatrial.runs.store import RunStore
from seatrial.system.nofollow import tree_bytes
from seatrial.system.typed_path import as_typed

if TYPE_CHECKING:
    from seatrial.receipt.model import Receipt


def stop(run: Run, environ: Mapping[str, str], *, kill: bool = False) -> Receipt:
    """End a live run, cleanly or at once, and make its receipt. Raises UsageError when it has already ended."""
    from seatrial.runs.finalise import finalise  # all that judges a run, of no use before it has started

    backend, handle = _live(run, environ)
    if kill:
        backend.kill(handle)
    else:
        request_stop(run, backend, handle, run.plan().job.grace_s)
    receipt = finalise(run, environ)
    assert receipt is not None, "a backend's stop returns when the run has ended"
    return receipt


def execute(run: Run, argv: list[str], environ: Mapping[str, str], *, interactive: bool) -> int:
    """Run a command inside a live run; its exit code."""
    backend, handle = _live(run, environ)
    return backend.exec(handle, argv, interactive=interactive)


def copy_models(run: Run, path: str, destination: Path, environ: Mapping[str, str]) -> list[str]:
    """Fetch what a run on a cluster saved under /models; names of the files. Raises UsageError for other runs."""
    plan = run.plan()
    if plan.cluster is None:
        folder = plan.job.models.source if plan.job.models else plan.job.project
        raise UsageError(f"Files saved by run {run.id} already exist here", run=f"ls {as_typed(folder)}")
    from seatrial.backends.kubernetes.client import Cluster  # of no use to runs on this machine
    from seatrial.backends.kubernetes.objects import fetch

    cluster = Cluster(environ, plan.cluster.context, plan.cluster.namespace)
    return fetch(cluster, plan.cluster, path, destination)


def remove(store: RunStore, run: Run, environ: Mapping[str, str], *, force: bool = False) -> None:
    """Delete an ended run, its logs and receipt; with ``force`` a live one is killed first.

    Forced, a run whose engine is not reachable is forgotten: its container, if it has one, stays there.
    """
    try:
        live = is_live(run, environ)
    except EngineUnavailableError as error:
        if not force:
            forget = f"seatrial runs rm --force {run.id}   # forget the run; a container of it stays where it is"
            raise EngineUnavailableError(error.message, cause=error.cause, run=forget) from error
        leases(environ).release(run.id)
        store.remove(run)
        return
    if live:
        if not force:
            raise UsageError(
                f"Run {run.id} has not ended", run=f"seatrial runs stop {run.id}   # or: seatrial runs rm -f {run.id}"
            )
        stop(run, environ, kill=True)
    elif run.recorded and run.summary() is None and (handle := run.handle()) is not None:
        backend_of(handle, environ).remove(handle)
    store.remove(run)


def is_live(run: Run, environ: Mapping[str, str]) -> bool:
    """It is being started or runs. One that has been finalised is asked for no more."""
    if run.ended:
        return False
    handle = handle_of(run, environ)
    if handle is None:
        return run.is_starting()
    return state_of(handle, environ).is_live


@dataclass(frozen=True)
class Pruned:
    """What prune removed."""

    runs: int
    bytes: int


def prune(store: RunStore, environ: Mapping[str, str], *, keep: int, dry_run: bool) -> Pruned:
    """Remove all ended runs but the newest ``keep``; what runs, or whose engine does not answer, stays."""
    ended = [run for run in store.all() if run.recorded and _has_ended(run, environ)]
    doomed = ended[: max(0, len(ended) - keep)]
    size_bytes = sum(tree_bytes(folder) for run in doomed for folder in (run.folder, run.place))
    if not dry_run:
        for run in doomed:
            remove(store, run, environ)
    return Pruned(len(doomed), size_bytes)


def _has_ended(run: Run, environ: Mapping[str, str]) -> bool:
    try:
        return not is_live(run, environ)
    except SeatrialError:
        return False


def _live(run: Run, environ: Mapping[str, str]) -> tuple[Backend, Handle]:
    run.trusted_plan()
    handle = handle_of(run, environ)
    if run.is_starting():
        raise UsageError(
            f"Run {run.id} is being prepared: its image may be building",
            run="seatrial runs ls   # until it runs; Ctrl-C where it was started ends it",
        )
    if handle is None or not state_of(handle, environ).is_live:
        raise UsageError(f"Run {run.id} has ended", run=f"seatrial runs show {run.id}")
    return backend_of(handle, environ), handle
