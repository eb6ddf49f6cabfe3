"""Find where packages come from: indexes of the project, the user and pip's configuration, find-links, authorities."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from seatrial.errors import ConfigError, fallback
from seatrial.images.requirements.pip_format import Requirements
from seatrial.job.model import ImageOptions, Job
from seatrial.job.reading.modules import is_file
from seatrial.system.host import Host
from seatrial.system.project_files import read_bytes
from seatrial.system.text import without_login

#: Three times the wheels of torch 2.13 for CUDA 13.0 and its packages (2.76 GB), and some more.
_MOST_WHEEL_BYTES = 10_000_000_000

#: All authorities that Debian trusts are 220,000 bytes.
_MAX_BUNDLE_BYTES = 20_000_000


#: pip's index without any setting. Source: pip's --index-url.
PYPI = "https://pypi.org/simple"

#: Sections of a configuration file that `pip install` reads, the stronger one last.
_SECTIONS = ("global", "install")
_KEYS = ("index-url", "extra-index-url", "find-links", "no-index")

#: Most indexes used of one project.
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
    """Return the indexes and pages of links where pip would look for packages, without repetition; () for nowhere.

    The machine's own pip configuration stands for what the project leaves open: a build does not see it, but where it
    names a mirror, that is the way to the same files.
    """
    own = _of_lines(found.options)
    configured = pip_configuration(host)
    if options.index_url:
        configured["index-url"] = [options.index_url]
    chosen = {key: own.get(key) or configured.get(key, []) for key in ("index-url", "no-index")}
    urls: list[PackageSource] = []
    if not {each.lower() for each in chosen["no-index"][-1:]} & {"1", "true", "yes", "on"}:
        urls += [PackageSource(url) for url in (chosen["index-url"] or [PYPI])[-1:]]
        urls += [PackageSource(url) for key in (configured, own) for url in key.get("extra-index-url", [])]
    links = [*configured.get("find-links", []), *own.get("find-links", [])]
    if options.find_links and _is_url(options.find_links):
        links.append(options.find_links)
    urls += [PackageSource(url, "links") for url in links if _is_url(url)]
    return tuple(dict.fromkeys(source for source in urls if _is_address(source.url)))[:_MOST_SOURCES]


def pip_configuration(host: Host) -> dict[str, list[str]]:
    """Read package sources as ``pip config list`` merges them (pip.pypa.io/en/stable/topics/configuration)."""
    merged: dict[str, list[str]] = {}
    for file in filter(is_file, _files(host)):
        import configparser  # few machines have such a file

        parser = configparser.RawConfigParser(strict=False)
        with suppress(OSError, ValueError, configparser.Error):
            parser.read_string(file.read_text(encoding="utf-8"))
            for section in filter(parser.has_section, _SECTIONS):
                merged |= {key: parser.get(section, key).split() for key in _KEYS if parser.has_option(section, key)}
    for key in _KEYS:
        if value := host.env.get(f"PIP_{key.upper().replace('-', '_')}"):
            merged[key] = value.split()
    return merged


def _files(host: Host) -> Iterator[Path]:
    """Yield pip's configuration files, the strongest last."""
    if (named := host.env.get("PIP_CONFIG_FILE")) == os.devnull:
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
    """Return option → its values in order, from the options of requirements files; local folders are left out."""
    found: dict[str, list[str]] = {}
    for line in options:
        name, _, value = line.replace("=", " ", 1).partition(" ")
        key = {"-i": "index-url", "-f": "find-links"}.get(name, name.removeprefix("--"))
        if key in _KEYS and not value.strip().startswith("file:"):
            found.setdefault(key, []).append(value.strip() or "1")
    return found


@fallback(False, on=ValueError)
def _is_address(url: str) -> bool:
    return urlsplit(url).scheme in ("http", "https", "file")


def has_own_sources(options: ImageOptions) -> bool:
    """Return True if the user names an index or find-links."""
    return bool(options.index_url or options.find_links)


