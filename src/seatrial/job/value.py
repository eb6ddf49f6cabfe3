"""Value: the base of what a job, its plan and their parts are made of."""

from __future__ import annotations

import os
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict

V = TypeVar("V", bound="Value")

#: The plug-ins that pydantic leaves out. Source: pydantic.dev/docs, "Pydantic plugins".
_PLUGINS = "PYDANTIC_DISABLE_PLUGINS"


class Value(BaseModel):
    """Immutable, checked whenever one is made, and without unknown fields."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_by_name=True, defer_build=True)

    @classmethod
    def model_rebuild(cls, **settings: Any) -> bool | None:
        """Make the validator without plug-ins; pydantic would ask every installed package for some."""
        ours = _PLUGINS not in os.environ
        os.environ.setdefault(_PLUGINS, "__all__")
        try:
            return super().model_rebuild(**settings)
        finally:
            if ours:  # the target's own pydantic is its own affair
                os.environ.pop(_PLUGINS, None)

    def changed(self: V, **fields: Any) -> V:
        """Return a copy with these fields in place of its own, checked as if it had been written so."""
        return type(self)(**{**{name: getattr(self, name) for name in self.model_fields_set}, **fields})
