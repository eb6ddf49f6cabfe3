"""A comparison in a terminal: the table, then each curve of both runs as bars on a common scale."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from seatrial.receipt.formatting import figure
from seatrial.receipt.model import Line, Plot
from seatrial.reports.compare import Comparison, name

#: Widest and narrowest a curve is drawn.
_CURVE, _LEAST_CURVE = 48, 12

_BARS = "▁▂▃▄▅▆▇█"
_ASCII_BARS = "_.-:=+*#"


def render(comparison: Comparison, console: Console) -> None:
    """Print it. What a run reported is text here, never markup."""
    unicode = console.encoding.lower().startswith("utf")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("", f"A: {name(comparison.a)}", f"B: {name(comparison.b)}", "B vs. A"):
        table.add_column(Text(title), overflow="fold")
    for row in comparison.facts + comparison.numbers:
        change = row.change or ""
        cells = (row.label, row.a or "-", row.b or "-", change if unicode else change.replace("×", "x"))
        table.add_row(*(Text(cell) for cell in cells))
    parts: list[RenderableType] = [table]
    for plot in comparison.plots:
        parts += [Text(), *_curves(plot, console.width, _BARS if unicode else _ASCII_BARS, "→" if unicode else "to")]
    console.print(Group(*parts))


def _curves(plot: Plot, width: int, bars: str, to: str) -> Iterator[Text]:
    """Every line of a plot over the same x and y: its name, the curve, its first and last value."""
    points = [point for line in plot.lines for point in line.points]
    x_low, x_high = min(x for x, _ in points), max(x for x, _ in points)
    low, high = min(0.0, *(y for _, y in points)), max(y for _, y in points)
    unit = f" ({plot.unit})" if plot.unit else ""
    yield Text(f"{plot.title}{unit}, {_short(x_low)} to {_short(x_high)} {_AXES[plot.x]}", style="bold")
    names = max(len(line.name) for line in plot.lines)
    ends = [f"{_short(line.points[0][1])} {to} {_short(line.points[-1][1])}" for line in plot.lines]
    room = width - len("  " * 3) - names - max(map(len, ends))
    cells = min(_CURVE, max(_LEAST_CURVE, room))
    for line, said in zip(plot.lines, ends, strict=True):
        yield Text(f"  {line.name:<{names}}  {_bars(line, cells, (x_low, x_high), (low, high), bars)}  {said}")


#: What a plot's x counts.
_AXES = {"seconds": "s", "step": "steps", "epoch": "epochs", "line": "reports", "rate": "requests/s"}


def _short(value: float) -> str:
    return figure(float(f"{value:.4g}"))


def _bars(line: Line, width: int, xs: tuple[float, float], ys: tuple[float, float], bars: str) -> str:
    """The last value in each of ``width`` stretches of x, held until the next; blank outside of the line."""
    cells: list[str] = []
    (x_low, x_high), (low, high) = xs, ys
    for x, y in sorted(line.points):
        at = int((x - x_low) / ((x_high - x_low) or 1.0) * (width - 1))
        cells += [cells[-1] if cells else " "] * (at - len(cells))
        cells[at:] = [bars[int((y - low) / ((high - low) or 1.0) * (len(bars) - 1))]]
    return "".join(cells).ljust(width)
