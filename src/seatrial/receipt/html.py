"""The receipt as one HTML file: no script, nothing loaded, light or dark as the reader's system is.

Everything a run printed or named is escaped; docs/decisions/0004-receipt-plots.md says why the plots are drawn here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timezone
from html import escape
from importlib import resources
from statistics import fmean

from seatrial.job.units import format_seconds
from seatrial.receipt.model import Criterion, FindingRecord, Receipt
from seatrial.receipt.rows import Row, diagnosis_rows, header_rows, headline, measured_rows, metric_rows
from seatrial.receipt.svg import draw, legend
from seatrial.receipt.words import energy_short, figure, percent

_VERDICTS = {"pass": ("pass", "✓ pass"), "fail": ("fail", "✗ fail"), "not judged": ("none", "not judged")}

#: The page may load nothing and run nothing, whatever got into it.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def render(receipt: Receipt) -> str:
    """The whole page."""
    css = resources.files("seatrial.receipt").joinpath("page.css").read_text(encoding="utf-8")
    title = escape(headline(receipt))
    metrics = metric_rows(receipt)
    body = [
        _header(receipt),
        _section("Criteria", map(_criterion, receipt.criteria)),
        _section("Findings", map(_finding, receipt.findings)),
        _section("Diagnosis", _facts(diagnosis_rows(receipt))),
        _section("Plots", ['<div class="plots">', *_plots(receipt), "</div>"] if receipt.plots else []),
        _section("Measured", _facts(measured_rows(receipt))),
        _section("Reported by the script", _facts(metrics)),
        _section("What ran", _facts(header_rows(receipt))),
        _section("Timeline", _timeline(receipt)),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title} · receipt</title>\n<style>\n{css}</style></head>\n<body><main>\n"
        + "\n".join(part for part in body if part)
        + "\n</main></body></html>\n"
    )


def _header(receipt: Receipt) -> str:
    kind, words = ("pass", "✓ passed") if receipt.passed else ("fail", "✗ not passed")
    when = datetime.fromtimestamp(receipt.header.judged_at, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    notices = "".join(f'<p class="notice">{escape(warning)}</p>' for warning in receipt.warnings)
    tiles = "".join(f'<div class="tile"><b>{escape(v)}</b><span>{escape(k)}</span></div>' for k, v in _tiles(receipt))
    return (
        f'<header><div class="brand"><span>seatrial receipt</span><span>{escape(receipt.header.run_id)} · {when}</span>'
        f'</div><h1>{escape(headline(receipt))}</h1><p class="cause"><span class="badge {kind}">{words}</span> '
        f"{escape(receipt.exit_cause.words)} (seatrial exits with {receipt.exit_code})</p>{notices}"
        + (f'<div class="tiles">{tiles}</div>' if tiles else "")
        + "</header>"
    )


def _tiles(receipt: Receipt) -> list[Row]:
    """The few numbers one looks for first; of several GPUs their mean."""
    measured = receipt.measurements
    utilization = [use.utilization_mean_pct for use in measured.gpus if use.utilization_mean_pct is not None]
    sm_activity = [use.sm_activity_mean_pct for use in measured.gpus if use.sm_activity_mean_pct is not None]
    accuracy = next((m for m in measured.metrics if m.name in ("test_accuracy", "accuracy", "val_accuracy")), None)
    tiles: list[tuple[str, float | None, Callable[[float], str]]] = [
        ("wall time", measured.wall_s, format_seconds),
        ("GPU utilisation", fmean(utilization) if utilization else None, percent),
        ("SM activity", fmean(sm_activity) if sm_activity else None, percent),
        ("images/s", measured.images_per_s, lambda value: figure(round(value))),
        (accuracy.name.replace("_", " ") if accuracy else "", accuracy.last if accuracy else None, figure),
        ("energy", measured.energy_j, energy_short),
    ]
    return [Row(label, words(value)) for label, value, words in tiles if value is not None]


def _section(title: str, lines: Iterable[str]) -> str:
    content = "\n".join(lines)
    return f"<section><h2>{title}</h2>\n{content}</section>" if content else ""


def _facts(rows: Iterable[Row]) -> list[str]:
    lines = [f"<dt>{escape(label)}</dt><dd>{escape(value)}</dd>" for label, value in rows]
    return ["<dl>", *lines, "</dl>"] if lines else []


def _criterion(criterion: Criterion) -> str:
    kind, words = _VERDICTS[criterion.verdict]
    asked = f" · required: {escape(criterion.expected)}" if criterion.expected else ""
    return (
        f'<div class="criterion"><span class="badge {kind}">{words}</span><div><b>{escape(criterion.title)}</b>'
        f"<p>{escape(criterion.evidence)}{asked}</p></div></div>"
    )


def _finding(finding: FindingRecord) -> str:
    why = f"<p>{escape(finding.cause)}</p>" if finding.cause else ""
    fix = f"<pre><code>{escape(finding.fix)}</code></pre>" if finding.fix else ""
    seen = "".join(f"<p><code>{escape(line)}</code></p>" for line in finding.evidence[:3])
    return (
        f'<div class="finding"><h3><span class="badge {finding.severity}">{finding.severity}</span> '
        f"{escape(finding.message)}</h3>{why}{fix}{seen}</div>"
    )


def _plots(receipt: Receipt) -> Iterator[str]:
    start_s, seconds = receipt.measurements.window_start_s, receipt.measurements.window_s
    window = None if start_s is None or seconds is None else (start_s, start_s + seconds)
    for plot in receipt.plots:
        unit = f" ({escape(plot.unit)})" if plot.unit else ""
        yield f"<figure><h3>{escape(plot.title)}{unit}</h3><ul>{legend(plot)}</ul>{draw(plot, window)}</figure>"
    if window and any(plot.x == "seconds" for plot in receipt.plots):
        yield '<p class="none">Shaded: the training window, over which utilisation is judged.</p>'


def _timeline(receipt: Receipt) -> list[str]:
    lines = [f"<li><time>{e.at_s:.2f} s</time><span>{escape(e.words)}</span></li>" for e in receipt.timeline]
    return ["<ol>", *lines, "</ol>"] if lines else []
