"""Where a project comes from, for its image's labels: git's remote and commit, without any login."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

from seatrial.errors import CommandTimeoutError, EngineUnavailableError
from seatrial.job.model import Job
from seatrial.system import command

_TIMEOUT_S = 10.0

#: A repository's own settings name programs that `git status` would start.
_GIT = ("git", "-c", "core.fsmonitor=false")

#: ``user@host:path``, as ssh is usually written.
_SSH = re.compile(r"(?:[^@/]+@)?(?P<host>[^:/@]+):(?P<path>[^/].*)")


def origin_labels(job: Job) -> dict[str, str]:
    """``org.opencontainers.image.source`` and ``.revision``; {} for a recipe, or where there is no git checkout.

    They are given to the build and are no part of what the tag hashes: an image is that of its packages, and the
    revision says from which commit of the project it was made first. Source of the names:
    github.com/opencontainers/image-spec, annotations.md.
    """
    if job.target.kind == "recipe":
        return {}
    revision = _git(job.project, "rev-parse", "HEAD")
    if revision is None:
        return {}
    if _git(job.project, "status", "--porcelain", "--untracked-files=no"):
        revision += "-dirty"
    source = public_url(_git(job.project, "config", "--get", "remote.origin.url") or "")
    labels = {"org.opencontainers.image.revision": revision}
    return {**labels, "org.opencontainers.image.source": source} if source else labels


def public_url(remote: str) -> str | None:
    """A remote as a URL without login, query and fragment, where tokens stand; None for a folder of this machine."""
    if "://" not in remote:
        match = _SSH.fullmatch(remote)
        return f"ssh://{match['host']}/{match['path']}" if match else None
    parts = urlsplit(remote)
    if parts.scheme not in ("http", "https", "ssh", "git") or not parts.hostname:
        return None
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def _git(project: Path, *words: str) -> str | None:
    """What git says, or None: no git, no checkout, somebody else's checkout, no commit yet."""
    try:
        ended = command.run([*_GIT, "-C", str(project), *words], timeout_s=_TIMEOUT_S)
    except (EngineUnavailableError, CommandTimeoutError):
        return None
    return ended.stdout.strip() if ended.exit_code == 0 else None
