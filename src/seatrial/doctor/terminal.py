"""The report in a terminal: a line for each healthy link; cause, evidence and fix only where something is wrong."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from seatrial.doctor.chain import Layer
from seatrial.doctor.check import Status
from seatrial.doctor.examine import Result
from seatrial.findings.finding import CAUSE, FIX, Finding

WIDTH = 110

#: Characters of a command that stands on one line.
MAX_COMMAND = 160

_MARKS: dict[Status, tuple[str, str]] = {
    "ok": ("[✓]", "green"),
    "warning": ("[!]", "yellow"),
    "broken": ("[✗]", "bold red"),
    "unknown": ("[?]", "magenta"),
    "skipped": ("[-]", "dim"),
    "blocked": ("[·]", "dim"),
}

#: A healthy link with something to know about it.
_NOTE = ("[i]", "cyan")

_COUNTED: tuple[tuple[Status, str, str], ...] = (
    ("ok", "ok", "ok"),
    ("warning", "warning", "warnings"),
    ("broken", "broken", "broken"),
    ("unknown", "unknown", "unknown"),
)

#: For terminals that print nothing but ASCII.
_ASCII = str.maketrans({"✓": "v", "✗": "x", "·": ".", "…": "..."})


def print_layer(layer: Layer, results: Sequence[Result], console: Console, *, verbose: bool = False) -> None:
    """One layer: its title, then its links. Links that do not apply here are left out unless ``verbose``."""
    shown = [result for result in results if verbose or result.verdict.status != "skipped"]
    if shown:
        _print(console, Text(layer.title, style="bold"))
    blocked = [result for result in shown if result.verdict.status == "blocked"]
    for result in shown:
        if result.verdict.status != "blocked" or verbose:
            for line in _lines(result, min(WIDTH, console.width)):
                _print(console, line)
    if blocked and not verbose:
        mark, style = _MARKS["blocked"]
        by = ", ".join(dict.fromkeys(str(result.blocked_by) for result in blocked))
        _print(console, Text(f"  {mark} {len(blocked)} not checked, blocked by {by}", style=style))


def print_summary(results: Sequence[Result], console: Console, seconds: float) -> None:
    """The first broken link and its fix, or that there is none; above the links, as the answer to what was asked."""
    counts = {status: sum(result.verdict.status == status for result in results) for status in _MARKS}
    broken = next((result for result in results if result.verdict.status == "broken"), None)
    said = ", ".join(
        f"{counts[status]} {one if counts[status] == 1 else more}" for status, one, more in _COUNTED if counts[status]
    )
    if broken is None:
        words = "No failed check" if not counts["unknown"] else "No failed check seen"
        style = "bold green" if not counts["unknown"] else "bold"
        _print(console, Text(f"{words}: {said} ({seconds:.1f} s)", style=style))
    else:
        _print(console, Text(f"First failed check: {broken.check.id}: {broken.verdict.line}", style="bold red"))
        fix = broken.verdict.findings[0].fix if broken.verdict.findings else None
        if fix:
            _print(console, Text(f"  {FIX}: ", style="bold").append(fix, style="not bold"))
        _print(console, Text(f"  {said} ({seconds:.1f} s)", style="dim"))
    _print(console, Text())


def _lines(result: Result, width: int) -> Iterator[Text]:
    healthy = result.verdict.status == "ok"
    mark, style = _NOTE if healthy and result.verdict.findings else _MARKS[result.verdict.status]
    yield from _wrapped(result.verdict.line, f"  {mark} ", width, "" if healthy else style, style)
    for finding in result.verdict.findings:
        yield from finding_lines(finding, width, said=result.verdict.line)


def finding_lines(finding: Finding, width: int, *, said: str = "", indent: str = "      ") -> Iterator[Text]:
    """Cause, evidence and fix. The command is never broken across lines: it is there to be copied."""
    if finding.message != said:
        yield from _wrapped(finding.message, indent, width, "bold")
    if finding.cause:
        yield from _wrapped(finding.cause, f"{indent}{CAUSE} ", width)
    for line in finding.evidence:
        for piece in filter(str.strip, line.splitlines()):
            yield from _wrapped(piece, f"{indent}seen  ", width, "dim")
    if finding.fix:
        fix = finding.fix
        if len(fix) > MAX_COMMAND:  # a shell goes on behind &&, so the lines can be copied as they are
            fix = fix.replace(" && ", f" &&\n{' ' * len(indent)}      ")
        yield Text(f"{indent}{FIX}   ", style="bold").append(fix, style="not bold cyan")
    yield Text(f"{indent}id    {finding.id}", style="dim")


def _wrapped(text: str, head: str, width: int, style: str = "", head_style: str = "") -> Iterator[Text]:
    """The text beside its head, further lines below the text."""
    pieces = textwrap.wrap(text, max(20, width - len(head)), break_long_words=False, break_on_hyphens=False) or [""]
    yield Text().append(head, style=head_style or style).append(pieces[0], style=style)
    for piece in pieces[1:]:
        yield Text(" " * len(head) + piece, style=style)


def _print(console: Console, line: Text) -> None:
    if not console.encoding.lower().startswith("utf"):
        line = Text(line.plain.translate(_ASCII).encode("ascii", "replace").decode(), style=line.style)
    console.print(line, soft_wrap=True, highlight=False)


def print_finding(finding: Finding, console: Console, sources: Sequence[str] = ()) -> None:
    """One finding by itself, as ``explain`` shows it."""
    mark, style = _MARKS[{"error": "broken", "warning": "warning", "info": "ok"}[finding.severity]]  # type: ignore[index]
    _print(console, Text(f"{mark} {finding.message}", style=style))
    for line in finding_lines(finding, min(WIDTH, console.width), said=finding.message, indent="    "):
        _print(console, line)
    if sources:
        _print(console, Text(f"    from  {', '.join(map(_source, sources))}", style="dim"))


def _source(source: str) -> str:
    """``docs/images.md`` → ``seatrial's documentation (images)``: a wheel does not carry the file."""
    if not source.startswith("docs/"):
        return source
    return f"seatrial's documentation ({source.removeprefix('docs/').removesuffix('.md')})"
