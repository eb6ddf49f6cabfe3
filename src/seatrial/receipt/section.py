"""The parts of a receipt: records, criteria, and blocks of rows that every rendering can draw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, SupportsIndex, overload

from pydantic import ConfigDict, GetCoreSchemaHandler
from pydantic_core import core_schema

from seatrial.job.value import Value
from seatrial.receipt.values import grouped

if TYPE_CHECKING:
    from seatrial.findings.finding import Finding
    from seatrial.receipt.evidence import RunEvidence
    from seatrial.receipt.model import Receipt

Verdict = Literal["pass", "fail", "not judged"]
#: Effect of a verdict: a criterion that is only a default is missed with a warning.
Weight = Literal["pass", "fail", "warning", "not judged"]
#: ID of the plot of where the steps' time went, in shares that add up.
STEPS_PLOT = "steps"
#: Text of a line in a legend: its kind (``mean``), and the value.
LegendValue = tuple[str, float]


class Record(Value):
    """A frozen part of receipt.json; an older version ignores the keys of a newer one."""

    model_config = ConfigDict(extra="ignore")


class Criterion(Record):
    """A question that a run is judged by, and the answer.

    Attributes:
        evidence: one sentence: the reason for the verdict, or why there is none.
        expected, measured: the two sides in words, if it has two.
        asked: required by ``--gpus``, [criteria], a time limit, ``--strict`` or the command itself; false for a
            default. None in older receipts, where it counts as required.
    """

    id: str
    title: str
    verdict: Verdict
    evidence: str
    expected: str | None = None
    measured: str | None = None
    asked: bool | None = None

    @property
    def passed(self) -> bool:
        return self.verdict == "pass"

    @property
    def weight(self) -> Weight:
        """Return the effect of the verdict on the run as a whole."""
        return "warning" if self.verdict == "fail" and self.asked is False else self.verdict

    @property
    def wanted(self) -> str:
        """Return ``required: …``, ``default: …`` if nobody required it, or "" without an expectation."""
        word = "default" if self.asked is False else "required"
        return f"{word}: {self.expected}" if self.expected else ""


class JudgedCriteria(tuple[Criterion, ...]):
    """All criteria of a receipt in order, also by ID (``gpu-busy`` or ``gpu_busy``) or by a metric's name."""

    @overload
    def __getitem__(self, key: SupportsIndex | str) -> Criterion: ...

    @overload
    def __getitem__(self, key: slice) -> tuple[Criterion, ...]: ...

    def __getitem__(self, key: SupportsIndex | str | slice) -> Criterion | tuple[Criterion, ...]:
        """Return the criterion of this ID, or those at these places. Raises KeyError with the known IDs."""
        if not isinstance(key, str):
            return super().__getitem__(key)
        for criterion in self:
            if criterion.id.replace("_", "-") in (key.replace("_", "-"), f"metric-{key.replace('_', '-')}"):
                return criterion
        raise KeyError(f"{key!r}; this receipt has: {', '.join(criterion.id for criterion in self)}")

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_after_validator_function(cls, handler(tuple[Criterion, ...]))


class FindingRecord(Record):
    """A Finding as a receipt keeps it; see findings/finding.py."""

    id: str
    severity: Literal["error", "warning", "info"]
    message: str
    cause: str | None = None
    fix: str | None = None
    evidence: tuple[str, ...] = ()


class Line(Record):
    """A line of a plot, of at most reported.MAX_POINTS points."""

    name: str
    points: tuple[tuple[float, float], ...]


class Plot(Record):
    """Lines over one x axis: seconds since the first event, requests a second (``rate``), or trials of a sweep."""

    id: str
    title: str
    unit: str
    x: Literal["seconds", "step", "epoch", "line", "rate", "trial"]
    lines: tuple[Line, ...]


class Row(NamedTuple):
    """A labelled line. ``short`` replaces the value in a terminal; a page draws a row without ``paged`` by itself."""

    label: str
    value: str
    short: str | None = None
    paged: bool = True


class Rows(NamedTuple):
    """Labelled lines, with a heading of their own if ``title`` is set; a terminal shows ``most`` of them."""

    rows: Sequence[Row]
    title: str = ""
    most: int | None = None


class Table(NamedTuple):
    """Cells below a head; the columns between first and last are numbers. A terminal leaves out ``wide`` ones."""

    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    wide: tuple[str, ...] = ()


class Verdicts(NamedTuple):
    """Criteria with their marks."""

    criteria: Sequence[Criterion]

    @property
    def open(self) -> list[tuple[str, list[str]]]:
        """Return (reason, titles) of the criteria that were not judged, grouped by reason."""
        return list(grouped((c.evidence, c.title) for c in self.criteria if c.verdict == "not judged").items())


class Notices(NamedTuple):
    """Findings with cause and fix."""

    findings: Sequence[FindingRecord]


class Share(NamedTuple):
    """A part of a whole: its colour's class, its name, its percentage, and both sizes in words."""

    colour: str
    words: str
    pct: float
    share: str
    time: str


class Shares(NamedTuple):
    """Parts of a whole as one bar and, if ``over`` is set, over time, with lines in ``colours``; text has rows."""

    parts: Sequence[Share]
    over: Plot | None = None
    colours: Sequence[str] = ()
    note: str = ""


class Bars(NamedTuple):
    """Amounts by size: a histogram on a page, a table in Markdown."""

    title: str
    unit: str
    pairs: Sequence[tuple[int, int]]


class Charts(NamedTuple):
    """Plots of a page; ``values`` of the legend by place, the shaded window in seconds, and a note below."""

    plots: Sequence[Plot]
    values: dict[int, list[LegendValue]]
    window: tuple[float, float] | None = None
    note: str = ""


class Log(NamedTuple):
    """Lines of output, only on a page; with ``folded`` they open by a click on the title."""

    title: str
    lines: Sequence[str]
    folded: bool = False


class Links(NamedTuple):
    """(name, address) pairs."""

    pages: Sequence[tuple[str, str]]


class Times(NamedTuple):
    """(seconds, event) pairs in order."""

    entries: Sequence[tuple[float, str]]


Block = Rows | Table | Verdicts | Notices | Shares | Bars | Charts | Log | Links | Times


class Section:
    """A part of a receipt: its evidence, its judgement and its rows.

    Attributes:
        title: heading in every rendering.
        brief: also shown in the few lines at a run's end.
        embedded: also part of a page that has heading, plots and logs of its own.
    """

    title = ""
    brief = False
    embedded = True

    def read(self, run: RunEvidence) -> dict[str, Any]:
        """Return keys of receipt.json; every untrusted value is checked here."""
        return {}

    def judge(self, run: RunEvidence) -> list[Criterion]:
        """Return the criteria that this section adds."""
        return []

    def findings(self, run: RunEvidence) -> list[Finding]:
        """Return the findings that this section adds."""
        return []

    def blocks(self, receipt: Receipt) -> list[Block]:
        """Return the parts to draw, none if there is nothing to show."""
        return []
