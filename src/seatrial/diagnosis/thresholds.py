"""Every threshold of the diagnosis, by its name in thresholds.toml, which has the measurement it comes from."""

from __future__ import annotations

from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from seatrial.system.project_files import parse_toml


@lru_cache(maxsize=2)
def table(name: str) -> dict[str, Any]:
    """Return the content of a TOML file of this folder."""
    path = Path(f"{name}.toml")
    return parse_toml(resources.files("seatrial.diagnosis").joinpath(path.name).read_text("utf-8"), path)


def __getattr__(name: str) -> float:
    try:
        value: float = table("thresholds")[name]
    except KeyError:
        raise AttributeError(name) from None
    return value
