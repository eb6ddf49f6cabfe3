"""Serving: the server's own count and the agent's measurements of the time it served."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Field

from seatrial.job.units import format_bytes, format_seconds
from seatrial.receipt.section import Bars, Block, Record, Row, Rows, Section
from seatrial.receipt.sections.measured import integrated, total
from seatrial.receipt.values import count, energy, energy_short, figure, mapping, number, percent, rate

if TYPE_CHECKING:
    from seatrial.receipt.evidence import Evidence, Moment, RunEvidence
    from seatrial.receipt.model import Receipt

#: A larger count is not one; a latency or a time above a year is not one.
_MOST_COUNT = 10**15
_MOST_S = 366 * 86400.0
#: Kept of each table; a server that makes up names for ever must not make the receipt grow for ever.
MAX_STATUSES, MAX_SIZES = 16, 64
_STATUS = re.compile(r"[1-5][0-9]{2}|0")
_SIZE = re.compile(r"[1-9][0-9]{0,6}")


def _count(value: Any) -> int | None:
    result = number(value)
    return int(result) if result is not None and 0 <= result <= _MOST_COUNT and result == int(result) else None


def _up_to(value: Any, most: float = _MOST_S) -> float | None:
    result = number(value)
    return result if result is not None and 0 <= result <= most else None


def _table(value: Any, key: re.Pattern[str], most: int | None = None) -> dict[str, int]:
    """Return counts above zero under possible names, the first ``most`` in order."""
    counted = sorted((name, _count(each)) for name, each in mapping(value).items() if key.fullmatch(name))
    return dict([(name, each) for name, each in counted if each][:most])


def _sizes(value: Any) -> Any:
    """Return the sizes with the most batches, in order of size; those of a record as they are."""
    if not isinstance(value, dict):
        return value
    sizes = {int(size): batches for size, batches in _table(value, _SIZE).items()}
    kept = sorted(sizes, key=lambda size: (-sizes[size], size))[:MAX_SIZES]
    return [BatchCount(rows=size, batches=sizes[size]) for size in sorted(kept)]


# The types of the record check a server's reports; impossible values are left out.
Count = Annotated[int | None, BeforeValidator(_count)]
Seconds = Annotated[float | None, BeforeValidator(_up_to)]
Milliseconds = Annotated[float | None, BeforeValidator(lambda value: _up_to(value, 1000 * _MOST_S))]
Statuses = Annotated[dict[str, int], BeforeValidator(lambda value: _table(value, _STATUS, MAX_STATUSES))]


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
        model: its name in addresses. source: a recipe or a file.
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
    errors: Statuses = Field(default_factory=dict)
    seconds: float = 0.0
    p50_ms: Milliseconds = None
    p95_ms: Milliseconds = None
    p99_ms: Milliseconds = None
    batches: Annotated[tuple[BatchCount, ...], BeforeValidator(_sizes)] = ()
    queue_peak: Count = None
    energy_j: float | None = None
    joules_per_1000: float | None = None
    warm_up_s: Seconds = None
    examples: Count = None
    largest_difference: Annotated[float | None, BeforeValidator(lambda value: _up_to(value, 1e30))] = None


class ServingSection(Section):
    title = "Serving"
    brief = True

    def read(self, run: RunEvidence) -> dict[str, Any]:
        served, model = run.evidence.served, run.plan.job.serve
        if model is None:
            return {"serving": None}
        keys = {"requests": 0, "seconds": 0.0, **(served.keys if served else {})}
        times = [_up_to(keys.get(key), 1000 * _MOST_S) or 0.0 for key in ("p50_ms", "p95_ms", "p99_ms")]
        if 0.0 not in times and times != sorted(times):  # no distribution has such percentiles
            keys |= dict.fromkeys(("p50_ms", "p95_ms", "p99_ms"))
        keys["batches"] = mapping(keys.get("batches"))
        energy_j = None if served is None else _energy_j(run, served)
        weights = [
            ServedWeights(path=each.path, digest=f"sha256:{each.sha256}", bytes=each.bytes) for each in model.weights
        ]
        known = {"model": model.name, "source": model.model, "of_run": model.of_run, "url": model.url,
                 "weights": weights, "reported": served is not None, "energy_j": energy_j}  # fmt: skip
        each_j = 1000 * energy_j / keys["requests"] if energy_j is not None and keys["requests"] else None
        return {"serving": ServingRecord.model_validate({**keys, **known, "joules_per_1000": each_j})}

    def blocks(self, receipt: Receipt) -> list[Block]:
        if (serving := receipt.serving) is None:
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
    if not (total := sum(each.batches for each in serving.batches)):
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


def last_report(reports: Iterable[Moment]) -> Moment | None:
    """Return the last report of a server that has possible requests and seconds."""
    for report in reversed(list(reports)):
        if _count(report.keys.get("requests")) is not None and _up_to(report.keys.get("seconds")) is not None:
            return report
    return None


def ready_s(run: Evidence, served: Moment) -> float:
    """Return when the server was ready: the time that it reports never exceeds its target's life."""
    started_s = run.target_started.at_s if run.target_started else 0.0
    return max(started_s, served.at_s - (served.number("seconds") or 0.0))


def _energy_j(run: RunEvidence, served: Moment) -> float | None:
    """Integrate the power of all GPUs over the time that it served; None if a GPU has no samples of power."""
    if run.evidence.target_started is None or not run.expected:
        return None
    begin_s = ready_s(run.evidence, served)
    return total(_of_gpu(run.evidence, gpu.uuid, begin_s, served.at_s) for gpu in run.expected)


def _of_gpu(evidence: Evidence, uuid: str, begin_s: float, end_s: float) -> float | None:
    """Integrate the power of a GPU, from the sample before the time to the one after it."""
    points = [(min(max(at_s, begin_s), end_s), watts) for at_s, watts in evidence.power(uuid)]
    covered = points[-1][0] - points[0][0] if points else 0.0
    return (integrated(points) or 0.0) * (end_s - begin_s) / covered if covered > 0 else None
