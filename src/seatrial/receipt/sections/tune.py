"""Tune: the changes that were tried, and those that a run made to its script as ``[tune]`` requests."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, get_args

from pydantic import Field

from seatrial.common.contract.tunables import TUNABLES, in_words
from seatrial.findings.finding import FIX
from seatrial.job.units import format_bytes, format_seconds
from seatrial.receipt.fields import items, mapping, number, text, whole
from seatrial.receipt.formatting import count, figure, percent
from seatrial.receipt.section import Block, Record, Row, Rows, Section, Table

if TYPE_CHECKING:
    from seatrial.receipt.evidence import RunEvidence
    from seatrial.receipt.model import Receipt
    from seatrial.receipt.outcome import ExitCause

#: Keys of a step event that are the driver's (agent/tune/record.py), and the hook's (agent/hook/changes.py).
TUNE, TUNED = "tune", "tuned"

HEAD = ("Change", "Steps/s", "Faster", "Examples/s", "GPU memory", "Loss differs", "Verdict")

#: Left out of a terminal's table: with one batch size it repeats steps/s.
_WIDE = ("Examples/s",)

_MOST_ROWS, _MOST_KEYS = 40, 32
_KEY = re.compile(r"[a-z][a-z0-9_]{0,31}")
_WORD = re.compile(r"[a-z0-9-]{1,32}")

TriedVerdict = Literal["kept", "no-faster", "slower", "different", "failed", "refused", "removed", ""]

_SHORT: dict[TriedVerdict, str] = {
    "kept": "✓ kept",
    "no-faster": "no faster",
    "slower": "slower",
    "different": "✗ trains differently",
    "failed": "✗ failed",
    "refused": "not applicable",
    "removed": "✗ removed",
}


class TriedChange(Record):
    """One tried change, the unchanged script, or the combination that is kept.

    Attributes:
        changes: keys of SEATRIAL_TUNE. words: the same for a reader.
        spread: of steps_per_s over ``trials``, as a share. against: steps a second of what it is compared with.
        loss_difference: the largest between its smoothed loss curve and the baseline's under the same seed.
        places: in the script, by key: ``train.py:31``.
    """

    name: str
    words: str = ""
    changes: dict[str, bool | int | str] = Field(default_factory=dict)
    steps_per_s: float | None = None
    spread: float | None = None
    trials: int = 0
    against: float | None = None
    examples_per_s: float | None = None
    peak_bytes: int | None = None
    loss_difference: float | None = None
    verdict: TriedVerdict = ""
    why: str = ""
    places: dict[str, tuple[str, ...]] = Field(default_factory=dict)


class TuneFiles(Record):
    """Files of trials: checkpoints not written, files put back, new ones removed, new and left."""

    skipped: int = 0
    restored: int = 0
    removed: int = 0
    new: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


class TuneRecord(Record):
    """Measurements of `seatrial tune`, as the target reported them.

    Attributes:
        done: it completed. rows: in the order in which they were tried, each on top of what was kept by then.
        kept: faster changes that train the same; {} if there are none. loss_band: difference between two seeds, at
            losses of about loss_level.
        not_tried: name → why. refusal: why the script cannot be tuned.
    """

    done: bool = False
    trials: int = 0
    seconds: float = 0.0
    baseline: TriedChange | None = None
    rows: tuple[TriedChange, ...] = ()
    combination: TriedChange | None = None
    kept: dict[str, bool | int | str] = Field(default_factory=dict)
    places: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    loss_band: float | None = None
    loss_level: float | None = None
    not_tried: dict[str, str] = Field(default_factory=dict)
    refusal: str | None = None
    refusal_fix: str | None = None
    files: TuneFiles = TuneFiles()


class ChangesRecord(Record):
    """Changes that a run made to the script as ``[tune]`` requests: requested, applied, and refused with the reason."""

    asked: dict[str, bool | int | str] = Field(default_factory=dict)
    applied: dict[str, bool | int | str] = Field(default_factory=dict)
    refused: dict[str, str] = Field(default_factory=dict)
    places: dict[str, tuple[str, ...]] = Field(default_factory=dict)


class Tune(Section):
    title = "Tune"
    brief = True

    def read(self, run: RunEvidence) -> dict[str, Any]:
        lines = run.evidence.hook_lines
        return {
            "tune": _read_tune(lines) if run.plan.job.tuning is not None else None,
            "changes": _read_changes(lines, run.plan.agent.changes or {}),
        }

    def blocks(self, receipt: Receipt) -> list[Block]:
        tune = receipt.tune
        if tune is None:
            return []
        rows = [Row("result", _result(tune))]
        if tune.refusal_fix:
            rows.append(Row(FIX, tune.refusal_fix))
        rows.append(Row("trials", f"{tune.trials} in {format_seconds(tune.seconds)}"))
        if tune.loss_band is not None:
            share = f", {percent(100 * tune.loss_band / tune.loss_level)} of a loss" if tune.loss_level else ""
            differ = f"losses of the script as it is differ by up to {figure(tune.loss_band)}{share}"
            rows.append(Row("two seeds", differ))
        by_hand = {each.key: each.by_hand for each in TUNABLES}
        for key, value in tune.kept.items():
            places = ", ".join(tune.places.get(key, ()))
            sentence = by_hand[key].format(value)
            rows.append(Row("by hand", f"{places}: {sentence}" if places else sentence))
        reasons: dict[str, list[str]] = {}
        for name, why in tune.not_tried.items():
            reasons.setdefault(why, []).append(name)
        rows += [Row("not tried", f"{', '.join(names)}: {why}") for why, names in reasons.items()]
        if files := _files(tune.files):
            rows.append(Row("files", files))
        return [Table(HEAD, _tried(tune), _WIDE), Rows(rows)]


def with_result(cause: ExitCause, tune: TuneRecord | None) -> ExitCause:
    """Return the exit cause with the result of a tune, or with the reason why there is none."""
    if tune is None:
        return cause
    if tune.refusal is not None:
        return cause.model_copy(update={"words": f"The script cannot be tuned: {tune.refusal}"})
    if cause.id != "finished" or not tune.done:
        return cause
    found = "nothing that was tried makes the script faster and trains the same"
    whole = tune.combination
    if tune.kept and whole is not None and whole.steps_per_s and whole.against:
        found = f"{whole.steps_per_s / whole.against:.2f} times as fast with {in_words(tune.kept)}"
    return cause.model_copy(update={"words": f"{cause.words}: {found}"})


def changes_in_receipt(changes: ChangesRecord | None) -> str | None:
    """Return the changes that the run made to the script; None if none were requested."""
    if changes is None:
        return None
    parts = [f"{in_words(changes.applied)} (from outside, by [tune])"] if changes.applied else []
    parts += [f"{key} was not applied: {why}" for key, why in changes.refused.items()]
    silent = [key for key in changes.asked if key not in changes.applied and key not in changes.refused]
    parts += [f"{', '.join(silent)}: nothing in the script took it"] if silent else []
    return "; ".join(parts)


def _tried(tune: TuneRecord) -> list[tuple[str, ...]]:
    """Return rows below HEAD; [] if nothing was measured."""
    if tune.baseline is None:
        return []
    rows = [_cells(tune.baseline, "as it is", "")]
    rows += [_cells(row, row.words, _verdict(row)) for row in tune.rows]
    if tune.combination is not None and tune.combination.name != "fit":
        rows.append(_cells(tune.combination, f"together: {tune.combination.words}", tune.combination.why))
    return rows


def _cells(row: TriedChange, words: str, verdict: str) -> tuple[str, ...]:
    rate = "" if row.steps_per_s is None else figure(float(f"{row.steps_per_s:.4g}"))
    if rate and row.spread is not None:
        rate += f" ± {percent(100 * row.spread)}"
    return (
        words,
        rate,
        f"{row.steps_per_s / row.against:.2f} ×" if row.steps_per_s and row.against else "",
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


def _files(files: TuneFiles) -> str:
    parts = [f"{count(files.skipped, 'checkpoint')} not written in trials"] if files.skipped else []
    parts += [f"{count(files.restored, 'changed file')} put back"] if files.restored else []
    parts += [f"{count(files.removed, 'new file')} removed"] if files.removed else []
    parts += [f"new and left: {', '.join(files.new[:4])}{' …' if len(files.new) > 4 else ''}"] if files.new else []
    parts += [f"changed and too large to put back: {', '.join(files.left)}"] if files.left else []
    return "; ".join(parts)


def _read_tune(lines: Iterable[Mapping[str, Any]]) -> TuneRecord | None:
    """Read the last line of the driver's, which repeats those before it; it is the target's word."""
    reported = [value for line in lines if isinstance(value := line.get(TUNE), dict)]
    if not reported:
        return None
    last = reported[-1]
    refusal, files = mapping(last.get("refusal")), mapping(last.get("files"))
    return TuneRecord(
        done=last.get("done") is True,
        trials=whole(last.get("trials")) or 0,
        seconds=number(last.get("seconds")) or 0.0,
        baseline=_row(last.get("baseline")),
        rows=tuple(row for value in items(last.get("rows"))[:_MOST_ROWS] if (row := _row(value)) is not None),
        combination=_row(last.get("combination")),
        kept=_changes(last.get("kept")),
        places=_places(last.get("places")),
        loss_band=number(last.get("band")),
        loss_level=number(last.get("level")),
        not_tried=_texts(last.get("not_tried")),
        refusal=text(refusal.get("words")),
        refusal_fix=text(refusal.get("fix")),
        files=TuneFiles(
            skipped=whole(files.get("skipped")) or 0,
            restored=whole(files.get("restored")) or 0,
            removed=whole(files.get("removed")) or 0,
            new=_words(files.get("new"), 20),
            left=_words(files.get("left"), 20),
        ),
    )


def _read_changes(lines: Iterable[Mapping[str, Any]], requested: Mapping[str, Any]) -> ChangesRecord | None:
    """Read the hook's report of the requested changes; None if none were requested."""
    if not requested:
        return None
    applied: dict[str, Any] = {}
    refused: dict[str, str] = {}
    places: dict[str, tuple[str, ...]] = {}
    for line in lines:
        report = mapping(line.get(TUNED))
        applied |= _changes(report.get("applied"))
        refused |= _texts(report.get("refused"))
        places |= _places(report.get("places"))
    refused = {key: why for key, why in refused.items() if key not in applied}
    return ChangesRecord(asked=dict(requested), applied=applied, refused=refused, places=places)


