"""A comparison in a terminal: the table, then each curve of both runs as bars on a common scale."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from seatrial.receipt.formatting import figure
from seatrial.receipt.section import Line, Plot
from seatrial.reports.compare import Comparison, Overlay, Row

#: Widest and narrowest a curve is drawn.
_CURVE, _LEAST_CURVE = 48, 12

_BARS = "▁▂▃▄▅▆▇█"
_ASCII_BARS = "_.-:=+*#"

_LETTERS = "ABCDEFGH"


def render(comparison: Comparison, console: Console) -> None:
    """Print it. What a run reported is text here, never markup."""
    unicode = console.encoding.lower().startswith("utf")
    table = Table(box=None, pad_edge=False, header_style="bold")
    letters = [_LETTERS[place] for place in range(len(comparison.runs))]
    table.add_column(Text())
    for letter, name in zip(letters, comparison.names, strict=True):
        table.add_column(Text(f"{letter}: {name}"), overflow="fold")
    if len(letters) == 2:
        table.add_column(Text("B vs. A"), overflow="fold")
    for row in comparison.facts + comparison.numbers:
        cells = [cell if unicode else cell.replace("×", "x") for cell in _cells(row)]
        table.add_row(*(Text(cell) for cell in cells))
    parts: list[RenderableType] = [table]
    for overlay in comparison.overlays:
        plot = _with_letters(overlay, comparison.names, letters)
        parts += [Text(), *_curves(plot, console.width, _BARS if unicode else _ASCII_BARS, "→" if unicode else "to")]
    console.print(Group(*parts))


def _cells(row: Row) -> list[str]:
    """Of two runs the change has a column; of more it stands behind each."""
    changes = [" ".join(filter(None, (cell.change, cell.verdict))) for cell in row.cells]
    texts = [cell.text or "-" for cell in row.cells]
    if len(row.cells) == 2:
        return [row.label, *texts, changes[1]]
    return [row.label, *(f"{text} ({change})" if change else text for text, change in zip(texts, changes, strict=True))]


def _with_letters(overlay: Overlay, names: Sequence[str], letters: Sequence[str]) -> Plot:
    """Lines called as the columns are."""
    lines = []
    for line, run in zip(overlay.plot.lines, overlay.runs, strict=True):
        rest = line.name.removeprefix(names[run])
        lines.append(line.model_copy(update={"name": f"{letters[run]}{rest}"}))
    return overlay.plot.model_copy(update={"lines": tuple(lines)})


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
_AXES = {"seconds": "s", "step": "steps", "epoch": "epochs", "line": "reports", "rate": "requests/s", "trial": "trials"}


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
