"""Actions on one run or on ended ones: stop, remove, exec, copy, verify, prune."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from seatrial.backends import table
from seatrial.backends.base import Backend, Freed, Handle
from seatrial.errors import EngineUnavailableError, SeatrialError, UntrustedPathError, UsageError, fallback
from seatrial.events import Chain, follow_chain
from seatrial.images.plan import slug
from seatrial.runs.leases import backend_of, handle_of, leases, state_of
from seatrial.runs.run import SEAL, Run, Summary, not_covered, seal_changes, seal_of
from seatrial.runs.status import finalise, line_of
from seatrial.runs.store import RunStore
from seatrial.runs.watch import request_stop
from seatrial.system.host import Host
from seatrial.system.nofollow import tree_bytes
from seatrial.system.text import as_typed

if TYPE_CHECKING:
    from seatrial.receipt.model import Receipt

#: A cached step that no build has used for this long belongs to an older state of some project.
IDLE_S = 24 * 3600.0


@dataclass(frozen=True)
class Pruned:
    """Counts the removed runs and their bytes; ``which``: ID and target of each."""

    runs: int
    bytes: int
    which: tuple[str, ...]


class Integrity(NamedTuple):
    """The result of ``verify``: whether all is as it was written, and sentences about it."""

    intact: bool
    sentences: tuple[str, ...]


def stop(run: Run, host: Host, *, kill: bool = False) -> Receipt:
    """End a live run, cleanly or at once, and make its receipt. Raises UsageError when it has already ended."""
    backend, handle = _live(run, host, "nothing is left to stop")
    if kill:
        backend.kill(handle)
    else:
        request_stop(run, backend, handle, run.plan().job.grace_s)
    receipt = finalise(run, host)
    assert receipt is not None, "a backend's stop returns when the run has ended"
    return receipt


def execute(run: Run, argv: list[str], host: Host, *, interactive: bool) -> int:
    """Run a command inside a live run; return its exit code. Raises UsageError: no command, or the run has ended."""
    backend, handle = _live(run, host, "no command can run in it")
    if not argv:
        raise UsageError("The command to run is missing", run=f"seatrial runs exec {run.id} nvidia-smi")
    return backend.exec(handle, argv, interactive=interactive)


def copy_models(run: Run, path: str, destination: Path, host: Host) -> list[str]:
    """Fetch a cluster run's files under /models; return their names. Raises UsageError for other runs."""
    plan = run.plan()
    if plan.cluster is None:
        folder = plan.job.models.source if plan.job.models else plan.job.project
        raise UsageError(f"Files saved by run {run.id} already exist here", run=f"ls {as_typed(folder)}")
    from seatrial.backends.kubernetes.client import Cluster  # of no use to runs on this machine
    from seatrial.backends.kubernetes.objects import fetch

    return fetch(Cluster(host, plan.cluster.context, plan.cluster.namespace), plan.cluster, path, destination)


def remove(store: RunStore, run: Run, host: Host, *, force: bool = False) -> None:
    """Delete an ended run, its logs and receipt; with ``force`` a live one is killed first.

    Forced, a run whose engine is not reachable is forgotten: its container, if any, remains.
    """
    try:
        live = is_live(run, host)
    except EngineUnavailableError as error:
        if not force:
            forget = f"seatrial runs rm --force {run.id}   # forget the run; a container of it stays where it is"
            raise EngineUnavailableError(error.message, cause=error.cause, run=forget) from error
        leases(host).release(run.id)
        store.remove(run)
        return
    if live:
        if not force:
            raise UsageError(
                f"Run {run.id} has not ended", run=f"seatrial runs stop {run.id}   # or: seatrial runs rm -f {run.id}"
            )
        stop(run, host, kill=True)
    elif not run.ended and (handle := run.handle()) is not None:
        backend_of(handle, host).remove(handle)
    store.remove(run)


def is_live(run: Run, host: Host) -> bool:
    """Return whether it is being started or runs. The engine of a finalised one is not queried."""
    if run.ended:
        return False
    handle = handle_of(run, host)
    return run.is_starting() if handle is None else state_of(handle, host).is_live


def prune(store: RunStore, host: Host, *, keep: int, dry_run: bool) -> Pruned:
    """Remove all ended runs but the newest ``keep``; keep those that run or whose engine does not answer."""
    ended = []
    for run in store.all():
        with contextlib.suppress(SeatrialError):
            if not is_live(run, host):
                ended.append(run)
    doomed = ended[: max(0, len(ended) - keep)]
    size_bytes = sum(tree_bytes(folder) for run in doomed for folder in (run.folder, run.place))
    which = tuple(f"{run.id}  {line_of(run, host).target}" for run in doomed)
    if not dry_run:
        for run in doomed:
            remove(store, run, host)
    return Pruned(len(doomed), size_bytes, which)


