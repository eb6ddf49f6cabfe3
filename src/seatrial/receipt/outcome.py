"""The end of a run: its exit cause, the end of its logs, and the headline that is the same wherever a run is named."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import computed_field

from seatrial.errors import EXIT_CRITERIA, EXIT_DONE
from seatrial.receipt.section import Criterion, Record
from seatrial.receipt.values import count

if TYPE_CHECKING:
    from seatrial.receipt.model import Receipt

OutcomeId = Literal[
    "running", "pruned", "stopped", "failed", "unmet", "in-doubt", "cpu", "cpu-fallback", "unproven", "passed"
]
Level = Literal["good", "warning", "bad", "none"]
#: Outcome → its level and its badge.
_SHOWN: dict[OutcomeId, tuple[Level, str]] = {
    "running": ("none", "running"), "pruned": ("none", "pruned"), "stopped": ("warning", "stopped"),
    "failed": ("bad", "failed"), "unmet": ("bad", "criteria not met"), "in-doubt": ("warning", "in doubt"),
    "cpu": ("good", "done on the CPU"), "cpu-fallback": ("good", "done on the CPU"),
    "unproven": ("warning", "done, not proven"), "passed": ("good", "passed"),
}  # fmt: skip

#: The one sentence about a run that found no GPU and required none.
NO_GPU = "No GPU found; {} on the CPU. Use --gpus all to require one."

#: Findings that cast doubt on an exit code of 0 → the words after its exit cause.
DOUBTFUL = {
    "did-nothing": "apparently did nothing",
    "exception-swallowed": "its last words are an exception",
    "files-lost": "files that it wrote are lost",
    "went-to-background": "what it left in the background was ended with it",
}

#: Outcomes that the exit cause alone explains: a reader of a failed run does not read its criteria first.
NOT_FINISHED: tuple[OutcomeId, ...] = ("running", "pruned", "stopped", "failed", "in-doubt")


class ExitCause(Record):
    """Why the run ended: a stable ID (exit_cause.py has the table) and one sentence."""

    id: str
    words: str
    target_exit_code: int | None = None
    target_signal: int | None = None


class LogEnd(Record):
    """The end of a failed run's output: its last traceback, and the last lines of both streams."""

    traceback: tuple[str, ...] = ()
    stderr: tuple[str, ...] = ()
    stdout: tuple[str, ...] = ()


class Outcome(Record):
    """The headline of a run.

    Attributes:
        id: ``passed`` only if its use of its GPUs was proven; ``cpu`` if it requested none.
        level: how it is marked: ✓ good, ! warning, ✗ bad; ``none`` while it runs.
        badge: in a few words.
        words: why, in one sentence.
        footnote: what else would change the exit code, or "".
    """

    id: OutcomeId
    level: Level
    badge: str
    words: str
    footnote: str = ""

    @property
    def brief(self) -> str:
        """Return the words for a table's cell: why it failed or was stopped, unmet criteria, else the badge."""
        _, _, unmet = self.words.partition("; not met: ")
        if self.id == "unmet" and unmet:
            return f"{self.badge}: {unmet}"
        return self.words if self.id in ("failed", "pruned", "stopped") else self.badge

    @computed_field  # type: ignore[prop-decorator]  # mypy issue 1362
    @property
    def sentence(self) -> str:
        """Return badge and words: ``Done on the CPU. Finished in 3.2 s; met: Model saved``."""
        if self.words.lower().startswith(self.badge) or self.id in ("running", "cpu-fallback"):
            return self.words
        return f"{self.badge[0].upper()}{self.badge[1:]}. {self.words}"


def _unmet(receipt: Receipt) -> list[Criterion]:
    return [criterion for criterion in receipt.criteria if criterion.weight == "fail"]


def _unproven(receipt: Receipt) -> list[Criterion]:
    """Return required criteria without a verdict. Without a proof that it ran on the GPU, no GPU run has passed."""
    open_ = [criterion for criterion in receipt.criteria if criterion.verdict == "not judged"]
    return [criterion for criterion in open_ if criterion.asked or criterion.id == "ran-on-gpu"]


def make_outcome(receipt: Receipt) -> Outcome:
    """Return the headline."""
    id = _id(receipt)
    warnings = [criterion.title for criterion in receipt.criteria if criterion.weight == "warning"]
    level, badge = _SHOWN[id]
    if id in ("passed", "cpu", "cpu-fallback") and warnings:
        badge += f", {count(len(warnings), 'warning')}"
    parts = [receipt.exit_cause.words]
    if id not in NOT_FINISHED or receipt.exit_cause.id == "finished":
        missed = f"default{'' if len(warnings) == 1 else 's'} missed: {', '.join(warnings)}"
        parts += [*_criteria_words(id, receipt), *([missed] if warnings else [])]
    footnote = f"{EXIT_CRITERIA} with --strict" if id == "unmet" and receipt.exit_code == EXIT_DONE else ""
    words = "; ".join(parts) + (f". {NO_GPU.format('ran')}" if id == "cpu-fallback" else "")
    return Outcome(id=id, level=level, badge=badge, words=words, footnote=footnote)


def _id(receipt: Receipt) -> OutcomeId:
    """Return the first that holds. A server's normal end is that somebody stops it."""
    if (cause := receipt.exit_cause.id) in ("running", "pruned"):
        return "running" if cause == "running" else "pruned"
    if cause == "stopped" and (receipt.exit_code != EXIT_DONE or receipt.serving is None):
        return "stopped"
    if receipt.exit_code not in (EXIT_DONE, EXIT_CRITERIA):
        return "failed"
    if _unmet(receipt):
        return "unmet"
    if receipt.doubtful:
        return "in-doubt"
    if receipt.header.device != "gpu":
        return "cpu" if receipt.header.device == "cpu" else "cpu-fallback"
    return "unproven" if _unproven(receipt) else "passed"


def _criteria_words(id: OutcomeId, receipt: Receipt) -> list[str]:
    """Return the criteria that the outcome is about."""
    criteria = receipt.criteria
    if id in ("failed", "unmet"):
        return [f"not met: {'; '.join(map(_both_sides, _unmet(receipt)))}"] if _unmet(receipt) else []
    if id == "in-doubt":
        return []
    if id == "unproven":
        return [f"not judged: {_titles(_unproven(receipt))}"]
    met = sum(criterion.verdict == "pass" for criterion in criteria)
    if id == "passed":
        return [f"{met} {'criterion' if met == 1 else 'criteria'} met"]
    judged = sorted((each for each in criteria if each.verdict == "pass"), key=lambda each: not each.asked)
    return [f"met: {_titles(judged)}"] if judged else []


def _both_sides(criterion: Criterion) -> str:
    """Return title and values: ``Metric accuracy (0.9812, required >= 0.985)``."""
    if criterion.measured is None or criterion.expected is None:
        return criterion.title
    return f"{criterion.title} ({criterion.measured}, required {criterion.expected})"


def _titles(criteria: Sequence[Criterion]) -> str:
    return ", ".join(criterion.title for criterion in criteria)
