"""The serving section of a receipt: the server's own count beside what the agent measured while it served."""

from __future__ import annotations

from itertools import pairwise

from seatrial.receipt.evidence.facts import Evidence
from seatrial.receipt.evidence.served import Served
from seatrial.receipt.judging.judging_input import Case
from seatrial.receipt.model import BatchCount, ServedWeights, ServingRecord


def serving_of(case: Case) -> ServingRecord | None:
    """None for a run that serves nothing."""
    asked, told = case.plan.job.serve, case.evidence.served
    if asked is None:
        return None
    energy_j = None if told is None else _energy_j(case, told)
    told = told or Served(at_s=0.0, requests=0, seconds=0.0)
    return ServingRecord(
        model=asked.name,
        source=asked.model,
        of_run=asked.of_run,
        weights=tuple(
            ServedWeights(path=each.path, digest=f"sha256:{each.sha256}", bytes=each.bytes) for each in asked.weights
        ),
        url=asked.url,
        reported=case.evidence.served is not None,
        requests=told.requests,
        errors=dict(told.errors),
        seconds=told.seconds,
        p50_ms=told.p50_ms,
        p95_ms=told.p95_ms,
        p99_ms=told.p99_ms,
        batches=tuple(BatchCount(rows=size, batches=count) for size, count in told.batches.items()),
        queue_peak=told.queue_peak,
        energy_j=energy_j,
        joules_per_1000=1000 * energy_j / told.requests if energy_j is not None and told.requests else None,
        warm_up_s=told.warm_up_s,
        examples=told.examples,
        largest_difference=told.largest_difference,
    )


def _energy_j(case: Case, told: Served) -> float | None:
    """Joules of all GPUs while it served, integrated from the agent's samples of power; None where one has none.

    The server says how long; never longer than its target lived, by the agent's clock.
    """
    started = case.evidence.target_started
    if started is None or not case.expected:
        return None
    begin_s = max(started.at_s, told.at_s - told.seconds)
    each = [_of_gpu(case.evidence, gpu.uuid, begin_s, told.at_s) for gpu in case.expected]
    known = [joules for joules in each if joules is not None]
    return sum(known) if len(known) == len(each) else None


def _of_gpu(evidence: Evidence, uuid: str, begin_s: float, end_s: float) -> float | None:
    """Watts over seconds by the trapezoidal rule, from the sample before the time to the one after it."""
    points = [(s.at_s, s.gpus[uuid]["power_w"]) for s in evidence.samples if "power_w" in s.gpus.get(uuid, {})]
    if len(points) < 2 or end_s <= begin_s:
        return None
    joules = 0.0
    for (t0, w0), (t1, w1) in pairwise(points):
        share = max(0.0, min(t1, end_s) - max(t0, begin_s))
        joules += share * (w0 + w1) / 2
    covered = min(points[-1][0], end_s) - max(points[0][0], begin_s)
    return joules * (end_s - begin_s) / covered if covered > 0 else None
