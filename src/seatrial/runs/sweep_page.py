"""A sweep as one HTML file: a table whose cells are bars, so that numbers and their comparison are one thing."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

from seatrial.runs.sweep import Result
from seatrial.system.files import make_folder, write_atomically
from seatrial.system.names import Names

#: Metrics shown at most: a script may report dozens.
MAX_METRICS = 8

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:72rem;padding:0 1rem;background:#fff;color:#1b1f24}
table{border-collapse:collapse;width:100%}th,td{text-align:left;padding:.35rem .7rem;border-bottom:1px solid #d8dee4}
th{font-weight:600;color:#59636e}td.n{min-width:9rem}
td.n div{height:5px;border-radius:3px;background:#1f6feb;margin-top:2px}
.fail{color:#cf222e}.best{font-weight:700}
@media(prefers-color-scheme:dark){body{background:#0d1117;color:#e6edf3}th,td{border-color:#30363d}th{color:#9198a1}}
"""

Column = tuple[str, Callable[[Result], "float | None"], bool]


def columns(results: Sequence[Result]) -> list[Column]:
    """(title, number of a result, lower is better) of every number that some run has."""
    fixed: list[Column] = [
        ("seconds", lambda result: result.seconds, True),
        ("images/s", lambda result: result.images_per_s, False),
        ("GPU %", lambda result: result.utilization_pct, False),
        ("energy J", lambda result: result.energy_j, True),
    ]
    names = list(dict.fromkeys(name for result in results for name in result.metrics))
    shown = [name for name in names if name not in ("images_per_s", "epoch")][:MAX_METRICS]
    metrics: list[Column] = [(name, _metric(name), "loss" in name or "error" in name) for name in shown]
    return [column for column in (*fixed, *metrics) if any(column[1](result) is not None for result in results)]


def _metric(name: str) -> Callable[[Result], float | None]:
    return lambda result: result.metrics.get(name)


def best(results: Sequence[Result], column: Column) -> Result | None:
    """The run that is best in a column, of those that finished."""
    _, number, lower = column
    known = [result for result in results if result.exit_code == 0 and number(result) is not None]
    return (min if lower else max)(known, key=lambda result: number(result) or 0.0) if len(known) > 1 else None


def write(folder: Path, title: str, results: Sequence[Result], names: Names) -> Path:
    """index.html and results.json without ``names``; the page's path. Raises DiskError."""
    make_folder(folder)
    title = names.text(title)
    results = [Result(**names.scrub(result.as_dict(), keep=("run_id",))) for result in results]
    write_atomically(folder / "results.json", json.dumps([result.as_dict() for result in results], indent=1).encode())
    write_atomically(folder / "index.html", _page(title, results).encode())
    return folder / "index.html"


def _page(title: str, results: Sequence[Result]) -> str:
    shown = columns(results)
    names = list(results[0].settings) if results else []
    head = "".join(f"<th>{escape(word)}</th>" for word in (*names, *(column[0] for column in shown), "outcome"))
    rows = "\n".join(_row(result, results, shown) for result in results)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body><h1>{escape(title)}</h1>\n"
        f"<table><tr>{head}</tr>\n{rows}\n</table></body></html>\n"
    )


def _row(result: Result, results: Sequence[Result], shown: Sequence[Column]) -> str:
    cells = [f"<td>{escape(value)}</td>" for value in result.settings.values()]
    for column in shown:
        value = column[1](result)
        top = max((abs(column[1](one) or 0.0) for one in results), default=0.0) or 1.0
        kind = "n best" if best(results, column) is result else "n"
        text = "" if value is None else f"{value:.4g}<div style=width:{100 * abs(value) / top:.0f}%></div>"
        cells.append(f'<td class="{kind}">{text}</td>')
    failed = ' class="fail"' if result.exit_code else ""
    cells.append(f"<td{failed}>{escape(result.outcome)}</td>")
    return f"<tr>{''.join(cells)}</tr>"
