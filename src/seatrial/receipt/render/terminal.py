"""The receipt in a terminal: marks and words first, colour only on top, so that it reads the same without."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console
from rich.text import Text

from seatrial.findings.finding import CAUSE, FIX
from seatrial.receipt.model import Receipt, ending, headline, numbers, warnings
from seatrial.receipt.section import Block, Criterion, FindingRecord, Links, Notices, Row, Rows, Table, Times, Verdicts
from seatrial.system.text import command_and_comment

#: Findings at a run's end; the others are in the receipt.
_MOST_FINDINGS = 3

_MARKS = {
    "pass": ("[✓]", "green"),
    "fail": ("[✗]", "bold red"),
    "warning": ("[!]", "yellow"),
    "not judged": ("[-]", "dim"),
    "error": ("[✗]", "bold red"),
    "info": ("[i]", "cyan"),
}
_LEVELS = {"good": "pass", "bad": "fail", "warning": "warning", "none": "not judged"}
#: Replacements for terminals that print only ASCII.
_ASCII = str.maketrans({"✓": "v", "✗": "x", "·": "-", "×": "x", "…": "...", "°": "", "█": "#"})


def render(receipt: Receipt, console: Console) -> None:
    """Print the receipt. Output of a run is text here, never markup."""
    width = console.width
    lines = [*_heading(receipt, width), *_warnings(receipt, width)]
    for section, blocks in receipt.sections(in_text=True):
        lines += _section(section.title, blocks, width)
    _print(lines, console)


def render_verdict(receipt: Receipt, console: Console, shown: Sequence[str] = ()) -> None:
    """Print the end of a run: problems and their fixes, then the verdict and three numbers.

    Warnings that were ``shown`` above the output are repeated only behind a long one, of a run that did not fail.
    """
    is_recent = receipt.outcome.id == "failed" or (receipt.measurements.wall_s or 0) < 10
    kept = tuple(each for each in receipt.warnings if not is_recent or each not in shown)
    _print(_verdict(receipt.changed(warnings=kept), console.width), console)


def _print(lines: Iterable[Text], console: Console) -> None:
    """Print each on a line of its own, with ASCII marks if the terminal has no others."""
    unicode = console.encoding.lower().startswith("utf")
    for line in lines:
        line.plain = line.plain.replace("\n", " ")  # a name cannot begin a line of the receipt
        if not unicode:
            line = Text(line.plain.translate(_ASCII).encode("ascii", "replace").decode(), style=line.style)
        console.print(line, soft_wrap=True, highlight=False)


def _heading(receipt: Receipt, width: int) -> Iterator[Text]:
    mark, style = _MARKS[_LEVELS[receipt.outcome.level]]
    yield from _wrapped(headline(receipt), f"{mark} ", width, style)
    yield from _wrapped(ending(receipt), "    ", width)


def _warnings(receipt: Receipt, width: int) -> Iterator[Text]:
    for warning in warnings(receipt):
        yield from _wrapped(warning, "[!] ", width, "yellow")


def _verdict(receipt: Receipt, width: int) -> Iterator[Text]:
    for section, blocks in receipt.sections(in_text=True):
        if section.brief:
            yield from _section(section.title, blocks, width)
    yield from _warnings(receipt, width)
    shown = [finding for finding in receipt.shown_findings if finding.severity != "info"]
    for finding in shown[:_MOST_FINDINGS]:
        yield from _finding(finding, width)
    if len(shown) > _MOST_FINDINGS:
        yield Text(f"    … and {len(shown) - _MOST_FINDINGS} more findings are in the receipt")
    for criterion in receipt.criteria:
        both_sides = criterion.measured is not None and criterion.expected is not None
        in_headline = both_sides if receipt.outcome.id == "unmet" else criterion.id == "in-time"
        if criterion.weight == "fail" and in_headline:
            continue
        if criterion.weight in ("fail", "warning") or (criterion.asked and criterion.passed):
            yield from _criterion(criterion, width)
    if receipt.diagnosis is not None and receipt.diagnosis.advice:
        advice = receipt.diagnosis.advice[0]
        yield from _wrapped(f"bound by {receipt.diagnosis.words}", "[i] ", width, "cyan")
        yield from _wrapped(f"{advice.change} ({advice.gain})", f"    {FIX:<5}  ", width, dim=9)
    yield from _heading(receipt, width)
    if found := [number for number in numbers(receipt) if number not in ending(receipt)]:
        yield Text(f"    {' · '.join(found)}")


def _section(title: str, blocks: Sequence[Block], width: int) -> Iterator[Text]:
    """Draw blocks below a title; rows of several blocks are one table."""
    lines: list[Text] = []
    rows: list[Row] = []
    more = ""
    for block in blocks:
        if isinstance(block, Rows):
            rows += block.rows[: block.most]
            if block.most is not None and len(block.rows) > block.most:
                more = f"    … and {len(block.rows) - block.most} more metrics are in receipt.md"
        else:
            lines += _block(block, width)
            if isinstance(block, Table) and lines:
                lines.append(Text())
    lines += [*_table(rows, width), *([Text(more)] if more else [])]
    if lines:
        yield Text()
        yield Text(title, style="bold")
        yield from lines


def _block(block: Block, width: int) -> Iterator[Text]:
    """Draw a block other than rows; bars, charts and logs are for pages."""
    if isinstance(block, Verdicts):
        for criterion in block.criteria:
            if criterion.verdict != "not judged":
                yield from _criterion(criterion, width)
        mark, style = _MARKS["not judged"]
        for reason, titles in block.open:
            yield from _wrapped(f"{'; '.join(titles)}: not judged, {reason}", f"{mark} ", width, style)
    elif isinstance(block, Notices):
        for finding in block.findings:
            yield from _finding(finding, width)
    elif isinstance(block, Table):
        yield from (Text(f"    {line}") for line in _aligned(block, width - 4))
    elif isinstance(block, Links):  # addresses stay whole, however narrow the terminal is: it makes links of them
        yield from (Text(f"    {name:<11}  {url}") for name, url in block.pages)
    elif isinstance(block, Times):
        yield from _table([Row(f"{at_s:8.2f} s", words) for at_s, words in block.entries], width)


def _table(rows: Sequence[Row], width: int) -> list[Text]:
    column = min(18, max((len(row.label) for row in rows), default=0))
    lines: list[Text] = []
    for row in rows:
        lines += _wrapped(row.short or row.value, f"    {row.label:<{column}}  ", width, dim=4 + column)
    return lines


def _criterion(criterion: Criterion, width: int) -> Iterator[Text]:
    mark, style = _MARKS[criterion.weight]
    yield Text(f"{mark} {criterion.title}", style=style)
    wanted = f"; {criterion.wanted}" if criterion.verdict == "fail" and criterion.expected else ""
    evidence, _, fix = criterion.evidence.partition("; fix: ")
    yield from _wrapped(evidence + wanted, "    ", width)
    if fix:
        yield from _wrapped(fix, f"    {FIX:<5}  ", width, dim=9)


def _finding(finding: FindingRecord, width: int) -> Iterator[Text]:
    mark, style = _MARKS[finding.severity]
    yield from _wrapped(finding.message, f"{mark} ", width, style)
    command, comment = command_and_comment(finding.fix or "")
    parts = [(CAUSE, finding.cause), (FIX, finding.fix), ("seen", "; ".join(finding.evidence[:3]))]
    if command.startswith("seatrial ") and 11 + len(finding.fix or "") > width:  # a line to paste is never broken
        parts[1:2] = [(FIX, command.replace(" ", "\0")), ("", comment and f"# {comment}")]
    for label, words in parts:
        for line in _wrapped(words, f"    {label:<5}  ", width, dim=9) if words else ():
            line.plain = line.plain.replace("\0", " ")
            yield line


def _aligned(table: Table, width: int) -> list[str]:
    """Return lines of a plain table, without empty columns; a last cell that is too long is below its row."""
    if not table.rows:
        return []
    rows, last = [table.head, *table.rows], len(table.head) - 1
    shown = [at for at in range(last) if any(row[at] for row in table.rows) and table.head[at] not in table.wide]
    widths = {at: max(len(row[at]) for row in rows) for at in shown}
    widths[0] = min(widths[0], max(8, width - sum(widths[at] + 2 for at in shown[1:])))
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(row[at].rjust(widths[at]) for at in shown[1:])]
        line = "  ".join(cells).rstrip()
        if len(row[0]) > widths[0]:
            lines += textwrap.wrap(row[0], width)
            line = "  ".join([" " * widths[0], *cells[1:]]).rstrip()
        if row is table.head or not row[-1]:
            lines.append(line)
        elif len(line) + 2 + len(row[-1]) <= width:
            lines.append(f"{line}  {row[-1]}")
        else:
            lines += [line, *textwrap.wrap(row[-1], width, initial_indent="    ", subsequent_indent="      ")]
    return lines


def _wrapped(words: str, first: str, width: int, style: str = "", dim: int = 0) -> Iterator[Text]:
    """Wrap ``words`` with a hanging indent below ``first``, whose first ``dim`` characters are dimmed."""
    wrapper = textwrap.TextWrapper(width, first, " " * len(first), break_on_hyphens=False, break_long_words=False)
    lines = wrapper.wrap(words)  # a path stays whole
    for number, line in enumerate(lines or [first]):
        text = Text(line, style=style)
        if number == 0 and dim:
            text.stylize("dim", 0, dim)
        yield text
