"""URLs as they may be written down."""

from __future__ import annotations

from urllib.parse import urlsplit


def without_login(url: str) -> str:
    """The URL without ``user:password@``. Raises ValueError for an address that is none."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
