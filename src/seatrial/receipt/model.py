"""Receipt: a run, its work, and the verdict on the request.

This file reads receipt.json back, and removes the names that it must not show. The functions at the end return a
receipt in a few words: its heading, its sentence, and the most important numbers.

A new section is a class in sections/, its key below, and a line in SECTIONS.
"""

from __future__ import annotations

import importlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from pydantic import Field, computed_field

from seatrial.errors import RunNotFoundError
from seatrial.job.model import Job
from seatrial.job.units import format_seconds
from seatrial.receipt.outcome import DOUBTFUL, ExitCause, LogEnd, Outcome, make_outcome
from seatrial.receipt.reported import headline_metrics
from seatrial.receipt.section import Block, FindingRecord, JudgedCriteria, Plot, Record, Row, Section
from seatrial.receipt.sections import what_ran
from seatrial.receipt.sections.criteria import CriteriaSection
from seatrial.receipt.sections.curves import Curves
from seatrial.receipt.sections.findings import FindingsSection, WhyItFailed
from seatrial.receipt.sections.gpu_contract import GpuContract
from seatrial.receipt.sections.measured import MeasuredSection, Measurements
from seatrial.receipt.sections.serving import ServingRecord, ServingSection
from seatrial.receipt.sections.steps import Bound, DiagnosisRecord, StepAnatomy, Steps
from seatrial.receipt.sections.trust import ALTERABLE, Seal, Trust
from seatrial.receipt.sections.tune import ChangesRecord, Tune, TuneRecord
from seatrial.receipt.values import energy_short, figure, percent, quote, rate
from seatrial.system.host import Host
from seatrial.system.names import Names, names_of, secret_words
from seatrial.system.records import Folder

SCHEMA_VERSION = 1

#: All sections in the order of the page.
SECTIONS: tuple[Section, ...] = (
    Trust(),
    WhyItFailed(),
    FindingsSection(),
    GpuContract(),
    CriteriaSection(),
    Bound(),
    ServingSection(),
    Tune(),
    Steps(),
    Curves(),
    MeasuredSection(),
    what_ran.WhatRan(),
    what_ran.TrackersSection(),
    what_ran.TimelineSection(),
)

#: Sections that text has in front of the others, in this order.
_FIRST_IN_TEXT = (what_ran.WhatRan, CriteriaSection, FindingsSection)
#: Largest receipt that is read back; one of eight GPUs and a week has 2 MB. JSON takes up to forty times its size.
MOST_BYTES = 4 << 20

JSON_NAME = "receipt.json"
MARKDOWN_NAME = "receipt.md"
HTML_NAME = "receipt.html"

#: Keys whose values are of a fixed set, or an address: none holds a name, and none may change.
FIXED = frozenset((
    "backend", "container_id", "device", "digest", "energy_from", "engine", "git_commit", "id", "injection",
    "pci_bus_id", "pod_uid", "run_id", "severity", "uuid", "verdict", "x",
))  # fmt: skip

_Tile = tuple[str, float | None, Callable[[float], str]]