def _live(run: Run, host: Host, so: str) -> tuple[Backend, Handle]:
    """Find a live run. ``so``: the consequence of an end. Raises UsageError; SeatrialError: its plan is unreadable."""
    run.plan()
    handle = handle_of(run, host)
    if run.is_starting():
        message = f"Run {run.id} is being prepared: its image may be building"
        raise UsageError(message, run="seatrial runs ls   # until it runs; Ctrl-C where it was started ends it")
    if handle is None or not state_of(handle, host).is_live:
        raise UsageError(f"Run {run.id} has ended, so {so}", run=f"seatrial runs show {run.id}")
    return backend_of(handle, host), handle


def verify(run: Run) -> Integrity:
    """Follow the chain to the receipt's seal; compare files with seal.json. Raises UsageError without evidence."""
    try:
        return _verify(run, run.summary())
    except UntrustedPathError as error:  # a file that is none, or has other content
        return _broken(error.message)


def _verify(run: Run, summary: Summary | None) -> Integrity:
    from seatrial.receipt.model import JSON_NAME, MOST_BYTES, load  # not loaded before a run has started

    receipt = run.folder / JSON_NAME
    if summary is not None and _digest(run, JSON_NAME, MOST_BYTES) != summary.receipt:
        return _broken(f"{receipt} {'was changed after it was written' if receipt.exists() else 'is missing'}")
    seal = load(run.folder).seal if summary is not None else None
    try:
        chain = follow_chain(str(run.events_path))
    except FileNotFoundError:
        if seal is not None and seal.lines:
            return _broken(f"{run.events_path} is missing; it had {seal.lines} lines")
        raise UsageError(
            f"Run {run.id} has no evidence: it never started", run=f"seatrial runs show {run.id}"
        ) from None
    except OSError as error:
        return _broken(f"{run.events_path} cannot be read: {error.strerror}")
    if chain.broken_at is not None:
        return _broken(f"line {chain.broken_at} of {run.events_path} was changed after it was written")
    if summary is None:
        return Integrity(True, (f"intact so far: {chain.lines} lines, digest {chain.digest}; the run has not ended",))
    if seal is None or seal.digest != chain.digest:
        closed = f"{seal.lines} lines, digest {seal.digest}" if seal else "nothing"
        return _broken(f"the receipt covers {closed}, but there are {chain.lines} lines, digest {chain.digest}")
    return _verify_files(run, summary, chain)


def _verify_files(run: Run, summary: Summary, chain: Chain) -> Integrity:
    """Compare every file of the record with the seal."""
    intact = f"intact: {chain.lines} lines, digest {chain.digest}"
    sealed = seal_of(run)
    if sealed is None and summary.sealed:
        return _broken(f"{run.folder / SEAL} is missing")
    if sealed is None:
        names = ", ".join(not_covered(run, {"events.jsonl": (0, chain), "receipt.json": (0, chain)}))
        return Integrity(True, (intact, f"not covered, as an earlier version kept no digest: {names}"))
    entries, digest = sealed
    if found := seal_changes(run, entries):
        return _broken(*found)
    later = not_covered(run, entries)
    sentences = [f"{intact}; {len(entries)} files, seal {digest}"]
    sentences += [f"not covered, as written later or above 512 MiB: {', '.join(later)}"] if later else []
    return Integrity(True, tuple(sentences))


@fallback(None, on=(FileNotFoundError, UntrustedPathError))
def _digest(run: Run, name: str, most_bytes: int) -> str | None:
    """Return the digest of a file of the record; None if there is none that can be believed, or it is larger."""
    return run.records.measure(name, max_bytes=most_bytes)[1]


def _broken(*sentences: str) -> Integrity:
    return Integrity(False, tuple(f"broken: {sentence}" for sentence in sentences))


def free_images(project: Path | None, host: Host, *, dry_run: bool) -> dict[str, Freed]:
    """Free images; return engine → the freed. An engine that does not answer is left out.

    ``project``: its own images but the newest, and cached steps that were not used for a day; None: all of ours.
    """
    repository = f"seatrial/{slug(project.name)}" if project is not None else None
    idle_s = IDLE_S if project is not None else 0.0
    freed = {}
    for name in table.on_this_host():
        backend = table.backend(name, host)
        with contextlib.suppress(SeatrialError):
            if backend.images is not None and backend.facts().available:
                freed[name] = backend.images.free_unused(repository=repository, idle_s=idle_s, dry_run=dry_run)
    return freed
