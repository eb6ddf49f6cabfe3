"""Site: what the answers of a front stand on."""

from __future__ import annotations

from dataclasses import dataclass

from seatrial.serve.counts import Counts
from seatrial.serve.model_link import ModelLink
from seatrial.serve.options import Options


@dataclass(frozen=True)
class Site:
    """The options, the way to the model, and the counts."""

    options: Options
    link: ModelLink
    counts: Counts
