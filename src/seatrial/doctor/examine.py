"""Walk the chain: each layer's checks side by side, each with its time-out, none that stands behind a broken link."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from seatrial.doctor.chain import CHAIN, HOST, PROCESS, Layer
from seatrial.doctor.check import Check, Verdict, found, unknown
from seatrial.doctor.facts.machine import Machine
from seatrial.findings.finding import FIX, Finding
from seatrial.system.host import Host


@dataclass(frozen=True)
class Result:
    """One check and what it saw.

    Attributes:
        blocked_by: ID of the first broken link in front of it, for a blocked one.
    """

    check: Check
    verdict: Verdict
    seconds: float = 0.0
    blocked_by: str | None = None


def examine(
    machine: Machine, layers: Sequence[Layer] = CHAIN, on_layer: Callable[[Layer, list[Result]], None] | None = None
) -> list[Result]:
    """Every check's result, in the chain's order. Never raises for what a check does."""
    _warm(machine)
    results: dict[str, Result] = {}
    for layer in layers:
        for batch in _batches(layer.checks):
            free = [check for check in batch if _blocker(check, results) is None]
            for check in batch:
                if (blocker := _blocker(check, results)) is not None:
                    results[check.id] = Result(check, Verdict("blocked", f"blocked by {blocker}"), blocked_by=blocker)
            for result in _side_by_side(machine, free):
                results[result.check.id] = result
        if on_layer is not None:
            on_layer(layer, [results[check.id] for check in layer.checks])
    return [results[check.id] for layer in layers for check in layer.checks]


def second_opinion(host: Host, *, in_container: bool = True) -> str:
    """What a run whose GPU contract failed says of the host, and where to look next. Never raises.

    Args:
        in_container: without one, container engines have no part in it.
    """
    finding = first_broken(host, HOST if in_container else PROCESS)
    if finding is None and not in_container:
        return "GPU, driver and device nodes of this machine are healthy: look at the script and at its Python"
    if finding is None:
        return "The host side of the chain is healthy. To check the container side: seatrial doctor --image IMAGE"
    fix = f"\n  {FIX}: {finding.fix}" if finding.fix else ""
    return f"First failed check on this host: {finding.message}{fix}\n  all: seatrial doctor"


def first_broken(host: Host, names: Sequence[str] = HOST) -> Finding | None:
    """What is broken first on the host, in under 1.5 s; None when the host is healthy."""
    layers = [layer for layer in CHAIN if layer.name in names]
    broken = (result for result in examine(Machine(host), layers) if result.verdict.status == "broken")
    result = next(broken, None)
    return result.verdict.findings[0] if result is not None and result.verdict.findings else None


def _warm(machine: Machine) -> None:
    """Start the slow questions now, so that no layer waits long for them: engines 0.3 s each, NVML 0.15 s."""
    for ask in (
        lambda: machine.docker_info,
        lambda: machine.podman_info,
        lambda: machine.inventory,
    ):
        threading.Thread(target=_quietly, args=(ask,), daemon=True).start()


def _quietly(ask: Callable[[], object]) -> None:
    try:
        ask()
    except Exception:  # noqa: BLE001  the check that needs it meets the same error, and tells it
        pass


def _batches(checks: tuple[Check, ...]) -> list[list[Check]]:
    """Checks of one layer such that none needs another of its own batch."""
    batches: list[list[Check]] = []
    for check in checks:
        depth = 0
        for level, batch in enumerate(batches):
            if any(one.id in check.needs for one in batch):
                depth = level + 1
        if depth == len(batches):
            batches.append([])
        batches[depth].append(check)
    return batches


def _blocker(check: Check, results: dict[str, Result]) -> str | None:
    """The first broken link among what this check needs, seen through other blocked ones."""
    for id in check.needs:
        result = results.get(id)
        if result is None:
            continue
        if result.verdict.status == "broken":
            return id
        if result.blocked_by is not None:
            return result.blocked_by
    return None


def _side_by_side(machine: Machine, checks: list[Check]) -> list[Result]:
    """Each in a thread of its own. One that does not end is left behind: its thread ends with the process."""
    done: dict[str, Result] = {}
    started = time.monotonic()
    threads = []
    for check in checks:
        thread = threading.Thread(
            target=lambda check=check: done.update({check.id: _look(machine, check)}), daemon=True
        )
        thread.start()
        threads.append((check, thread))
    for check, thread in threads:
        thread.join(max(0.0, started + check.timeout_s - time.monotonic()))
    return [done.get(check.id) or _timed_out(check) for check in checks]


def _timed_out(check: Check) -> Result:
    evidence = [f"{check.id}: no response within {check.timeout_s:g} s"]
    verdict = found("check-timed-out", evidence, message=f"{check.title}: no response within {check.timeout_s:g} s")
    return Result(check, replace(verdict, status="unknown"), check.timeout_s)


def _look(machine: Machine, check: Check) -> Result:
    machine.unseen.clear()
    start = time.monotonic()
    try:
        verdict = check.look(machine)
    except Exception as error:  # noqa: BLE001  a check that crashes must not take the others with it
        verdict = _crashed(check, error)
    if machine.unseen and verdict.status in ("ok", "skipped"):  # never a false green
        paths = ", ".join(dict.fromkeys(machine.unseen))
        verdict = unknown(f"{paths} cannot be read by this user; cannot verify: {check.title}")
    return Result(check, verdict, time.monotonic() - start)


def _crashed(check: Check, error: Exception) -> Verdict:
    where = traceback.extract_tb(error.__traceback__)[-1]
    evidence = [f"{check.id}: {type(error).__name__}: {error}", f"{where.filename}:{where.lineno}"]
    verdict = found("check-crashed", evidence, message=f"{check.title}: the check itself failed")
    return replace(verdict, status="unknown")
