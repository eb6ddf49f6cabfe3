"""Tuning: what `seatrial tune` is asked for, and the changes that ``[tune]`` of a project's file keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, StrictBool, create_model

from seatrial.common.contract.tunables import TUNABLES, Tunable, in_words
from seatrial.job.keys import Table


class ScriptChanges(Table):
    """Changes that are made to a torch script from outside. Source: common/contract/tunables.py."""

    script: str | None = Field(default=None, description="The one script that the changes are for; default: any.")

    def set_ones(self) -> dict[str, Any]:
        """Those that are set, as the hook reads them."""
        return {key: value for key, value in self.model_dump(exclude={"script"}).items() if value not in (None, False)}

    @property
    def words(self) -> str:
        """``compile=default, workers=8``."""
        return in_words(self.set_ones())


def _field(tunable: Tunable) -> tuple[Any, Any]:
    kind, _, values = tunable.kind.partition(":")
    typed: Any = StrictBool
    if kind == "choice":
        typed = Literal[tuple(values.split(","))]
    elif kind == "count":
        least, _, most = values.partition("-")
        typed = Annotated[int, Field(ge=int(least), le=int(most) if most else None)]
    return typed | None, Field(default=None, description=tunable.help)


if TYPE_CHECKING:
    Changes = ScriptChanges
else:
    #: ``[tune]``: the script, and a key for each of TUNABLES.
    Changes = create_model(
        "Changes",
        __base__=ScriptChanges,
        __doc__=ScriptChanges.__doc__,
        __module__=__name__,
        **{each.key: _field(each) for each in TUNABLES},
    )


class Tuning(Table):
    """What a tune is asked for.

    Attributes:
        steps, seconds: measured in each trial, at most. budget_s: for all trials.
        only: groups (tunables.GROUPS) that are tried; () for all. fit: batch sizes in place of changes.
    """

    steps: int = 60
    seconds: float = 20.0
    budget_s: float = 180.0
    only: tuple[str, ...] = ()
    fit: bool = False
