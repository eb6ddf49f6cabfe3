"""Where packages come from, as the user names it: an index, find-links, extra authorities."""

from __future__ import annotations

import hashlib
from pathlib import Path

from seatrial.errors import ConfigError
from seatrial.job.model import ImageOptions, Job
from seatrial.system.project_files import read_bytes
from seatrial.system.text import without_login

#: Three times what torch 2.13 for CUDA 13.0 and its packages are as wheels (2.76 GB), and some more.
_MOST_WHEEL_BYTES = 10_000_000_000

#: All authorities that Debian trusts are 220,000 bytes.
_MAX_BUNDLE_BYTES = 20_000_000


def has_own_sources(options: ImageOptions) -> bool:
    """The user names an index or find-links."""
    return bool(options.index_url or options.find_links)


def pip_conf(options: ImageOptions) -> str | None:
    """The pip configuration that goes into the build as a secret, or None when no source is named."""
    lines = []
    if options.index_url:
        lines.append(f"index-url = {options.index_url}")
    if options.find_links and _is_url(options.find_links):
        lines.append(f"find-links = {options.find_links}")
    return "\n".join(["[global]", *lines, ""]) if lines else None


def wheels_of(job: Job) -> tuple[Path, ...]:
    """Wheels of a ``find_links`` folder, by name; () when it is a URL or not given. Relative to the project."""
    if not job.image.find_links or _is_url(job.image.find_links):
        return ()
    folder = job.project / job.image.find_links
    wheels = tuple(sorted(folder.glob("*.whl"))) if folder.is_dir() else ()
    if not wheels:
        raise ConfigError(
            f"seatrial.toml: image.find_links: no wheels in {folder}", run=f"pip download -d {folder} PACKAGE"
        )
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
    """The certificate bundle's absolute path; it is named relative to the project."""
    path = job.project / (job.image.ca_bundle or "")
    try:
        data = read_bytes(path, inside=None, limit_bytes=_MAX_BUNDLE_BYTES)
    except ConfigError:  # a folder, a device, or nothing at all
        data = b""
    if b"-----BEGIN CERTIFICATE-----" not in data:
        raise ConfigError(
            f"seatrial.toml: image.ca_bundle: {path} is not a PEM file of certificates",
            run=f"openssl x509 -in {path} -noout -subject",
        )
    return path


def digest_of_sources(options: ImageOptions, wheels: tuple[Path, ...]) -> str | None:
    """12 hex digits over where packages come from, logins left out; wheels count by name and size."""
    sources = [without_login(url) for url in (options.index_url, options.find_links) if url and _is_url(url)]
    sources += [f"{path.name} {path.stat().st_size}" for path in wheels]
    return hashlib.sha256("\n".join(sources).encode()).hexdigest()[:12] if sources else None


def _is_url(place: str) -> bool:
    return "://" in place
