"""Row: a labelled line of a receipt, the same in every rendering."""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    label: str
    value: str
