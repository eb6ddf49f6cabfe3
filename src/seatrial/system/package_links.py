"""Links of an HTML page of a package index."""

from __future__ import annotations

from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit


def links_of(page: str) -> list[tuple[str, str]]:
    """(file name, the Python that it requires or "") of each link, in order."""
    links = _Links()
    links.feed(page)
    return links.files


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.files: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "a" and (href := given.get("href")):
            try:
                name = unquote(urlsplit(href).path).rpartition("/")[2]
            except ValueError:  # an address that is none
                return
            self.files.append((name, given.get("data-requires-python") or ""))
