"""Tune: the changes that were tried, and those that a run made to its script as ``[tune]`` requests."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field

from seatrial.common.tunables import TUNABLES, in_words
from seatrial.findings.finding import FIX, Finding
from seatrial.job.units import format_bytes, format_seconds
from seatrial.receipt.section import Block, Record, Row, Rows, Section, Table
from seatrial.receipt.sections.findings import pasteable
from seatrial.receipt.values import count, figure, grouped, items, mapping, number, percent, text, whole

if TYPE_CHECKING:
    from seatrial.job.plan import Plan
    from seatrial.receipt.evidence import RunEvidence
    from seatrial.receipt.model import Receipt
    from seatrial.receipt.outcome import ExitCause

#: Keys of a step event that are the driver's (agent/tune/record.py), and the hook's (agent/hook/changes.py).
TUNE, TUNED = "tune", "tuned"

HEAD = ("Change", "Steps/s", "Faster", "Examples/s", "GPU memory", "Loss differs", "Verdict")
#: Left out of a terminal's table: with one batch size it repeats steps/s.
_WIDE = ("Examples/s",)

_MOST_ROWS, _MOST_KEYS, _MOST_FILES, _MOST_PLACES, _MOST_LETTERS = 40, 32, 20, 8, 300
_KEY = re.compile(r"[a-z][a-z0-9_]{0,31}")
_WORD = re.compile(r"[a-z0-9-]{1,32}")

TriedVerdict = Literal["kept", "no-faster", "unclear", "slower", "different", "failed", "refused", "removed", ""]

_SHORT: dict[TriedVerdict, str] = {
    "kept": "✓ kept{}",
    "no-faster": "no faster{}",
    "unclear": "not distinguishable{}; measure longer",
    "slower": "slower{}",
    "different": "✗ trains differently",
    "failed": "✗ failed",
    "refused": "not applicable",
    "removed": "✗ removed",
}


def _keyed(value: Any) -> list[tuple[str, Any]]:
    return [(key, each) for key, each in list(mapping(value).items())[:_MOST_KEYS] if _KEY.fullmatch(key)]


def _changes(value: Any) -> dict[str, bool | int | str]:
    """Return keys of SEATRIAL_TUNE with possible values."""

    def possible(item: Any) -> bool:
        return (isinstance(item, int) and 0 <= item < 10**9) or (isinstance(item, str) and bool(_WORD.fullmatch(item)))

    return {key: item for key, item in _keyed(value) if possible(item)}


def _texts(value: Any) -> dict[str, str]:
    return {key: word[:_MOST_LETTERS] for key, item in _keyed(value) if (word := text(item))}


def _words(value: Any, most: int = _MOST_FILES) -> tuple[str, ...]:
    return tuple(word for item in items(value)[:most] if (word := text(item)))


def _places(value: Any) -> dict[str, tuple[str, ...]]:
    return {key: _words(lines, _MOST_PLACES) for key, lines in _keyed(value)}


def _row(value: Any) -> Any:
    """Return a row as it is, or as a table with a name; None if there is none."""
    return value if isinstance(value, TriedChange) else (mapping(value) and {"name": "?", **value}) or None


# The types of these records check a target's reports; impossible values are left out.
Changes = Annotated[dict[str, bool | int | str], BeforeValidator(_changes)]
Places = Annotated[dict[str, tuple[str, ...]], BeforeValidator(_places)]
Reasons = Annotated[dict[str, str], BeforeValidator(_texts)]
Paths = Annotated[tuple[str, ...], BeforeValidator(_words)]
Text = Annotated[str, BeforeValidator(lambda value: text(value) or "")]
OptionalText = Annotated[str | None, BeforeValidator(text)]
Count = Annotated[int, BeforeValidator(lambda value: whole(value) or 0)]
Positive = Annotated[float | None, BeforeValidator(lambda value: number(value) if (number(value) or 0) >= 0 else None)]
Number = Annotated[float | None, BeforeValidator(number)]


class TriedChange(Record):
    """One tried change, the unchanged script, or the combination that is kept.

    Attributes:
        changes: keys of SEATRIAL_TUNE. words: the same for a reader.
        spread: of steps_per_s over ``trials``, as a share. against: steps a second of what it is compared with.
        faster: the ratio of both, from trials in turn; the truth is between its ends. loss_off_low, loss_off_high: by
            how much its losses are higher, likewise.
        loss_difference: the largest between its smoothed loss curve and the baseline's under the same seed.
        places: in the script, by key: ``train.py:31``.
    """

    name: Annotated[str, BeforeValidator(lambda value: text(value) or "?")]
    words: Text = ""
    changes: Changes = Field(default_factory=dict)
    steps_per_s: Positive = None
    spread: Positive = None
    trials: Count = 0
    against: Positive = None
    faster: Positive = None
    faster_low: Positive = None
    faster_high: Positive = None
    examples_per_s: Positive = None
    peak_bytes: Annotated[int | None, BeforeValidator(whole)] = None
    loss_difference: Number = None
    loss_off_low: Number = None
    loss_off_high: Number = None
    verdict: Annotated[TriedVerdict, BeforeValidator(lambda word: word if word in get_args(TriedVerdict) else "")] = ""
    why: Text = ""
    places: Places = Field(default_factory=dict)


OptionalRow = Annotated[TriedChange | None, BeforeValidator(_row)]


class TuneFiles(Record):
    """Files of trials: checkpoints not written, files put back, new ones removed, new and left."""

    skipped: Count = 0
    restored: Count = 0
    removed: Count = 0
    new: Paths = ()
    left: Paths = ()


class TuneRecord(Record):
    """Measurements of `seatrial tune`, as the target reported them.

    Attributes:
        done: it completed. rows: in the order in which they were tried, each on top of what was kept by then.
        kept: faster changes that train the same; {} if there are none. loss_band: difference between two seeds, at
            losses of about loss_level. loss_margin: what those of a change may be off by, from before it was tried.
        not_tried: name → why. refusal: why the script cannot be tuned.
    """

    done: Annotated[bool, BeforeValidator(lambda value: value is True)] = False
    trials: Count = 0
    seconds: Annotated[float, BeforeValidator(lambda value: number(value) or 0.0)] = 0.0
    baseline: OptionalRow = None
    rows: Annotated[
        tuple[TriedChange, ...],
        BeforeValidator(lambda value: [row for each in items(value)[:_MOST_ROWS] if (row := _row(each))]),
    ] = ()
    combination: OptionalRow = None
    kept: Changes = Field(default_factory=dict)
    places: Places = Field(default_factory=dict)
    loss_band: Number = None
    loss_margin: Number = None
    loss_level: Number = None
    not_tried: Reasons = Field(default_factory=dict)
    refusal: OptionalText = None
    refusal_fix: OptionalText = None
    files: Annotated[
        TuneFiles, BeforeValidator(lambda value: value if isinstance(value, TuneFiles) else mapping(value))
    ] = TuneFiles()


class ChangesRecord(Record):
    """Changes that a run made to the script as ``[tune]`` requests: requested, applied, and refused with the reason."""

    asked: dict[str, bool | int | str] = Field(default_factory=dict)
    applied: Changes = Field(default_factory=dict)
    refused: Reasons = Field(default_factory=dict)
    places: Places = Field(default_factory=dict)


class Tune(Section):
    title = "Tune"
    brief = True

    def read(self, run: RunEvidence) -> dict[str, Any]:
        lines = run.evidence.hook_lines
        tune = _read_tune(lines, run.plan) if run.plan.job.tuning is not None else None
        return {"tune": tune, "changes": _read_changes(lines, run.plan.agent.changes or {})}

    def blocks(self, receipt: Receipt) -> list[Block]:
        if (tune := receipt.tune) is None:
            return []
        explained = any(each.fix for each in receipt.shown_findings)
        rows = [("result", "" if tune.refusal else _result(tune)), (FIX, "" if explained else tune.refusal_fix or "")]
        rows.append(("trials", f"{tune.trials} in {format_seconds(tune.seconds)}"))
        if tune.loss_band is not None:
            share = f", {percent(100 * tune.loss_band / tune.loss_level)} of a loss" if tune.loss_level else ""
            margin = f"; the margin of a change is {tune.loss_margin:.3g}" if tune.loss_margin is not None else ""
            words = f"losses of the script as it is differ by up to {tune.loss_band:.3g}{share}{margin}"
            rows.append(("two seeds", words))
        by_hand = {each.key: each.by_hand for each in TUNABLES}
        for key, value in tune.kept.items():
            places = ", ".join(tune.places.get(key, ()))
            rows.append(("by hand", (f"{places}: " if places else "") + by_hand[key].format(value)))
        reasons = grouped((why, name) for name, why in tune.not_tried.items())
        rows += [("not tried", f"{', '.join(names)}: {why}") for why, names in reasons.items()]
        rows.append(("files", _files(tune.files)))
        return [Table(HEAD, _tried(tune), _WIDE), Rows([Row(label, value) for label, value in rows if value])]


def with_result(cause: ExitCause, tune: TuneRecord | None) -> ExitCause:
    """Return the exit cause with the result of a tune, or with the reason why there is none."""
    if tune is None:
        return cause
    if tune.refusal is not None:
        return cause.changed(words=f"The script cannot be tuned: {tune.refusal}")
    if cause.id != "finished" or not tune.done:
        return cause
    found = "nothing that was tried makes the script faster and trains the same"
    whole = tune.combination
    if tune.kept and whole is not None and whole.steps_per_s and whole.against:
        found = f"{whole.steps_per_s / whole.against:.2f} times as fast with {in_words(tune.kept)}"
    return cause.changed(words=f"{cause.words}: {found}")


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
        rows.append(_cells(tune.combination, f"together: {tune.combination.words}", _verdict(tune.combination)))
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
    """Return the verdict with its interval, and the reason if the change failed in another way."""
    ends = row.faster_low is not None and row.faster_high is not None
    between = f" ({row.faster_low:.2f}–{row.faster_high:.2f})" if ends else ""
    if not row.verdict or row.name == "combination":
        return row.why + between
    if row.verdict in ("different", "failed", "refused", "removed") and row.why:
        return f"{_SHORT[row.verdict]}: {row.why}"
    return _SHORT[row.verdict].format(between)


def _result(tune: TuneRecord) -> str:
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


def _read_tune(lines: Iterable[Mapping[str, Any]], plan: Plan) -> TuneRecord | None:
    """Read the last line of the driver's, which repeats those before it; it is the target's word."""
    if not (reported := [value for line in lines if isinstance(value := line.get(TUNE), dict)]):
        return None
    last = reported[-1]
    refusal = mapping(last.get("refusal"))
    named = {"loss_band": last.get("band"), "loss_margin": last.get("margin"), "loss_level": last.get("level")}
    fix = pasteable(Finding("refused", "info", "", fix=text(refusal.get("fix"))), plan).fix
    return TuneRecord.model_validate({**last, **named, "refusal": refusal.get("words"), "refusal_fix": fix})


def _read_changes(lines: Iterable[Mapping[str, Any]], requested: Mapping[str, Any]) -> ChangesRecord | None:
    """Read the hook's report of the requested changes; None if none were requested."""
    if not requested:
        return None
    found: dict[str, dict[str, Any]] = {"applied": {}, "refused": {}, "places": {}}
    for line in lines:
        report = mapping(line.get(TUNED))
        for key, read in (("applied", _changes), ("refused", _texts), ("places", _places)):
            found[key] |= read(report.get(key))
    found["refused"] = {key: why for key, why in found["refused"].items() if key not in found["applied"]}
    return ChangesRecord(asked=dict(requested), **found)
