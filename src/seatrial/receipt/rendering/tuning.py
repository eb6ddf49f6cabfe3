"""The table of a tune: what was tried, what it did, what is kept; the same cells in every rendering."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from seatrial.common.contract.tunables import TUNABLES, in_words
from seatrial.findings.labels import FIX
from seatrial.job.units import format_bytes, format_seconds
from seatrial.receipt.formatting import count, figure, percent
from seatrial.receipt.model import Receipt, TriedChange, TuneRecord
from seatrial.receipt.rendering.row import Row

HEAD = ("Change", "Steps/s", "Faster", "Examples/s", "GPU memory", "Loss differs", "Verdict")

#: Left out of the terminal's: with one batch size it says what steps/s say.
_NOT_ALIGNED = ("Examples/s",)

_SHORT = {
    "kept": "✓ kept",
    "no-faster": "no faster",
    "slower": "slower",
    "different": "✗ trains differently",
    "failed": "✗ failed",
    "refused": "not applicable",
    "removed": "✗ removed",
    "": "",
}


def tune_table(receipt: Receipt) -> list[tuple[str, ...]]:
    """Rows below HEAD; [] of a run that is no tune, or measured nothing."""
    tune = receipt.tune
    if tune is None or tune.baseline is None:
        return []
    rows = [_cells(tune.baseline, "as it is", "")]
    rows += [_cells(row, row.words, _verdict(row)) for row in tune.rows]
    if tune.combination is not None and tune.combination.name != "fit":
        rows.append(_cells(tune.combination, f"together: {tune.combination.words}", tune.combination.why))
    return rows


def tune_rows(receipt: Receipt) -> list[Row]:
    """What is said beside the table."""
    tune = receipt.tune
    if tune is None:
        return []
    rows = [Row("result", _result(tune))]
    if tune.refusal_fix:
        rows.append(Row(FIX, tune.refusal_fix))
    rows.append(Row("trials", f"{tune.trials} in {format_seconds(tune.seconds)}"))
    if tune.loss_band is not None:
        share = f", {percent(100 * tune.loss_band / tune.loss_level)} of a loss" if tune.loss_level else ""
        rows.append(Row("two seeds", f"losses of the script as it is differ by up to {figure(tune.loss_band)}{share}"))
    by_hand = {each.key: each.by_hand for each in TUNABLES}
    for key, value in tune.kept.items():
        places = ", ".join(tune.places.get(key, ()))
        rows.append(Row("by hand", f"{places}: {by_hand[key].format(value)}" if places else by_hand[key].format(value)))
    reasons: dict[str, list[str]] = {}
    for name, why in tune.not_tried.items():
        reasons.setdefault(why, []).append(name)
    rows += [Row("not tried", f"{', '.join(names)}: {why}") for why, names in reasons.items()]
    if files := _files(tune):
        rows.append(Row("files", files))
    return rows


def changes_row(receipt: Receipt) -> Row | None:
    """What the run changed in the script from outside; None where nothing was to be changed."""
    changes = receipt.changes
    if changes is None:
        return None
    told = [f"{in_words(changes.applied)} (from outside, by [tune])"] if changes.applied else []
    told += [f"{key} was not applied: {why}" for key, why in changes.refused.items()]
    silent = [key for key in changes.asked if key not in changes.applied and key not in changes.refused]
    told += [f"{', '.join(silent)}: nothing in the script took it"] if silent else []
    return Row("changes", "; ".join(told))


def aligned(rows: Sequence[tuple[str, ...]], width: int) -> list[str]:
    """Lines of a plain table; columns without a value are left out, and a verdict that is too long is below its row."""
    if not rows:
        return []
    table = [HEAD, *rows]
    shown = [at for at in range(len(HEAD) - 1) if any(row[at] for row in rows) and HEAD[at] not in _NOT_ALIGNED]
    widths = {at: max(len(row[at]) for row in table) for at in shown}
    most = max(20, width - sum(widths[at] + 2 for at in shown[1:]))
    widths[0] = min(widths[0], most)
    lines = []
    for row in table:
        cells = [row[0].ljust(widths[0]), *(row[at].rjust(widths[at]) for at in shown[1:])]
        line = "  ".join(cells).rstrip()
        if len(row[0]) > widths[0]:
            lines += textwrap.wrap(row[0], width)
            line = "  ".join([" " * widths[0], *cells[1:]]).rstrip()
        if row is HEAD or not row[-1]:
            lines.append(line)
        elif len(line) + 2 + len(row[-1]) <= width and row is not HEAD:
            lines.append(f"{line}  {row[-1]}")
        else:
            lines += [line, f"    {row[-1]}"]
    return lines


def _cells(row: TriedChange, words: str, verdict: str) -> tuple[str, ...]:
    rate = "" if row.steps_per_s is None else figure(float(f"{row.steps_per_s:.4g}"))
    if rate and row.spread is not None:
        rate += f" ± {percent(100 * row.spread)}"
    times = f"{row.steps_per_s / row.against:.2f} ×" if row.steps_per_s and row.against else ""
    return (
        words,
        rate,
        times,
        figure(round(row.examples_per_s)) if row.examples_per_s else "",
        format_bytes(row.peak_bytes) if row.peak_bytes else "",
        "" if row.loss_difference is None else f"{row.loss_difference:.3g}",
        verdict,
    )


def _verdict(row: TriedChange) -> str:
    if not row.verdict:
        return row.why
    short = _SHORT[row.verdict]
    return f"{short}: {row.why}" if row.verdict in ("different", "failed", "refused", "removed") and row.why else short


def _result(tune: TuneRecord) -> str:
    if tune.refusal is not None:
        return f"the script cannot be tuned: {tune.refusal}"
    if tune.combination is not None and tune.combination.name == "fit":
        return tune.combination.why
    if tune.combination is not None and tune.kept:
        return f"{in_words(tune.kept)}: {tune.combination.why}"
    if not tune.done:
        return "the tune ended before it was done; nothing is kept"
    return "nothing that was tried makes the script faster beyond the noise and trains the same"


def _files(tune: TuneRecord) -> str:
    files = tune.files
    told = [f"{count(files.skipped, 'checkpoint')} not written in trials"] if files.skipped else []
    told += [f"{count(files.restored, 'changed file')} put back"] if files.restored else []
    told += [f"{count(files.removed, 'new file')} removed"] if files.removed else []
    told += [f"new and left: {', '.join(files.new[:4])}{' …' if len(files.new) > 4 else ''}"] if files.new else []
    told += [f"changed and too large to put back: {', '.join(files.left)}"] if files.left else []
    return "; ".join(told)
