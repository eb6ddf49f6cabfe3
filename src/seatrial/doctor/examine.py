"""Examine the chain from the PCI bus to the cluster: each layer's checks in parallel, with time-outs.

A check behind a broken link is not run. To add one: a function in its layer's file. Other packages add theirs through
the entry point group ``seatrial.checks`` (a Check, or a sequence of them); they run after ours and replace none.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import EntryPoint, entry_points
from typing import NamedTuple

from seatrial.doctor.check import Check, Layer, Verdict, found, unknown
from seatrial.doctor.checks.container import CONTAINER, IMAGE
from seatrial.doctor.checks.engine import ENGINE
from seatrial.doctor.checks.framework import FRAMEWORK
from seatrial.doctor.checks.hardware import DRIVER, HARDWARE
from seatrial.doctor.checks.kubernetes import KUBERNETES
from seatrial.doctor.checks.toolkit import CDI, TOOLKIT
from seatrial.doctor.checks.userspace import USERSPACE
from seatrial.doctor.machine import Machine
from seatrial.findings.finding import FIX, Finding
from seatrial.system.host import Host

ENTRY_POINTS = "seatrial.checks"
#: The layers, in the order in which a GPU needs them.
CHAIN = (HARDWARE, DRIVER, USERSPACE, ENGINE, TOOLKIT, CDI, IMAGE, CONTAINER, FRAMEWORK, KUBERNETES)
#: Layers that need no container, examined in under 1.5 s; ``seatrial run`` examines them when a contract is broken.
HOST = ("hardware", "driver", "userspace", "engine", "toolkit", "cdi")
#: Layers that a process of this machine needs to reach a GPU.
PROCESS = ("hardware", "driver", "userspace")


class Result(NamedTuple):
    """One check and its verdict; ``blocked_by``: ID of the first broken link in front of it."""

    check: Check
    verdict: Verdict
    seconds: float = 0.0
    blocked_by: str | None = None


def examine(
    machine: Machine, layers: Sequence[Layer] = CHAIN, on_layer: Callable[[Layer, list[Result]], None] | None = None
) -> list[Result]:
    """Return every check's result, in the chain's order. Never raises an error of a check."""
    _warm(machine)
    results: dict[str, Result] = {}
    for layer in layers:
        for batch in _batches(layer.checks):
            free = [check for check in batch if _blocker(check, results) is None]
            for check in batch:
                if (blocker := _blocker(check, results)) is not None:
                    results[check.id] = Result(check, Verdict("blocked", f"blocked by {blocker}"), blocked_by=blocker)
            results |= {result.check.id: result for result in _in_parallel(machine, free)}
        if on_layer is not None:
            on_layer(layer, [results[check.id] for check in layer.checks])
    return [results[check.id] for layer in layers for check in layer.checks]


def second_opinion(host: Host, *, in_container: bool = True) -> str:
    """Return the host diagnosis, of engines only ``in_container``, and the next command. Never raises."""
    finding = first_broken(host, HOST if in_container else PROCESS)
    if finding is None and not in_container:
        return "GPU, driver and device nodes of this machine are healthy: look at the script and at its Python"
    if finding is None:
        return "The host side of the chain is healthy. To check the container side: seatrial doctor --image IMAGE"
    fix = f"\n  {FIX}: {finding.fix}" if finding.fix else ""
    return f"First failed check on this host: {finding.message}{fix}"


def first_broken(host: Host, names: Sequence[str] = HOST) -> Finding | None:
    """Return the first problem of the host, in under 1.5 s; None if the host is healthy."""
    results = examine(Machine(host), [layer for layer in CHAIN if layer.name in names])
    broken = next((result.verdict.findings for result in results if result.verdict.status == "broken"), ())
    return next(iter(broken), None)


def _warm(machine: Machine) -> None:
    """Read the slow facts in threads, so that no layer waits long for them: engines 0.3 s each, NVML 0.15 s."""

    def read(fact: str) -> None:
        with suppress(Exception):  # the check that needs it meets the same error, and reports it
            getattr(machine, fact)

    for fact in ("docker_info", "podman_info", "inventory"):
        threading.Thread(target=read, args=(fact,), daemon=True).start()


def _batches(checks: Sequence[Check]) -> list[list[Check]]:
    """Split a layer's checks so that none needs another of its own batch."""
    batches: list[list[Check]] = []
    for check in checks:
        needed = (level for level, batch in enumerate(batches) if any(one.id in check.needs for one in batch))
        if (depth := 1 + max(needed, default=-1)) == len(batches):
            batches.append([])
        batches[depth].append(check)
    return batches


def _blocker(check: Check, results: dict[str, Result]) -> str | None:
    """Return the first broken link that this check needs, directly or through blocked ones."""
    for id in check.needs:
        if result := results.get(id):
            blocker = id if result.verdict.status == "broken" else result.blocked_by
            if blocker is not None:
                return blocker
    return None


def _in_parallel(machine: Machine, checks: list[Check]) -> list[Result]:
    """Run each in a thread of its own. One that does not end is left behind: its thread ends with the process."""
    done: dict[str, Result] = {}
    started = time.monotonic()
    looks = [lambda check=check: done.update({check.id: _look(machine, check)}) for check in checks]
    threads = [threading.Thread(target=look, daemon=True) for look in looks]
    for thread in threads:
        thread.start()
    for check, thread in zip(checks, threads, strict=True):
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
        where = traceback.extract_tb(error.__traceback__)[-1]
        evidence = [f"{check.id}: {type(error).__name__}: {error}", f"{where.filename}:{where.lineno}"]
        crashed = found("check-crashed", evidence, message=f"{check.title}: the check itself failed")
        verdict = replace(crashed, status="unknown")
    if machine.unseen and verdict.status in ("ok", "skipped"):  # never a false green
        paths = ", ".join(dict.fromkeys(machine.unseen))
        verdict = unknown(f"{paths} cannot be read by this user; cannot verify: {check.title}")
    return Result(check, verdict, time.monotonic() - start)


def with_third_party(chain: Sequence[Layer] = CHAIN) -> tuple[Layer, ...]:
    """Return the chain, then the checks of other packages. One that cannot be loaded is a finding of its own."""
    ours = {check.id for layer in chain for check in layer.checks}
    added = [check for entry in entry_points(group=ENTRY_POINTS) for check in _load(entry, ours)]
    return (*chain, Layer("other", "Other checks", added)) if added else tuple(chain)


def _load(entry: EntryPoint, taken: set[str]) -> list[Check]:
    try:
        loaded = entry.load()
        checks = [loaded] if isinstance(loaded, Check) else list(loaded)
        if wrong := [check for check in checks if not isinstance(check, Check) or check.id in taken]:
            raise TypeError(f"{wrong[0]!r:.80} is not a Check with a unique ID")
    except Exception as error:  # noqa: BLE001  any error of another package is its own finding
        evidence = [f"entry point {entry.group}: {entry.name} = {entry.value}", f"{type(error).__name__}: {error}"]
        broken, title = found("check-not-loadable", evidence), f"Checks of {entry.name} load"
        return [Check(f"other.{entry.name}", title, ("check-not-loadable",), lambda machine: broken)]
    taken |= {check.id for check in checks}
    return checks
