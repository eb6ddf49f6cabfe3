"""The receipt in Markdown: for an issue, a pull request or a commit."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from seatrial.findings.finding import CAUSE, FIX
from seatrial.receipt.model import Criterion, FindingRecord, Receipt
from seatrial.receipt.rendering.anatomy import anatomy_rows
from seatrial.receipt.rendering.rows import (
    Row,
    diagnosis_rows,
    ending,
    header_rows,
    headline,
    measured_rows,
    metric_rows,
    serving_rows,
    wanted,
)
from seatrial.receipt.rendering.tuning import HEAD, tune_rows, tune_table

_MARKS = {"pass": "✅ pass", "fail": "❌ fail", "warning": "⚠️ warning", "not judged": "➖ not judged"}
_LEVELS = {"good": "✅", "bad": "❌", "warning": "⚠️", "none": "⏳"}
_SEVERITIES = {"error": "❌", "warning": "⚠️", "info": "ℹ️"}

#: What Markdown or the HTML inside it would take for markup. A backslash before punctuation is always literal
#: (CommonMark 2.4). Periods and hyphens are left alone: within a line they mean nothing.
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~&])")


def render(receipt: Receipt) -> str:
    """The receipt as CommonMark with GitHub's tables."""
    return "\n".join(_lines(receipt)) + "\n"


def _lines(receipt: Receipt) -> Iterator[str]:
    yield f"# {_LEVELS[receipt.outcome.level]} {_text(headline(receipt))}"
    yield ""
    sentence, _, code = ending(receipt).rpartition(" (")
    yield f"**{_text(sentence)}** ({_text(code)}"
    for warning in receipt.warnings:
        yield ""
        yield f"> ⚠️ {_text(warning)}"
    yield from _section("What ran", _table(("", ""), header_rows(receipt)))
    yield from _section("Criteria", _table(("Criterion", "Verdict", "Evidence"), map(_criterion, receipt.criteria)))
    if receipt.findings:
        yield from _section("Findings", (line for f in receipt.findings for line in _finding(f)))
    if rows := diagnosis_rows(receipt):
        yield from _section("Diagnosis", _table(("", ""), rows))
    if rows := tune_rows(receipt):
        yield from _section("Tune", _table(HEAD, tune_table(receipt)) if tune_table(receipt) else ())
        yield from ("", *_table(("", ""), rows))
    if rows := anatomy_rows(receipt):
        yield from _section("Steps", _table(("", ""), rows))
    if rows := serving_rows(receipt):
        yield from _section("Serving", _table(("", ""), rows))
    if receipt.serving and receipt.serving.batches:
        each = [(str(one.rows), str(one.batches)) for one in receipt.serving.batches]
        yield from ("", *_table(("Rows in a batch", "Batches"), each))
    yield from _section("Measured", _table(("", ""), measured_rows(receipt)))
    if rows := metric_rows(receipt):
        yield from _section("Reported by the script", _table(("", ""), rows))
    if receipt.pages:
        yield from _section("Trackers", (f"- {_text(page.name)}: <{page.url}>" for page in receipt.pages))
    timeline = [Row(f"{entry.at_s:.2f} s", entry.words) for entry in receipt.timeline]
    yield from _section("Timeline", _table(("", ""), timeline))


def _section(title: str, lines: Iterable[str]) -> Iterator[str]:
    yield from ("", f"## {title}", "")
    yield from lines


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|" + " --- |" * len(head)
    for row in rows:
        yield "| " + " | ".join(map(_text, row)) + " |"


def _criterion(criterion: Criterion) -> tuple[str, str, str]:
    asked = f" ({wanted(criterion)})" if criterion.expected else ""
    return criterion.title, _MARKS[criterion.weight], criterion.evidence + asked


def _finding(finding: FindingRecord) -> Iterator[str]:
    yield f"- {_SEVERITIES[finding.severity]} **{_text(finding.id)}**: {_text(finding.message)}"
    if finding.cause:
        yield f"  - {CAUSE}: {_text(finding.cause)}"
    if finding.fix:
        yield f"  - {FIX}: {_text(finding.fix)}"
    for line in finding.evidence[:3]:
        yield f"  - seen: {_text(line)}"


def _text(words: str) -> str:
    return _SPECIAL.sub(r"\\\1", words)