class Receipt(Record):
    """The receipt.

    Attributes:
        seal: None in older receipts.
        exit_code: of the command line for this run; see judge.py for the rule.
        serving: of a run that served a model.
        tune: of a run that tried changes. changes: those that the run made to the script from outside.
        ending: the end of a failed run's logs.
        pages: of trackers that were up when it ended.
        warnings: sentences that no reader may miss: CPU instead of GPU, lines that could not be read, clock jumps.
    """

    schema_version: int = SCHEMA_VERSION
    header: what_ran.Header
    seal: Seal | None = None
    exit_cause: ExitCause
    exit_code: int
    ending: LogEnd | None = None
    warnings: tuple[str, ...] = ()
    criteria: JudgedCriteria
    findings: tuple[FindingRecord, ...] = ()
    diagnosis: DiagnosisRecord | None = None
    anatomy: tuple[StepAnatomy, ...] = ()
    measurements: Measurements
    serving: ServingRecord | None = None
    tune: TuneRecord | None = None
    changes: ChangesRecord | None = None
    timeline: tuple[what_ran.Entry, ...] = ()
    plots: tuple[Plot, ...] = Field(default=(), repr=False)
    pages: tuple[what_ran.TrackerPage, ...] = ()

    @computed_field  # type: ignore[prop-decorator]  # mypy issue 1362
    @property
    def outcome(self) -> Outcome:
        """Return the headline. Computed whenever it is read, so older receipts have one, too."""
        return make_outcome(self)

    @property
    def doubtful(self) -> bool:
        """Return True if the run ended with 0 and by its own words did nothing, or failed."""
        return any(finding.id in DOUBTFUL for finding in self.findings)

    @property
    def shown_findings(self) -> tuple[FindingRecord, ...]:
        """Return the findings, notes last, without lines of evidence that the headline quotes."""
        words, found = self.outcome.words, sorted(self.findings, key=lambda each: each.severity == "info")
        new = [tuple(e for e in each.evidence if quote(e) not in words or not e.endswith(quote(e))) for each in found]
        return tuple(each.changed(evidence=evidence) for each, evidence in zip(found, new, strict=True))

    def sections(self, *, in_text: bool = False) -> Iterator[tuple[Section, list[Block]]]:
        """Yield the sections that have something to show, in the order of the page or of a text."""
        first = [section for kind in _FIRST_IN_TEXT for section in SECTIONS if isinstance(section, kind)]
        order = [*first, *(section for section in SECTIONS if section not in first)] if in_text else SECTIONS
        for section in order:
            if blocks := section.blocks(self):
                yield section, blocks

    def metrics(self, name: str) -> Series:
        """Return the curve of a reported or measured number: ``metrics("loss").values``.

        The target's own numbers are also found without ``train_`` in front. Raises KeyError with the known curves.
        """
        lines = [(plot, line) for plot in self.plots for line in plot.lines]
        for wanted in (name, f"train_{name}"):
            for plot, line in lines:
                if line.name == wanted:
                    at, values = zip(*line.points, strict=True) if line.points else ((), ())
                    return Series(line.name, plot.x, plot.unit, _array(at), _array(values))
        known = ", ".join(dict.fromkeys(line.name for _, line in lines)) or "none"
        raise KeyError(f"{name!r}; this receipt has curves of: {known}")

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame with a row for each point: plot, name, x (the unit of ``at``), at, value, unit."""
        rows = [
            {"plot": plot.id, "name": line.name, "x": plot.x, "at": at, "value": value, "unit": plot.unit}
            for plot in self.plots
            for line in plot.lines
            for at, value in line.points
        ]
        return importlib.import_module("pandas").DataFrame(rows)

    def _repr_markdown_(self) -> str:
        """Show the receipt in a notebook that has no HTML."""
        return str(importlib.import_module("seatrial.receipt.render.markdown").render(self))

    def _repr_html_(self) -> str:
        """Show the page in a frame of its own: its styles are not the notebook's."""
        page = importlib.import_module("seatrial.receipt.render.pages").render(self)
        style = "width:100%;height:40em;border:1px solid #8886;border-radius:6px"
        return f'<iframe srcdoc="{escape(page)}" style="{style}" title="Receipt {escape(self.header.run_id)}"></iframe>'


class Series(NamedTuple):
    """One number over time: at most 400 points, the lowest and highest of each stretch among them.

    Attributes:
        name: e.g. ``loss``. x: unit of ``at``: seconds, step, epoch, line or rate.
        at, values: numpy arrays of float64 if numpy is installed, else arrays of the standard library.
    """

    name: str
    x: str
    unit: str
    at: Any
    values: Any


def _array(values: Sequence[float]) -> Any:
    try:
        return importlib.import_module("numpy").asarray(values, dtype="float64")
    except ModuleNotFoundError:
        return array("d", values)


def load(run_dir: Path) -> Receipt:
    """Read the receipt of a run. Raises RunNotFoundError for a missing file, UntrustedPathError for no receipt."""
    verify = f"seatrial runs verify {run_dir.name}"
    try:
        return Folder(run_dir).get(JSON_NAME, Receipt, max_bytes=MOST_BYTES, run=verify)
    except FileNotFoundError:
        message = f"Run {run_dir.name} has no receipt: {JSON_NAME} is missing"
        raise RunNotFoundError(message, cause="the run has not ended, or the file was deleted", run=verify) from None


def without_names(receipt: Receipt, job: Job) -> Receipt:
    """Remove the job's secrets from every text, and host, user and home folder unless the job keeps them."""
    hosts = [host for host in (*(receipt.header.host or "").split(", "), *job.hosts) if host]
    names = names_of(Host(), secrets=job.secrets, hosts=hosts)
    names = replace(names, secrets=(*names.secrets, *secret_words(job.target.args)))
    return scrubbed(receipt, Names(secrets=names.secrets) if job.with_names else names)


