"""Serving: the server's own count beside the agent's measurements of the time it served."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from pydantic import Field

from seatrial.job.units import format_bytes, format_seconds
from seatrial.receipt.fields import mapping, number
from seatrial.receipt.formatting import count, energy, energy_short, figure, percent, rate
from seatrial.receipt.section import Bars, Block, Record, Row, Rows, Section

if TYPE_CHECKING:
    from seatrial.receipt.evidence import Evidence, RunEvidence
    from seatrial.receipt.model import Receipt

#: A larger count is not one; a latency or a time above a year is not one.
_MOST_COUNT = 10**15
_MOST_S = 366 * 86400.0

#: Kept of each table; a server that makes up names for ever must not make the receipt grow for ever.
MAX_STATUSES, MAX_SIZES = 16, 64
_STATUS = re.compile(r"[1-5][0-9]{2}|0")
_SIZE = re.compile(r"[1-9][0-9]{0,6}")


class ServedWeights(Record):
    """A file of the served model, as the host read it before the start."""

    path: str
    digest: str
    bytes: int


class BatchCount(Record):
    """The number of batches with so many rows."""

    rows: int
    batches: int


class ServingRecord(Record):
    """The work of a server. Its own count, but for the weights, the energy and the address.

    Attributes:
        model: its name in addresses. source: a recipe, a file, or a class of the user's.
        of_run: the run that made it. reported: the server reported its count; otherwise all counts are zero.
        errors: HTTP status → answers. seconds: since it was ready.
        energy_j: of all GPUs over those seconds, from the agent's samples.
        examples: saved inputs that were compared before the first request. largest_difference: of their outputs.
    """

    model: str
    source: str
    of_run: str | None = None
    weights: tuple[ServedWeights, ...] = ()
    url: str = Field(pattern=r"^http://[^\s\"'<>]+$")
    reported: bool = False
    requests: int = 0
    errors: dict[str, int] = Field(default_factory=dict)
    seconds: float = 0.0
    p50_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None
    batches: tuple[BatchCount, ...] = ()
    queue_peak: int | None = None
    energy_j: float | None = None
    joules_per_1000: float | None = None
    warm_up_s: float | None = None
    examples: int | None = None
    largest_difference: float | None = None


class Serving(Section):
    title = "Serving"
    brief = True

    def read(self, run: RunEvidence) -> dict[str, Any]:
        served, served_model = run.evidence.served, run.plan.job.serve
        if served_model is None:
            return {"serving": None}
        energy_j = None if served is None else _energy_j(run, served)
        counted = served or Served(at_s=0.0, requests=0, seconds=0.0)
        record = ServingRecord(
            model=served_model.name,
            source=served_model.model,
            of_run=served_model.of_run,
            weights=tuple(
                ServedWeights(path=each.path, digest=f"sha256:{each.sha256}", bytes=each.bytes)
                for each in served_model.weights
            ),
            url=served_model.url,
            reported=served is not None,
            requests=counted.requests,
            errors=dict(counted.errors),
            seconds=counted.seconds,
            p50_ms=counted.p50_ms,
            p95_ms=counted.p95_ms,
            p99_ms=counted.p99_ms,
            batches=tuple(BatchCount(rows=size, batches=batches) for size, batches in counted.batches.items()),
            queue_peak=counted.queue_peak,
            energy_j=energy_j,
            joules_per_1000=1000 * energy_j / counted.requests if energy_j is not None and counted.requests else None,
            warm_up_s=counted.warm_up_s,
            examples=counted.examples,
            largest_difference=counted.largest_difference,
        )
        return {"serving": record}

    def blocks(self, receipt: Receipt) -> list[Block]:
        serving = receipt.serving
        if serving is None:
            return []
        named = (("p50", serving.p50_ms), ("p95", serving.p95_ms), ("p99", serving.p99_ms))
        rows = [
            ("model", serving.model + (f" ({serving.source})" if serving.source != serving.model else "")),
            ("made by", serving.of_run and f"run {serving.of_run}"),
            *[("weights", f"{each.path}, {format_bytes(each.bytes)}, {each.digest}") for each in serving.weights],
            ("address", serving.url),
            ("warm-up", _warm_up(serving)),
            ("requests", _requests(serving)),
            ("errors", _errors(serving)),
            ("latency", ", ".join(f"{name} {value:.3g} ms" for name, value in named if value is not None)),
            ("batches", _batches(serving)),
            ("energy", _per_1000(serving)),
            ("counted by", "the server itself; GPU use and energy by the agent" if serving.reported else None),
        ]
        blocks: list[Block] = [Rows([Row(label, value) for label, value in rows if value])]
        if serving.batches:
            blocks.append(Bars("Rows in a batch", "Batches", [(each.rows, each.batches) for each in serving.batches]))
        return blocks


def _warm_up(serving: ServingRecord) -> str | None:
    if not serving.reported or serving.examples is None:
        return None
    if not serving.examples:
        return "no saved outputs to compare with"
    loaded = "" if serving.warm_up_s is None else f"{format_seconds(serving.warm_up_s)}; "
    compared = f"{loaded}{count(serving.examples, 'saved input')} compared with their saved outputs"
    if serving.largest_difference is None:
        return compared
    return f"{compared}, largest difference {serving.largest_difference:.3g}"


def _requests(serving: ServingRecord) -> str:
    if not serving.reported:
        return "no request count: the server never became ready, or its reports were lost"
    often = f", {rate(serving.requests / serving.seconds)} a second" if serving.seconds > 0 else ""
    return f"{figure(serving.requests)} in {format_seconds(serving.seconds)}{often}"


def _errors(serving: ServingRecord) -> str | None:
    if not serving.reported:
        return None
    return ", ".join(f"{answers} × {status}" for status, answers in serving.errors.items()) or "none"


def _batches(serving: ServingRecord) -> str | None:
    total = sum(each.batches for each in serving.batches)
    if not total:
        return None
    rows = sum(each.rows * each.batches for each in serving.batches)
    most = max(serving.batches, key=lambda each: each.batches)
    peak = f", at most {figure(serving.queue_peak)} rows waiting" if serving.queue_peak is not None else ""
    share = percent(100 * most.batches / total)
    return f"{figure(total)}, {rows / total:.1f} rows each on average, most often {most.rows} ({share}){peak}"


def _per_1000(serving: ServingRecord) -> str | None:
    if serving.energy_j is None:
        return None
    each = "" if serving.joules_per_1000 is None else f", {energy_short(serving.joules_per_1000)} for 1,000 requests"
    return f"{energy(serving.energy_j)} of the GPUs while it served{each}"


def _energy_j(run: RunEvidence, served: Served) -> float | None:
    """Integrate the power of all GPUs over the time that it served; None if a GPU has no samples of power.

    The server reports its seconds; they never exceed its target's life by the agent's clock.
    """
    started = run.evidence.target_started
    if started is None or not run.expected:
        return None
    begin_s = max(started.at_s, served.at_s - served.seconds)
    each = [_of_gpu(run.evidence, gpu.uuid, begin_s, served.at_s) for gpu in run.expected]
    known = [joules for joules in each if joules is not None]
    return sum(known) if len(known) == len(each) else None


def _of_gpu(evidence: Evidence, uuid: str, begin_s: float, end_s: float) -> float | None:
    """Integrate watts over seconds by the trapezoidal rule, from the sample before the time to the one after it."""
    points = [(s.at_s, s.gpus[uuid]["power_w"]) for s in evidence.samples if "power_w" in s.gpus.get(uuid, {})]
    if len(points) < 2 or end_s <= begin_s:
        return None
    joules = 0.0
    for (t0, w0), (t1, w1) in pairwise(points):
        share = max(0.0, min(t1, end_s) - max(t0, begin_s))
        joules += share * (w0 + w1) / 2
    covered = min(points[-1][0], end_s) - max(points[0][0], begin_s)
    return joules * (end_s - begin_s) / covered if covered > 0 else None


@dataclass(frozen=True)
class Served:
    """The last report of a server, each number checked or left out.

    Attributes:
        at_s: time of the report, in seconds since the first event. seconds: since the server was ready.
        errors: HTTP status → answers. batches: rows in a batch → batches, smallest first.
    """

    at_s: float
    requests: int
    seconds: float
    errors: Mapping[str, int] = field(default_factory=dict)
    batches: Mapping[int, int] = field(default_factory=dict)
    p50_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None
    queue_peak: int | None = None
    warm_up_s: float | None = None
    examples: int | None = None
    largest_difference: float | None = None


def read_served(lines: Iterable[tuple[float, Mapping[str, Any]]]) -> Served | None:
    """Read the last of (seconds since the first event, ``served`` event) pairs with requests and seconds."""
    for at_s, event in reversed(list(lines)):
        requests, seconds = _count(event.get("requests")), _up_to(event.get("seconds"), _MOST_S)
        if requests is None or seconds is None:
            continue
        p50, p95, p99 = (_up_to(event.get(key), _MOST_S * 1000) for key in ("p50_ms", "p95_ms", "p99_ms"))
        if None not in (p50, p95, p99) and not p50 <= p95 <= p99:  # type: ignore[operator]
            p50 = p95 = p99 = None  # no distribution has such percentiles
        return Served(
            at_s=at_s,
            requests=requests,
            seconds=seconds,
            errors=dict(sorted(_table(event.get("errors"), _STATUS).items())[:MAX_STATUSES]),
            batches=_sizes(event.get("batches")),
            p50_ms=p50,
            p95_ms=p95,
            p99_ms=p99,
            queue_peak=_count(event.get("queue_peak")),
            warm_up_s=_up_to(event.get("warm_up_s"), _MOST_S),
            examples=_count(event.get("examples")),
            largest_difference=_up_to(event.get("largest_difference"), 1e30),
        )
    return None


def _sizes(value: Any) -> dict[int, int]:
    """Return the sizes with the most batches, in order of size."""
    sizes = {int(size): batches for size, batches in _table(value, _SIZE).items()}
    kept = sorted(sizes, key=lambda size: (-sizes[size], size))[:MAX_SIZES]
    return {size: sizes[size] for size in sorted(kept)}


def _table(value: Any, key: re.Pattern[str]) -> dict[str, int]:
    """Return counts above zero under possible names."""
    counted = {name: _count(each) for name, each in mapping(value).items() if key.fullmatch(name)}
    return {name: each for name, each in counted.items() if each}


def _count(value: Any) -> int | None:
    result = number(value)
    return int(result) if result is not None and 0 <= result <= _MOST_COUNT and result == int(result) else None


def _up_to(value: Any, most: float) -> float | None:
    result = number(value)
    return result if result is not None and 0 <= result <= most else None
