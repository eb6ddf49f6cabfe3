"""What a cluster refuses, in one sentence with the next command."""

from __future__ import annotations

import re

from seatrial.errors import EngineError, EngineUnavailableError, NameInUseError, SeatrialError

_FORBIDDEN = re.compile(
    r'(?:User "(?P<user>[^"]*)" )?cannot (?P<verb>\w+) resource "(?P<resource>[^"]+)" in API group "(?P<group>[^"]*)"'
    r'(?: in the namespace "(?P<namespace>[^"]+)")?'
)


class ApiError(EngineError):
    """The API server answered with an error. ``status`` is the HTTP code."""

    def __init__(self, message: str, *, status: int, cause: str | None = None, run: str | None = None):
        super().__init__(message, cause=cause, run=run)
        self.status = status


def refused(status: int, reason: str, message: str) -> SeatrialError:
    """The error for an answer of the API server.

    Args:
        status: HTTP code. reason, message: of the Status object it sent.
    """
    if status == 401:
        return EngineUnavailableError(
            "The cluster rejected these credentials",
            cause="they have expired, or belong to another cluster",
            run="kubectl config current-context && kubectl version   # then log in again with your provider's tool",
        )
    if status == 403 and (match := _FORBIDDEN.search(message)):
        return _forbidden(match)
    if status == 404 and (match := re.search(r'namespaces "([^"]+)" not found', message)):
        return ApiError(
            f"There is no namespace {match[1]}",
            status=status,
            run=f"kubectl create namespace {match[1]}",
        )
    if status == 409 and reason == "AlreadyExists":
        return NameInUseError(f"The resource already exists: {message}", run="seatrial runs ls; seatrial k8s cleanup")
    if status == 422:
        return ApiError(
            f"The cluster rejected the manifest: {message}",
            status=status,
            run="seatrial plan … --on k8s",
        )
    if status == 403 and "exceeded quota" in message:
        return ApiError(
            f"The namespace's quota does not allow it: {message}",
            status=status,
            run="kubectl describe resourcequota",
        )
    return ApiError(f"The cluster returned {status}: {message}", status=status)


def _forbidden(match: re.Match[str]) -> ApiError:
    group = f".{match['group']}" if match["group"] else ""
    where = f" in the namespace {match['namespace']}" if match["namespace"] else ""
    scope = f" -n {match['namespace']}" if match["namespace"] else ""
    return ApiError(
        f"Permission is missing: {match['verb']} {match['resource']}{group}{where}",
        status=403,
        cause=f"{match['user'] or 'this account'} has no Role that allows it; whoever runs the cluster can bind one",
        run=f"kubectl auth can-i {match['verb']} {match['resource']}{group}{scope}",
    )


def unreachable(server: str, error: str) -> EngineUnavailableError:
    """Nobody answers at the cluster's address."""
    return EngineUnavailableError(
        f"The cluster at {server} does not respond",
        cause=error or "it is down, or this machine cannot reach it",
        run="kubectl cluster-info",
    )


def no_cluster(why: str) -> EngineUnavailableError:
    """There is nothing to talk to."""
    return EngineUnavailableError(
        f"There is no cluster to run on: {why}",
        cause="there is no kubeconfig and no pod service account",
        run="kubectl config get-contexts   # KUBECONFIG names another file",
    )
