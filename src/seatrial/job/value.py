"""Value: the base of what a job, its plan and their parts are made of."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict

V = TypeVar("V", bound="Value")

#: Stands in for the module in which pydantic asks every installed package for plug-ins: to import it takes 8 ms.
_NO_PLUGINS = ModuleType("pydantic.plugin._loader")
_NO_PLUGINS.__dict__["get_plugins"] = tuple


class Value(BaseModel):
    """Immutable, checked whenever one is made, and without unknown fields."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_by_name=True, defer_build=True)

    @classmethod
    def model_rebuild(cls, **settings: Any) -> bool | None:
        """Make the validator without plug-ins."""
        own = sys.modules.get(_NO_PLUGINS.__name__, _NO_PLUGINS)
        sys.modules[_NO_PLUGINS.__name__] = _NO_PLUGINS
        try:
            return super().model_rebuild(**settings)
        finally:
            sys.modules.pop(_NO_PLUGINS.__name__, None)  # the target's own pydantic is its own affair
            if own is not _NO_PLUGINS:
                sys.modules[_NO_PLUGINS.__name__] = own

    def changed(self: V, **fields: Any) -> V:
        """Return a copy with these fields in place of its own, checked as if it had been written so."""
        return type(self)(**{**{name: getattr(self, name) for name in self.model_fields_set}, **fields})
