"""Judge an ended run, write its receipt, and give back what it held."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from seatrial import events
from seatrial.backends import table
from seatrial.backends.base import State
from seatrial.errors import DiskError
from seatrial.events import AgentFinished, HostState, follow_chain
from seatrial.job.plan import Gpu, Plan
from seatrial.receipt.judge import judge, write_receipt
from seatrial.receipt.model import JSON_NAME, Receipt
from seatrial.runs import notify
from seatrial.runs.leases import backend_of, give_back, handle_of, leases, state_of
from seatrial.runs.run import SUMMARY, Run, Summary, run_name, write_seal
from seatrial.runs.trackers import tracker_pages
from seatrial.system.host import Host
from seatrial.system.records import encoded
from seatrial.system.text import as_typed

#: What an event has of the engine's last word.
_OF_STATE = ("status", "exit_code", "oom_killed", "error", "seconds")


def end(run: Run, host: Host, *, ended: State | None, judged: Callable[[Receipt], None]) -> Receipt | None:
    """Make the receipt of a run that has none; None while it lives. The caller has the run's lock. See finalise."""
    handle = handle_of(run, host)
    if ended is not None and (ended.is_live or ended.status == "gone" or not run.has(AgentFinished)):
        ended = None  # the agent's last line is missing: there may be more to collect
    state = ended or (state_of(handle, host) if handle else None)
    if (state is not None and state.is_live) or run.is_starting():
        return None
    plan, last = run.plan(), next((event for event in run.find(HostState) if event["source"] == "host"), {})
    # The state left by a process that collected the whole run and got no further.
    recorded = State(**{key: last[key] for key in _OF_STATE if key in last}) if "status" in last else None
    if recorded is None and ended is None and handle is not None:
        with backend_of(handle, host).collect(handle, run.folder, lambda line: None):
            pass  # the rest of it comes before it is judged
    if recorded is None and state is not None:
        known = {key: value for key in _OF_STATE if (value := getattr(state, key)) is not None}
        run.record(HostState(**{"exit_code": None, **known}))
    state = recorded or state  # by now the engine may have forgotten the container
    evidence, skipped = run.events()
    plan = with_discovered_gpus(plan, evidence)
    store = table.backend(plan.backend, host, plan.engine).images
    image = store.image(plan.image.tag) if store and plan.image and handle else None
    chain = follow_chain(str(run.events_path)) if run.events_path.exists() else None
    folder, now = run.folder, time.time()
    receipt = judge(
        plan, evidence, skipped_lines=skipped, state=state, run_dir=folder, now=now, image=image, chain=chain
    )
    receipt = receipt.changed(pages=tuple(tracker_pages(plan)))
    try:
        write_receipt(run.folder, receipt)
        leases(host).release(run.id)
        judged(receipt)
        give_back(run, host)
        if handle is not None and not handle.composed:
            backend_of(handle, host).remove(handle)
        # Last: a run with a summary has ended, and its container, secrets and GPUs are not looked for any more.
        summary = encoded(_summary(run, plan, receipt))
        write_seal(run, summary)
        run.records.write(SUMMARY, summary)
    except DiskError as error:
        how = receipt.exit_cause.words
        cause = f"The run ended anyway: {how}. Its receipt will be written once there is disk space"
        show = f"df -h {as_typed(run.folder)}; seatrial runs show {run.id}"
        raise DiskError(error.message, cause=cause, run=show) from error
    run.show_receipt()
    notify.begin(run, receipt, host)
    return receipt


def _summary(run: Run, plan: Plan, receipt: Receipt) -> Summary:
    return Summary(
        id=run.id,
        name=run_name(run),
        target=receipt.header.target,
        backend=receipt.header.backend,
        engine=plan.engine_endpoint,
        gpus=max(len(receipt.header.gpus), receipt.header.gpus_asked or 0),
        exit_code=receipt.exit_code,
        outcome=receipt.exit_cause.words,
        cause=receipt.exit_cause.id,
        headline=receipt.outcome.brief,
        level=receipt.outcome.level,
        seconds=receipt.measurements.wall_s,
        metrics={metric.name: metric.last for metric in receipt.measurements.metrics},
        percent=tuple(metric.name for metric in receipt.measurements.metrics if metric.unit == "%"),
        receipt=run.records.measure(JSON_NAME)[1],
        sealed=True,
    )


def with_discovered_gpus(plan: Plan, evidence: list[dict[str, Any]]) -> Plan:
    """Add the GPUs that the agents took to a plan that names none: the first of each node, as agents hide more."""
    if plan.agent.gpu_count is None:
        return plan
    found: dict[str, Gpu] = {}
    for check in events.of_type(evidence, events.GpuCheck):
        for entry in (check.get("visible") or [])[: plan.agent.gpu_count]:
            if isinstance(entry, dict) and entry.get("uuid"):
                uuid, name = str(entry["uuid"]), str(entry.get("name") or "GPU")
                index, size = int(entry.get("index") or 0), int(entry.get("memory_bytes") or 0)
                capability = entry.get("compute_capability")
                gpu = Gpu(index=index, uuid=uuid, name=name, memory_bytes=size, compute_capability=capability)
                found.setdefault(uuid, gpu)
    gpus = tuple(found.values())
    return plan.changed(gpus=gpus, agent=plan.agent._replace(gpus=gpus))