def pip_conf(options: ImageOptions) -> str | None:
    """Return the pip configuration that goes into the build as a secret; None if no source is named."""
    lines = []
    if options.index_url:
        lines.append(f"index-url = {options.index_url}")
    if options.find_links and _is_url(options.find_links):
        lines.append(f"find-links = {options.find_links}")
    return "\n".join(["[global]", *lines, ""]) if lines else None


def wheels_of(job: Job) -> tuple[Path, ...]:
    """Return the wheels of the folder ``find_links``, relative to the project, by name; () if it is a URL or unset."""
    if not job.image.find_links or _is_url(job.image.find_links):
        return ()
    folder = Path(os.path.realpath(job.project / job.image.find_links))
    wheels = tuple(sorted(folder.glob("*.whl"))) if folder.is_dir() else ()
    if not wheels:
        message = f"seatrial.toml: image.find_links: no wheels in {folder}"
        raise ConfigError(message, run=f"pip download -d {folder} PACKAGE")
    for path in wheels:
        if path.is_symlink() or not path.is_file():  # a link's target would be sent to the builder
            raise ConfigError(f"seatrial.toml: image.find_links: {path} is not a file", run=f"ls -l {folder}")
    sizes = {path.name: path.stat().st_size for path in wheels}
    if sum(sizes.values()) > _MOST_WHEEL_BYTES:
        largest = sorted(sizes.items(), key=lambda row: -row[1])[:3]
        raise ConfigError(
            f"seatrial.toml: image.find_links: the wheels in {folder} are {sum(sizes.values()) / 1e9:.0f} GB, all of "
            "which would be sent to the builder",
            cause=f"the largest: {', '.join(f'{name} {size / 1e9:.1f} GB' for name, size in largest)}",
            run=f"pip download -d FOLDER -r requirements.txt --find-links {folder}   # only what is needed",
        )
    return wheels


def ca_bundle(job: Job) -> Path:
    """Check that ``ca_bundle`` is a PEM file; return its real path. Inside the project no link may lead out of it."""
    path = job.project / (job.image.ca_bundle or "")
    inside = job.project if Path(os.path.normpath(path)).is_relative_to(job.project) else None
    data = fallback(b"", on=ConfigError)(read_bytes)(path, inside=inside, limit_bytes=_MAX_BUNDLE_BYTES)
    if b"-----BEGIN CERTIFICATE-----" not in data:  # or a folder, a device, nothing at all
        message = f"seatrial.toml: image.ca_bundle: {path} is not a PEM file of certificates"
        raise ConfigError(message, run=f"openssl x509 -in {path} -noout -subject")
    return Path(os.path.realpath(path))


def digest_of_sources(job: Job, wheels: Iterable[Path]) -> tuple[str | None, str | None]:
    """Return digests over where packages come from; None without any.

    The first, for layers checked by hash, has no logins; the second has, as another login may get other packages.
    """
    urls = [url for url in (job.image.index_url, job.image.find_links) if url and _is_url(url)]
    shown, files = [PackageSource(url).shown for url in urls], digest_of_wheels(wheels)
    sources = [*shown, *([files] if files else [])]
    named = [ca_bundle(job)] if job.image.ca_bundle else []
    bundle = [read_bytes(path, inside=None, limit_bytes=_MAX_BUNDLE_BYTES).hex() for path in named]
    return _digest(sources), _digest([*sources, *bundle, *([os.path.realpath(job.project)] if shown != urls else [])])


def digest_of_wheels(wheels: Iterable[Path]) -> str | None:
    """Return a digest over names and contents; None without any."""
    return _digest([f"{path.name} {digest_of_wheel(path)}" for path in wheels])


def digest_of_wheel(path: Path) -> str:
    """Return the SHA-256 of a wheel, which is read once in a command unless it changes."""
    found = path.lstat()
    return _digest_of(path, (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns))


@lru_cache(maxsize=1000)
def _digest_of(path: Path, identity: tuple[int, ...]) -> str:
    digest = hashlib.sha256()
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _digest(parts: list[str]) -> str | None:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32] if parts else None


def _is_url(place: str) -> bool:
    return "://" in place
