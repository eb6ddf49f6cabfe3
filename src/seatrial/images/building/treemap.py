"""A picture of an image: one rectangle a package, its area its bytes. SVG, and nothing loaded from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from squarify import normalize_sizes, squarify

WIDTH, HEIGHT = 1000, 620
_HEAD = 34
_COLOURS = {"nvidia": "#76b900", "torch": "#ee4c2c", "triton": "#8e44ad", "tensorflow": "#ff8f00", "": "#5b8db8"}
_LEAST_SHARE = 0.004


def treemap(title: str, sizes: Mapping[str, int]) -> str:
    """The picture. Packages too small to see are summed as ``other``."""
    whole = max(1, sum(sizes.values()))
    rows = sorted(
        ((name, size) for name, size in sizes.items() if size / whole >= _LEAST_SHARE), key=lambda row: -row[1]
    )
    other = whole - sum(size for _, size in rows)
    if other > 0:
        rows.append(("other", other))
    height = HEIGHT - _HEAD
    boxes = squarify(normalize_sizes([size for _, size in rows], WIDTH, height), 0, _HEAD, WIDTH, height)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<text x="6" y="23" font-size="17">{escape(title)}: {whole / 1e9:.2f} GB of packages</text>',
    ]
    for (name, size), box in zip(rows, boxes, strict=True):
        parts.append(_rectangle(name, size, box))
    return "\n".join([*parts, "</svg>", ""])


def _rectangle(name: str, size: int, box: Mapping[str, float]) -> str:
    x, y, width, height = box["x"], box["y"], box["dx"], box["dy"]
    colour = next((colour for start, colour in _COLOURS.items() if name.startswith(start)), _COLOURS[""])
    shown = f"{size / 1e6:,.0f} MB"
    label = ""
    if width > 7 * max(len(shown), 4) and height > 30:
        letters = int(width / 7.4)
        short = name if len(name) <= letters else name[: letters - 1] + "…"
        label = (
            f'<text x="{x + 5:.1f}" y="{y + 16:.1f}" font-size="13" fill="#fff">{escape(short)}</text>'
            f'<text x="{x + 5:.1f}" y="{y + 31:.1f}" font-size="11" fill="#fff">{shown}</text>'
        )
    return (
        f'<g><title>{escape(name)}: {shown}</title><rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" '
        f'height="{height:.1f}" fill="{colour}" stroke="#fff" stroke-width="1.5"/>{label}</g>'
    )
