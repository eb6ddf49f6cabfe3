"""What every stage of one ``seatrial up`` has in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from seatrial.pipelines.stages.digests import Digests
from seatrial.pipelines.stages.record import StageRecords
from seatrial.runs.store import RunStore


@dataclass(frozen=True)
class Workshop:
    """Where the runs, the records and the digests of a project's stages are."""

    store: RunStore
    records: StageRecords
    digests: Digests
    environ: Mapping[str, str]
