"""Where packages come from, as the user names it: an index, find-links, extra authorities."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from seatrial.errors import ConfigError
from seatrial.images.resolve.indexes import PackageSource
from seatrial.job.model import ImageOptions, Job
from seatrial.system.project_files import read_bytes

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
    folder = Path(os.path.realpath(job.project / job.image.find_links))
    wheels = tuple(sorted(folder.glob("*.whl"))) if folder.is_dir() else ()
    if not wheels:
        raise ConfigError(
            f"seatrial.toml: image.find_links: no wheels in {folder}", run=f"pip download -d {folder} PACKAGE"
        )
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
    """The certificate bundle's path, links resolved; it is named relative to the project, which none leads out of."""
    path = job.project / (job.image.ca_bundle or "")
    inside = job.project if Path(os.path.normpath(path)).is_relative_to(job.project) else None
    try:
        data = read_bytes(path, inside=inside, limit_bytes=_MAX_BUNDLE_BYTES)
    except ConfigError:  # a folder, a device, or nothing at all
        data = b""
    if b"-----BEGIN CERTIFICATE-----" not in data:
        raise ConfigError(
            f"seatrial.toml: image.ca_bundle: {path} is not a PEM file of certificates",
            run=f"openssl x509 -in {path} -noout -subject",
        )
    return Path(os.path.realpath(path))


def digest_of_sources(job: Job, wheels: Iterable[Path]) -> tuple[str | None, str | None]:
    """Return digests over where packages come from; None without any.

    The first is for layers whose packages are checked by hash, and leaves logins out. The second is for the others:
    the same address may hold other packages for another login, so with a login it is the project's own.
    """
    urls = [url for url in (job.image.index_url, job.image.find_links) if url and _is_url(url)]
    shown, files = [PackageSource(url).shown for url in urls], digest_of_wheels(wheels)
    sources = [*shown, *([files] if files else [])]
    bundle = (
        [read_bytes(ca_bundle(job), inside=None, limit_bytes=_MAX_BUNDLE_BYTES).hex()] if job.image.ca_bundle else []
    )
    cell = [os.path.realpath(job.project)] if shown != urls else []
    return _digest(sources), _digest([*sources, *bundle, *cell])


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
