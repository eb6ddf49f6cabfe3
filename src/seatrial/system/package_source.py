"""Where packages come from."""

from __future__ import annotations

from dataclasses import field
from typing import Literal
from urllib.parse import urlsplit

from seatrial.system.records import dataclass
from seatrial.system.without_login import without_login


@dataclass(frozen=True)
class Source:
    """Where packages come from: an ``index`` with a page a project, or one page of ``links`` to files."""

    url: str = field(repr=False)
    kind: Literal["index", "links"] = "index"

    @property
    def shown(self) -> str:
        """The address without a login and a query."""
        return urlsplit(without_login(self.url))._replace(query="", fragment="").geturl()


@dataclass(frozen=True)
class Task:
    """One page to read: what it has of these projects."""

    source: Source
    names: tuple[str, ...]