def _row(value: Any) -> TriedChange | None:
    row = mapping(value)
    if not row:
        return None
    verdict: Any = row.get("verdict")
    return TriedChange(
        name=text(row.get("name")) or "?",
        words=text(row.get("words")) or "",
        changes=_changes(row.get("changes")),
        steps_per_s=_positive(row.get("steps_per_s")),
        spread=_positive(row.get("spread")),
        trials=whole(row.get("trials")) or 0,
        against=_positive(row.get("against")),
        examples_per_s=_positive(row.get("examples_per_s")),
        peak_bytes=whole(row.get("peak_bytes")),
        loss_difference=number(row.get("loss_difference")),
        verdict=verdict if verdict in get_args(TriedVerdict) else "",
        why=text(row.get("why")) or "",
        places=_places(row.get("places")),
    )


def _changes(value: Any) -> dict[str, bool | int | str]:
    """Return keys of SEATRIAL_TUNE with possible values."""
    found: dict[str, bool | int | str] = {}
    for key, item in list(mapping(value).items())[:_MOST_KEYS]:
        a_number = item is True or (isinstance(item, int) and 0 <= item < 10**9)
        if _KEY.fullmatch(key) and (a_number or (isinstance(item, str) and _WORD.fullmatch(item))):
            found[key] = item
    return found


def _places(value: Any) -> dict[str, tuple[str, ...]]:
    entries = list(mapping(value).items())[:_MOST_KEYS]
    return {key: _words(lines, 8) for key, lines in entries if _KEY.fullmatch(key)}


def _words(value: Any, most: int) -> tuple[str, ...]:
    return tuple(word for item in items(value)[:most] if (word := text(item)))


def _texts(value: Any) -> dict[str, str]:
    entries = list(mapping(value).items())[:_MOST_KEYS]
    return {key: word[:300] for key, item in entries if _KEY.fullmatch(key) and (word := text(item))}


def _positive(value: Any) -> float | None:
    found = number(value)
    return found if found is not None and found >= 0 else None
