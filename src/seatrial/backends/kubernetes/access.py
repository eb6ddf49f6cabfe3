"""Whether there is a cluster to talk to, from files alone: nothing that speaks to one is imported for it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


def kubeconfigs(environ: Mapping[str, str]) -> Iterator[Path]:
    """The files that are there, of those that KUBECONFIG names, or the usual one."""
    for name in environ.get("KUBECONFIG", "~/.kube/config").split(os.pathsep):
        path = Path(os.path.expanduser(name))  # noqa: PTH111  Path's raises where there is no home
        if name and path.is_file():
            yield path


def configured(environ: Mapping[str, str]) -> str | None:
    """Why there is a cluster to talk to, or None."""
    for path in kubeconfigs(environ):
        return f"kubeconfig {path}"
    return "this pod's service account" if SERVICE_ACCOUNT.exists() else None
