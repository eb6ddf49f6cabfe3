"""A histogram as SVG: how many batches had how many rows. Colours are the page's CSS classes."""

from __future__ import annotations

from collections.abc import Sequence

from seatrial.receipt.formatting import figure
from seatrial.receipt.look.svg import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, short
from seatrial.receipt.model import BatchCount

#: Bars that can be told apart at this width; more sizes are put together, neighbours first.
MAX_BARS = 24


def draw_batches(batches: Sequence[BatchCount]) -> str:
    """One ``<svg>``: a bar for each size, smallest first; its height is the number of batches."""
    bars = _bars(batches)
    most = max(height for _, height in bars)
    step = (WIDTH - LEFT - RIGHT) / len(bars)
    floor = HEIGHT - BOTTOM
    told = ", ".join(f"{label} rows: {figure(height)}" for label, height in bars)
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="batches by size: {told}">']
    for share in (0.0, 0.5, 1.0):
        y = floor - share * (floor - TOP)
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 3.5:.1f}" text-anchor="end">{short(most * share)}</text>')
    every = -(-len(bars) * max(len(label) for label, _ in bars) // 24)  # labels that do not touch
    for index, (label, height) in enumerate(bars):
        x, tall = LEFT + index * step, height / most * (floor - TOP)
        title = f"<title>{label} rows: {figure(height)} batches</title>"
        parts.append(
            f'<rect class="bar" x="{x + step * 0.1:.1f}" y="{floor - tall:.1f}" width="{min(step * 0.8, 40):.1f}"'
            f' height="{max(tall, 0.5):.1f}">{title}</rect>'
        )
        if index % every == 0:
            middle = x + step * 0.1 + min(step * 0.8, 40) / 2
            parts.append(f'<text x="{middle:.1f}" y="{floor + 16}" text-anchor="middle">{label}</text>')
    parts.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.1f}" y="{HEIGHT - 6}" text-anchor="middle">rows</text>')
    return "".join([*parts, "</svg>"])


def _bars(batches: Sequence[BatchCount]) -> list[tuple[str, int]]:
    """(label, batches) of each bar."""
    width = -(-len(batches) // MAX_BARS)
    groups = [batches[start : start + width] for start in range(0, len(batches), width)]
    return [(_label(group), sum(each.batches for each in group)) for group in groups]


def _label(group: Sequence[BatchCount]) -> str:
    first, last = group[0].rows, group[-1].rows
    return str(first) if first == last else f"{first}–{last}"
