"""Where a project comes from, for its image's labels: git's remote and commit, without any login."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from seatrial.job.model import Job
from seatrial.system import checkout
from seatrial.system.without_login import without_login

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
    revision = checkout.commit(job.project)
    if revision is None:
        return {}
    if checkout.differs(job.project):
        revision += "-dirty"
    source = public_url(checkout.remote(job.project) or "")
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
    return without_login(parts._replace(query="", fragment="").geturl())
