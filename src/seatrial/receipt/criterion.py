"""Criterion: one question that a run is judged by, and the answer."""

from __future__ import annotations

from typing import Any, Literal, SupportsIndex, overload

from pydantic import GetCoreSchemaHandler
from pydantic_core import core_schema

from seatrial.receipt.record import Record

Verdict = Literal["pass", "fail", "not judged"]

#: What a verdict weighs: a criterion that nobody asked for is missed with a warning.
Weight = Literal["pass", "fail", "warning", "not judged"]


class Criterion(Record):
    """One criterion, judged.

    Attributes:
        evidence: one sentence: what the verdict rests on, or why there is none.
        expected, measured: the two sides in words, where it has two.
        asked: the run was asked for it: by ``--gpus``, [criteria], a time limit, ``--strict`` or the command itself.
            Else it is a default of seatrial's. None in receipts of before, which made no difference: there it counts.
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
        """It was judged, and met."""
        return self.verdict == "pass"

    @property
    def weight(self) -> Weight:
        """The verdict, for the run as a whole."""
        return "warning" if self.verdict == "fail" and self.asked is False else self.verdict


class Criteria(tuple[Criterion, ...]):
    """All criteria of a receipt, in their order; one by its ID, ``gpu-busy`` or ``gpu_busy``, or its metric's name."""

    @overload
    def __getitem__(self, key: SupportsIndex | str) -> Criterion: ...

    @overload
    def __getitem__(self, key: slice) -> tuple[Criterion, ...]: ...

    def __getitem__(self, key: SupportsIndex | str | slice) -> Criterion | tuple[Criterion, ...]:
        """Raises KeyError naming those that there are."""
        if not isinstance(key, str):
            return super().__getitem__(key)
        for criterion in self:
            if criterion.id.replace("_", "-") in (key.replace("_", "-"), f"metric-{key.replace('_', '-')}"):
                return criterion
        raise KeyError(f"{key!r}; this receipt has: {', '.join(criterion.id for criterion in self)}")

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_after_validator_function(cls, handler(tuple[Criterion, ...]))
