"""The receipt in a terminal: marks and words first, colour only on top, so that it reads the same without."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console
from rich.text import Text

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
    open_criteria,
    serving_rows,
    wanted,
)
from seatrial.receipt.rendering.tuning import aligned, tune_rows, tune_table

#: Widest a receipt is drawn: what fits a plain terminal, a code review and an issue.
WIDTH = 80

#: Metrics shown; the others are in the Markdown and HTML.
MAX_METRICS = 8

_MARKS = {
    "pass": ("[✓]", "green"),
    "fail": ("[✗]", "bold red"),
    "warning": ("[!]", "yellow"),
    "not judged": ("[-]", "dim"),
}
_LEVELS = {"good": "pass", "bad": "fail", "warning": "warning", "none": "not judged"}
_SEVERITIES = {"error": ("[✗]", "bold red"), "warning": ("[!]", "yellow"), "info": ("[i]", "cyan")}

#: For terminals that print nothing but ASCII.
_ASCII = str.maketrans({"✓": "v", "✗": "x", "·": "-", "×": "x", "…": "...", "°": "", "█": "#"})


def render(receipt: Receipt, console: Console) -> None:
    """Print the receipt. What a run printed is text here, never markup."""
    print_lines(_lines(receipt, min(WIDTH, console.width)), console)


def print_lines(lines: Iterable[Text], console: Console) -> None:
    """Each on a line of its own, with ASCII marks where the terminal has no others."""
    unicode = console.encoding.lower().startswith("utf")
    for line in lines:
        if not unicode:
            plain = line.plain.translate(_ASCII).encode("ascii", "replace").decode()
            line = Text(plain, style=line.style)
        console.print(line, soft_wrap=True, highlight=False)


def _lines(receipt: Receipt, width: int) -> Iterator[Text]:
    mark, style = mark_of(receipt)
    yield Text(f"{mark} {headline(receipt)}", style=style)
    yield from wrapped(ending(receipt), "    ", width)
    for warning in receipt.warnings:
        yield from wrapped(warning, "[!] ", width, "yellow")
    yield from section("What ran", table(_shortened(header_rows(receipt)), width))
    yield from section("Criteria", list(_criteria(receipt, width)))
    yield from section("Findings", [line for f in receipt.findings for line in finding_lines(f, width)])
    yield from section("Diagnosis", table(diagnosis_rows(receipt), width))
    yield from section("Tune", tune_lines(receipt, width))
    yield from section("Steps", table(anatomy_rows(receipt), width))
    yield from section("Serving", table(serving_rows(receipt), width))
    metrics = metric_rows(receipt)
    yield from section("Measured", table([*measured_rows(receipt), *metrics[:MAX_METRICS]], width))
    if len(metrics) > MAX_METRICS:
        yield Text(f"    … and {len(metrics) - MAX_METRICS} more metrics are in receipt.md")
    # Addresses stay whole, however narrow the terminal is: it makes links of them.
    yield from section("Trackers", [Text(f"    {page.name:<11}  {page.url}") for page in receipt.pages])
    yield from section("Timeline", table([Row(f"{e.at_s:8.2f} s", e.words) for e in receipt.timeline], width))


def mark_of(receipt: Receipt) -> tuple[str, str]:
    """``[✓]`` and its style, of the outcome."""
    return _MARKS[_LEVELS[receipt.outcome.level]]


def tune_lines(receipt: Receipt, width: int) -> list[Text]:
    """The table, and what is said beside it."""
    table_ = [Text(f"    {line}") for line in aligned(tune_table(receipt), width - 4)]
    return [*table_, *([Text()] if table_ else []), *table(tune_rows(receipt), width)]


def _shortened(rows: Sequence[Row]) -> list[Row]:
    """A digest's first twelve digits, as the engines list it; the whole of it is in the other renderings."""
    return [Row(row.label, row.value[:19] if row.value.startswith("sha256:") else row.value) for row in rows]


def section(title: str, lines: Sequence[Text]) -> Iterator[Text]:
    if lines:
        yield Text()
        yield Text(title, style="bold")
        yield from lines


def table(rows: Sequence[Row], width: int) -> list[Text]:
    column = min(18, max((len(row.label) for row in rows), default=0))
    return [line for row in rows for line in wrapped(row.value, f"    {row.label:<{column}}  ", width, dim=4 + column)]


def _criteria(receipt: Receipt, width: int) -> Iterator[Text]:
    """What was judged, one by one; then what was not, those of one reason together: there is nothing to look at."""
    for criterion in receipt.criteria:
        if criterion.verdict != "not judged":
            yield from criterion_lines(criterion, width)
    mark, style = _MARKS["not judged"]
    for reason, titles in open_criteria(receipt):
        yield from wrapped(f"{'; '.join(titles)}: not judged, {reason}", f"{mark} ", width, style)


def criterion_lines(criterion: Criterion, width: int) -> Iterator[Text]:
    mark, style = _MARKS[criterion.weight]
    yield Text(f"{mark} {criterion.title}", style=style)
    asked = f"; {wanted(criterion)}" if criterion.verdict == "fail" and criterion.expected else ""
    yield from wrapped(criterion.evidence + asked, "    ", width)


def finding_lines(finding: FindingRecord, width: int) -> Iterator[Text]:
    mark, style = _SEVERITIES[finding.severity]
    yield from wrapped(finding.message, f"{mark} ", width, style)
    for label, words in ((CAUSE, finding.cause), (FIX, finding.fix), ("seen", "; ".join(finding.evidence[:3]))):
        if words:
            yield from wrapped(words, f"    {label:<5}  ", width, dim=9)


def wrapped(words: str, first: str, width: int, style: str = "", dim: int = 0) -> Iterator[Text]:
    """``words`` with a hanging indent below ``first``, whose first ``dim`` characters are dimmed."""
    hanging = " " * len(first)
    lines = textwrap.wrap(words, width, initial_indent=first, subsequent_indent=hanging, break_on_hyphens=False)
    for number, line in enumerate(lines or [first]):
        text = Text(line, style=style)
        if number == 0 and dim:
            text.stylize("dim", 0, dim)
        yield text