def scrubbed(receipt: Receipt, names: Names) -> Receipt:
    """Remove ``names``, and the host if it is one of them."""
    content = names.scrub(receipt.model_dump(), keep=FIXED)
    if names.hosts:
        content["header"]["host"] = None
    for item in (*content["criteria"], *content["findings"], *content["plots"]):
        item["id"] = names.text(item["id"])  # it may contain a metric's name, which is the script's
    return Receipt.model_validate(content)


def headline(receipt: Receipt) -> str:
    """Return ``mnist · docker · 1 × NVIDIA H200``."""
    header = receipt.header
    tuned = " · tuned" if receipt.changes is not None and receipt.changes.applied else ""
    return f"{header.target} · {header.backend} · {what_ran.device_in_words(header)}{tuned}"


def ending(receipt: Receipt) -> str:
    """Return ``Passed. Finished in 33 s; 5 criteria met``."""
    return receipt.outcome.sentence + exit_words(receipt)


def exit_words(receipt: Receipt) -> str:
    """Return `` (seatrial exits with 1)``; "" for an exit code of 0 that nothing would change."""
    footnote = receipt.outcome.footnote
    if not receipt.exit_code and not footnote:
        return ""
    return f" (seatrial exits with {receipt.exit_code}{f'; {footnote}' if footnote else ''})"


def warnings(receipt: Receipt) -> list[str]:
    """Return the warnings to show. Each local run's evidence could be altered: the row about evidence has that."""
    usual = receipt.header.backend == "local"
    return [warning for warning in receipt.warnings if not (usual and warning.startswith(ALTERABLE))]


def numbers(receipt: Receipt) -> list[str]:
    """Return three at most: how long, how well, how busy or how fast."""
    measured = receipt.measurements
    found = [] if measured.wall_s is None else [format_seconds(measured.wall_s)]
    metrics = {metric.name: metric for metric in measured.metrics}
    required = [c.id.removeprefix("metric-") for c in receipt.criteria if c.id.startswith("metric-")]
    name = next((name for name in (*required, *reversed(headline_metrics(metrics))) if name in metrics), None)
    if name is not None:
        last = float(metrics[name].ended_as or metrics[name].last)
        found.append(f"{name} {last:.4g}" + (" %" if metrics[name].unit else ""))
    busy = [use.utilization_mean_pct for use in measured.gpus if use.utilization_mean_pct is not None]
    steps = [each.examples_per_s for each in receipt.anatomy if each.examples_per_s]
    if busy:
        found.append(f"GPU {percent(sum(busy) / len(busy))} busy")
    elif measured.images_per_s:
        found.append(f"{measured.images_per_s:,.0f} examples/s")
    elif steps:
        found.append(f"{sum(steps):,.0f} examples/s")
    return found


def tiles(receipt: Receipt) -> list[Row]:
    """Return the first numbers of a page; of several GPUs their mean."""
    measured, serving = receipt.measurements, receipt.serving
    utilization = [use.utilization_mean_pct for use in measured.gpus if use.utilization_mean_pct is not None]
    sm_activity = [use.sm_activity_mean_pct for use in measured.gpus if use.sm_activity_mean_pct is not None]
    last = {metric.name: float(metric.ended_as or metric.last) for metric in measured.metrics}
    units = {metric.name: f", {metric.unit}" for metric in measured.metrics if metric.unit}
    loss, accuracy = headline_metrics(last)
    steps = receipt.anatomy[0] if receipt.anatomy else None
    of_rank = ", rank 0" if len(receipt.anatomy) > 1 else ""
    ms, served = "{:.3g} ms".format, list[_Tile]()
    if serving is not None and serving.reported:
        served = [("requests", serving.requests, figure), ("p50", serving.p50_ms, ms), ("p99", serving.p99_ms, ms)]
        served.append(("for 1,000 requests", serving.joules_per_1000, energy_short))
    found: list[_Tile] = [
        (accuracy.replace("_", " ") + units.get(accuracy, ""), last.get(accuracy), _four_digits),
        (loss.replace("_", " "), last.get(loss), _four_digits),
        ("wall time", measured.wall_s, format_seconds),
        ("GPU utilisation", fmean(utilization) if utilization else None, percent),
        ("SM activity", fmean(sm_activity) if sm_activity else None, percent),
        *served,
        (f"steps/s{of_rank}", steps.steps_per_s if steps else None, rate),
        (f"examples/s{of_rank}", steps.examples_per_s if steps else None, rate),
        ("examples/s", measured.images_per_s, lambda value: figure(round(value))),
        ("energy", measured.energy_j, energy_short),
    ]
    return [Row(label, words(value)) for label, value, words in found if value is not None]


def _four_digits(value: float) -> str:
    return figure(float(f"{value:.4g}"))
