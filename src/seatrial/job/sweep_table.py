"""[sweep] of seatrial.toml: what ``seatrial sweep`` searches, in the flags' words. ``search/request.py`` reads it."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field
from pydantic import WithJsonSchema as Schema

from seatrial.job.keys import Duration, Table, text, typed
from seatrial.system.shown import shown


def _settings(value: Any) -> Any:
    """Each a SPEC, a value or a list of values."""
    if not isinstance(value, dict):
        return value
    for name, spec in value.items():
        for one in spec if isinstance(spec, list) and spec else [spec]:
            if not isinstance(one, str | int | float) or one == "":
                raise ValueError(
                    f'expected values such as [32, 64] or a range such as "1..8" for {name}, got {shown(spec)}'
                )
    return value


class SweepTable(Table):
    """What to search."""

    search: str | None = Field(default=None, description="Engine: grid, random or tpe.")
    metric: str | None = Field(default=None, description="Objective: NAME:max or NAME:min.")
    metric_from: str | None = Field(default=None, description="Pattern on the output; its first group is the metric.")
    trials: int | None = Field(default=None, ge=1, description="Maximum number of trials.")
    budget_s: Duration | None = Field(default=None, validation_alias="budget", description="Time for the search.")
    parallel: Annotated[str | int | None, Schema({"anyOf": [{"type": "integer", "minimum": 1}, text("auto")]})] = Field(
        default=None, description="Trials at once; auto: as many as fit."
    )
    prune: str | None = Field(default=None, description="Stop trials that fall behind: asha, median or none.")
    seed: int | None = Field(default=None, description="Seed of the engine.")
    set: Annotated[dict[str, Any], typed(_settings), Schema({"type": "object"})] = Field(
        default={}, description="Settings: name = [values], or a range such as log:1e-5..1e-1."
    )
