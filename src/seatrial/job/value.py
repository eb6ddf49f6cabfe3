"""Value: the base of what a job, its plan and their parts are made of."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict

V = TypeVar("V", bound="Value")


class Value(BaseModel):
    """Immutable, checked whenever one is made, and without unknown fields."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_by_name=True, defer_build=True)

    def changed(self: V, **fields: Any) -> V:
        """Return a copy with these fields in place of its own, checked as if it had been written so."""
        kept = {name: getattr(self, name) for name in self.model_fields_set}
        return type(self)(**{**kept, **fields})
