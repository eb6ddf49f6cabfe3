"""The end of a run in a terminal: what is wrong and its fix, and as the last lines the verdict and three numbers."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from seatrial.findings.finding import FIX
from seatrial.job.units import format_seconds
from seatrial.receipt.formatting import percent
from seatrial.receipt.model import Receipt
from seatrial.receipt.rendering import terminal
from seatrial.receipt.rendering.rows import ending, headline, serving_rows

#: Findings shown; the others are in the receipt.
_MOST_FINDINGS = 3

#: Metrics that people look for first, the first that there is.
_WANTED = ("accuracy", "val_accuracy", "test_accuracy", "val_loss", "test_loss", "loss", "train_loss")


def render(receipt: Receipt, console: Console) -> None:
    """Print it. The whole receipt is ``terminal.render``'s."""
    terminal.print_lines(_lines(receipt, min(terminal.WIDTH, console.width)), console)


def _lines(receipt: Receipt, width: int) -> Iterator[Text]:
    yield from terminal.section("Tune", terminal.tune_lines(receipt, width))
    yield from terminal.section("Serving", terminal.table(serving_rows(receipt), width))
    for warning in receipt.warnings:
        yield from terminal.wrapped(warning, "[!] ", width, "yellow")
    shown = [finding for finding in receipt.findings if finding.severity != "info"]
    for finding in shown[:_MOST_FINDINGS]:
        yield from terminal.finding_lines(finding, width)
    if len(shown) > _MOST_FINDINGS:
        yield Text(f"    … and {len(shown) - _MOST_FINDINGS} more findings are in the receipt")
    for criterion in receipt.criteria:
        told_below = receipt.outcome.id == "unmet" and criterion.measured is not None and criterion.expected is not None
        if criterion.weight == "fail" and told_below:
            continue
        if criterion.weight in ("fail", "warning") or (criterion.asked and criterion.passed):
            yield from terminal.criterion_lines(criterion, width)
    if receipt.diagnosis is not None and receipt.diagnosis.advice:
        advice = receipt.diagnosis.advice[0]
        yield from terminal.wrapped(f"bound by {receipt.diagnosis.words}", "[i] ", width, "cyan")
        yield from terminal.wrapped(f"{advice.change} ({advice.gain})", f"    {FIX:<5}  ", width, dim=9)
    mark, style = terminal.mark_of(receipt)
    yield Text(f"{mark} {headline(receipt)}", style=style)
    last = ending(receipt)
    yield from terminal.wrapped(last, "    ", width)
    told = numbers(receipt)
    if told and not (len(told) == 1 and told[0] in last):  # how long it took alone, which the sentence says
        yield Text(f"    {' · '.join(told)}")


def numbers(receipt: Receipt) -> list[str]:
    """Three at most: how long, how well, how busy or how fast."""
    measured = receipt.measurements
    found = [] if measured.wall_s is None else [format_seconds(measured.wall_s)]
    metrics = {metric.name: metric.last for metric in measured.metrics}
    asked = [c.id.removeprefix("metric-") for c in receipt.criteria if c.id.startswith("metric-")]
    name = next((name for name in (*asked, *_WANTED) if name in metrics), None)
    if name is not None:
        found.append(f"{name} {metrics[name]:.4g}")
    busy = [use.utilization_mean_pct for use in measured.gpus if use.utilization_mean_pct is not None]
    steps = [each.examples_per_s for each in receipt.anatomy if each.examples_per_s]
    if busy:
        found.append(f"GPU {percent(sum(busy) / len(busy))} busy")
    elif measured.images_per_s:
        found.append(f"{measured.images_per_s:,.0f} examples/s")
    elif steps:
        found.append(f"{sum(steps):,.0f} examples/s")
    return found
