"""Record: what every part of a receipt is."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """Frozen; keys of a newer version are ignored when an older one reads its receipt."""

    model_config = ConfigDict(extra="ignore", frozen=True)
