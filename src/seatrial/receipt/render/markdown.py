"""The receipt in Markdown: for an issue, a pull request or a commit."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from seatrial.findings.finding import CAUSE, FIX
from seatrial.receipt.model import Receipt, exit_words, headline, warnings
from seatrial.receipt.section import Bars, Block, FindingRecord, Links, Notices, Rows, Table, Times, Verdicts
from seatrial.system.text import one_line

_MARKS = {"pass": "✅ pass", "fail": "❌ fail", "warning": "⚠️ warning", "not judged": "➖ not judged"}
_LEVELS = {"good": "✅", "bad": "❌", "warning": "⚠️", "none": "⏳"}
_SEVERITIES = {"error": "❌", "warning": "⚠️", "info": "ℹ️"}
#: Characters that Markdown or the HTML inside it would take for markup. A backslash before punctuation is always
#: literal (CommonMark 2.4). Periods and hyphens are left alone: within a line they mean nothing.
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~&])")


def render(receipt: Receipt) -> str:
    """Return the receipt as CommonMark with GitHub's tables."""
    lines = [f"# {_LEVELS[receipt.outcome.level]} {_text(headline(receipt))}", ""]
    lines.append(f"**{_text(receipt.outcome.sentence)}**{_text(exit_words(receipt))}")
    for warning in warnings(receipt):
        lines += ["", f"> ⚠️ {_text(warning)}"]
    for section, blocks in receipt.sections(in_text=True):
        title = section.title
        for block in blocks:
            if (drawn := _block(block)) is None:
                continue
            title = block.title if isinstance(block, Rows) and block.title else title
            lines += ["", *([f"## {title}", ""] if title else []), *drawn]
            title = ""
    return "\n".join(lines) + "\n"


def _block(block: Block) -> Iterable[str] | None:
    """Return a block's lines; None for charts and logs, which are for pages."""
    if isinstance(block, Rows):
        return _table(("", ""), [(row.label, row.value) for row in block.rows])
    if isinstance(block, Table):
        return _table(block.head, block.rows) if block.rows else ()
    if isinstance(block, Verdicts):
        rows = [
            (each.title, _MARKS[each.weight], each.evidence + (f" ({each.wanted})" if each.expected else ""))
            for each in block.criteria
        ]
        return _table(("Criterion", "Verdict", "Evidence"), rows)
    if isinstance(block, Notices):
        return [line for finding in block.findings for line in _finding(finding)]
    if isinstance(block, Bars):
        return _table((block.title, block.unit), [(str(size), str(amount)) for size, amount in block.pairs])
    if isinstance(block, Links):
        return [f"- {_text(name)}: <{one_line(url)}>" for name, url in block.pages]
    if isinstance(block, Times):
        return _table(("", ""), [(f"{at_s:.2f} s", words) for at_s, words in block.entries])
    return None


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|" + " --- |" * len(head)
    yield from ("| " + " | ".join(map(_text, row)) + " |" for row in rows)


def _finding(finding: FindingRecord) -> Iterator[str]:
    yield f"- {_SEVERITIES[finding.severity]} **{_text(finding.id)}**: {_text(finding.message)}"
    if finding.cause:
        yield f"  - {CAUSE}: {_text(finding.cause)}"
    if finding.fix:
        yield f"  - {FIX}: {_text(finding.fix)}"
    yield from (f"  - seen: {_text(line)}" for line in finding.evidence[:3])


def _text(words: str) -> str:
    return one_line(_SPECIAL.sub(r"\\\1", words))
