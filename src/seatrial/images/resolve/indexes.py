"""Find the package indexes of a build: the project's own lines first, then pip's configuration, then PyPI."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from seatrial.images.requirements.pip_format import Requirements
from seatrial.job.model import ImageOptions
from seatrial.system.host import Host
from seatrial.system.text import without_login

#: The index of pip's without any setting. Source: pip's --index-url.
PYPI = "https://pypi.org/simple"

#: Sections of a configuration file that `pip install` reads, the stronger one last.
_SECTIONS = ("global", "install")
_KEYS = ("index-url", "extra-index-url", "find-links", "no-index")
_LONG = {"-i": "index-url", "-f": "find-links"}

#: Indexes of one project that are used.
_MOST_SOURCES = 8


@dataclass(frozen=True)
class PackageSource:
    """Hold where packages come from: an ``index`` with a page a project, or one page of ``links`` to files."""

    url: str = field(repr=False)
    kind: Literal["index", "links"] = "index"

    @property
    def shown(self) -> str:
        """Return the address without a login and a query."""
        return urlsplit(without_login(self.url))._replace(query="", fragment="").geturl()


def index_sources(options: ImageOptions, found: Requirements, host: Host) -> tuple[PackageSource, ...]:
    """Where pip would look for a package, without repetition; () for nowhere.

    The machine's own pip configuration stands for what the project leaves open: a build does not see it, but where it
    names a mirror, that is the way to the same files.
    """
    own = _of_lines(found.options)
    configured = pip_configuration(host)
    if options.index_url:
        configured["index-url"] = [options.index_url]
    chosen = {key: own.get(key) or configured.get(key, []) for key in ("index-url", "no-index")}
    urls: list[PackageSource] = []
    if not _is_on(chosen["no-index"]):
        urls += [PackageSource(url) for url in (chosen["index-url"] or [PYPI])[-1:]]
        urls += [PackageSource(url) for key in (configured, own) for url in key.get("extra-index-url", [])]
    links = [*configured.get("find-links", []), *own.get("find-links", [])]
    if options.find_links and "://" in options.find_links:
        links.append(options.find_links)
    urls += [PackageSource(url, "links") for url in links if "://" in url]
    return tuple(dict.fromkeys(source for source in urls if _is_address(source.url)))[:_MOST_SOURCES]


def pip_configuration(host: Host) -> dict[str, list[str]]:
    """Read the package sources from pip's files and variables, merged as ``pip config list`` merges them.

    Source: https://pip.pypa.io/en/stable/topics/configuration/
    """
    merged: dict[str, list[str]] = {}
    for file in _files(host):
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, ValueError):
            continue
        import configparser  # few machines have such a file

        parser = configparser.RawConfigParser(strict=False)
        try:
            parser.read_string(text)
        except configparser.Error:
            continue
        for section in filter(parser.has_section, _SECTIONS):
            merged.update({key: parser.get(section, key).split() for key in _KEYS if parser.has_option(section, key)})
    for key in _KEYS:
        if value := host.env.get(f"PIP_{key.upper().replace('-', '_')}"):
            merged[key] = value.split()
    return merged


def _files(host: Host) -> Iterator[Path]:
    """pip's configuration files, the strongest last."""
    named = host.env.get("PIP_CONFIG_FILE")
    if named == os.devnull:
        return
    home = Path(host.env.get("HOME") or "/nonexistent")
    for folder in reversed((host.env.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":")):
        yield Path(folder, "pip", "pip.conf")
    yield Path("/etc/pip.conf")
    yield home / ".pip" / "pip.conf"
    yield Path(host.env.get("XDG_CONFIG_HOME") or home / ".config", "pip", "pip.conf")
    yield Path(sys.prefix, "pip.conf")
    if named:
        yield Path(named)


def _of_lines(options: tuple[str, ...]) -> dict[str, list[str]]:
    """Options of requirements files, ``--index-url URL``: key → values in their order; no folder of this machine."""
    found: dict[str, list[str]] = {}
    for line in options:
        name, _, value = line.replace("=", " ", 1).partition(" ")
        key = _LONG.get(name, name.removeprefix("--"))
        if key in _KEYS and not value.strip().startswith("file:"):
            found.setdefault(key, []).append(value.strip() or "1")
    return found


def _is_on(values: list[str]) -> bool:
    return bool(values) and values[-1].lower() in ("1", "true", "yes", "on")


def _is_address(url: str) -> bool:
    try:
        return urlsplit(url).scheme in ("http", "https", "file")
    except ValueError:
        return False
