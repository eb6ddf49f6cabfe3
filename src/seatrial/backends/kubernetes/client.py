"""The connection to a Kubernetes API server. kr8s signs in and reconnects; answers are plain dictionaries."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import threading
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from seatrial.errors import ConfigError, EngineError, EngineUnavailableError, NameInUseError, SeatrialError, UsageError
from seatrial.job.plan import EngineAddress
from seatrial.system.command import install_extra
from seatrial.system.host import Host
from seatrial.system.project_files import MAX_BYTES, parse_yaml, read_text
from seatrial.system.text import shown

if TYPE_CHECKING:
    from kr8s.asyncio import Api


SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")

_EXEC_PROTOCOL = "v4.channel.k8s.io"
#: Timeout of one answer. Servers themselves end a request that takes a minute.
ANSWER_TIMEOUT_S = 20.0

_FORBIDDEN = re.compile(
    r'(?:User "(?P<user>[^"]*)" )?cannot (?P<verb>\w+) resource "(?P<resource>[^"]+)" in API group "(?P<group>[^"]*)"'
    r'(?: in the namespace "(?P<namespace>[^"]+)")?'
)

Object = dict[str, Any]
T = TypeVar("T")


def kubeconfigs(host: Host, root: str = "") -> Iterator[Path]:
    """Yield the existing files that KUBECONFIG names, or else the default one. ``root`` stands for ``/``."""
    home = host.env.get("HOME") or os.path.expanduser("~")  # noqa: PTH111  Path's raises without a home
    for name in host.env.get("KUBECONFIG", "~/.kube/config").split(os.pathsep):
        path = Path(root + (home + name[1:] if name.startswith("~/") else name))
        if name and path.is_file():
            yield path


def configured(host: Host) -> str | None:
    """Return the source of the cluster's address; None without a cluster."""
    for path in kubeconfigs(host):
        return f"kubeconfig {path}"
    return "this pod's service account" if SERVICE_ACCOUNT.exists() else None


def not_configured(host: Host) -> str:
    """Return the reason for ``configured`` to be None."""
    named = host.env.get("KUBECONFIG")
    return f"KUBECONFIG names {named}, which does not exist" if named else "no kubeconfig found, and this is not a pod"


class ApiError(EngineError):
    """The API server answered with an error. ``status`` is the HTTP code."""

    def __init__(self, message: str, *, status: int, cause: str | None = None, run: str | None = None):
        super().__init__(message, cause=cause, run=run)
        self.status = status


def refused(status: int, reason: str, message: str) -> SeatrialError:
    """Return the error for the API server's HTTP status and the reason and message of its Status object."""
    if status == 401:
        why = "they have expired, or belong to another cluster"
        look = "kubectl config current-context && kubectl version   # then log in again with your provider's tool"
        return EngineUnavailableError("The cluster rejected these credentials", cause=why, run=look)
    if status == 409 and reason == "AlreadyExists":
        look = "seatrial runs ls; kubectl get job,configmap -l app.kubernetes.io/managed-by=seatrial"
        return NameInUseError(f"The resource already exists: {message}", run=look)
    text, cause, run = f"The cluster returned {status}: {message}", None, None
    if status == 403 and (match := _FORBIDDEN.search(message)):
        named = f"{match['verb']} {match['resource']}" + (f".{match['group']}" if match["group"] else "")
        namespace = match["namespace"]
        text = f"Permission is missing: {named}" + (f" in the namespace {namespace}" if namespace else "")
        cause = f"{match['user'] or 'this account'} has no Role that allows it; an administrator can bind one"
        run = f"kubectl auth can-i {named}" + (f" -n {namespace}" if namespace else "")
    elif status == 404 and (match := re.search(r'namespaces "([^"]+)" not found', message)):
        text, run = f"Namespace {match[1]} not found", f"kubectl create namespace {match[1]}"
    elif status == 422:
        text, run = f"The cluster rejected the manifest: {message}", "seatrial plan … --on k8s"
    elif status == 403 and "exceeded quota" in message:
        text, run = f"The namespace's quota does not allow it: {message}", "kubectl describe resourcequota"
    return ApiError(text, status=status, cause=cause, run=run)


def no_cluster(why: str) -> EngineUnavailableError:
    message = f"No cluster found: {why}"
    run = "kubectl config get-contexts   # KUBECONFIG names another file"
    return EngineUnavailableError(message, cause="neither a kubeconfig nor a pod service account exists", run=run)


@contextlib.contextmanager
def _errors_as_ours(server: str) -> Iterator[None]:
    """Raise kr8s's errors as ours: its ServerError holds the API's Status object, or text where a proxy answered."""
    try:
        import httpx
        import kr8s
    except ImportError as error:
        raise EngineUnavailableError("Kubernetes needs the package kr8s", run=install_extra("k8s")) from error
    try:
        yield
    except kr8s.ServerError as error:
        status = error.response.status_code if error.response is not None else 0
        body: Object = error.status if isinstance(error.status, dict) else {}
        raise refused(status, str(body.get("reason", "")), str(body.get("message") or error)) from error
    except (httpx.TransportError, kr8s.APITimeoutError) as error:
        message = f"The cluster at {server} does not respond"
        cause = str(error) or "it is down, or this machine cannot reach it"
        raise EngineUnavailableError(message, cause=cause, run="kubectl cluster-info") from error


class Cluster:
    """A cluster, as one user sees it, by kubeconfig; None: its current one. Safe to use from several threads."""

    def __init__(self, host: Host, context: str | None = None, namespace: str | None = None) -> None:
        self._host, self._context, self._namespace = host, context, namespace
        self._signed_in: Api | None = None

    # ---------------------------------------------------------------- requests

    def get(self, path: str, **params: str) -> Object:
        """GET an object or list; ``path`` such as ``/api/v1/namespaces/default/pods``."""
        return self.call(self.request("GET", path, params=params))

    def find(self, path: str, **params: str) -> Object | None:
        """GET an object; None if there is none."""
        try:
            return self.get(path, **params)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def create(self, path: str, body: Object, *, dry_run: bool = False) -> Object:
        params = {"fieldManager": "seatrial", **({"dryRun": "All"} if dry_run else {})}
        return self.call(self.request("POST", path, params=params, body=body))

    def patch(self, path: str, body: Object) -> Object:
        """Send a merge patch."""
        headers = {"content-type": "application/merge-patch+json"}
        return self.call(self.request("PATCH", path, body=body, headers=headers))

    def delete(self, path: str, *, grace_s: int | None = None, propagation: str = "Background") -> None:
        """DELETE an object; do nothing if it has gone."""
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        try:
            self.call(self.request("DELETE", path, body=options))
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    # ------------------------------------------------------- for the collector

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Object | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Object:
        """Send one request. Raises SeatrialError with the server's own words."""
        api = await self._api()
        given = {"params": params, "content": json.dumps(body) if body is not None else None, "headers": headers}
        arguments: Any = {key: value for key, value in given.items() if value}
        with _errors_as_ours(api.auth.server):
            async with api.call_api(method, base=path, version="", **arguments) as response:
                answer: Object = response.json()
                return answer

    async def lines(self, path: str, **params: str) -> AsyncIterator[bytes]:
        """Yield the lines of a watch or a followed log, until the server ends it."""
        import httpx

        api = await self._api()
        timeout = httpx.Timeout(ANSWER_TIMEOUT_S, read=None)
        with _errors_as_ours(api.auth.server):
            async with api.call_api(
                "GET", base=path, version="", params=params, stream=True, timeout=timeout
            ) as answer:
                pending = b""
                async for chunk in answer.aiter_bytes():
                    *whole, pending = (pending + chunk).split(b"\n")
                    for line in whole:
                        yield line + b"\n"
                if pending:
                    yield pending + b"\n"

    async def execute(
        self,
        namespace: str,
        pod: str,
        argv: list[str],
        out: Callable[[bytes], object],
        err: Callable[[bytes], object],
        *,
        container: str | None = None,
    ) -> int:
        """Run a command in a pod's container, which must be named if there are several; return its exit code.

        Source: kubernetes.io, the channels of v4.channel.k8s.io: 1 stdout, 2 stderr, 3 a Status object at the end.
        """
        api = await self._api()
        path = f"/api/v1/namespaces/{namespace}/pods/{pod}/exec"
        params = [("stdout", "true"), ("stderr", "true"), *(("command", word) for word in argv)]
        params += [("container", container)] if container else []
        async with api.open_websocket(base=path, version="", subprotocols=[_EXEC_PROTOCOL], params=params) as socket:
            while True:
                message = await socket.receive_bytes()
                channel, data = message[0], message[1:]
                if channel == 3:
                    status = json.loads(data)
                    causes = (status.get("details") or {}).get("causes") or []
                    codes = [int(cause["message"]) for cause in causes if cause.get("reason") == "ExitCode"]
                    return codes[0] if codes else int(status.get("status") != "Success")
                (out if channel == 1 else err)(data)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of this cluster to its end, from any thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def submit(self, work: Coroutine[Any, Any, T]) -> Any:
        """Start a coroutine of this cluster; return its concurrent future."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    @cached_property
    def namespace(self) -> str:
        """Return the requested namespace, or the context's."""
        return self._namespace or str(self.call(self._api()).auth.namespace)

    @cached_property
    def context(self) -> str | None:
        """Return the context in use; None inside a pod."""
        return self.call(self._api()).auth.active_context or None

    @cached_property
    def server(self) -> str:
        """Return the address of the context's API server."""
        return str(self.call(self._api()).auth.server)

    def address(self) -> EngineAddress:
        """Return the cluster's address, with the ID of kube-system (as cluster-api has it), or else its server."""
        try:
            identity = self.get("/api/v1/namespaces/kube-system")["metadata"].get("uid")
        except ApiError:
            identity = None
        files = os.pathsep.join(str(path.absolute()) for path in kubeconfigs(self._host))
        return EngineAddress(endpoint=self.server, id=identity or self.server, credentials=files or None)

    # --------------------------------------------------------------- the parts

    @cached_property
    def _loop(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, name="kubernetes", daemon=True).start()
        return loop

    async def _api(self) -> Api:
        """Return the signed-in connection. kr8s keeps it, too, but requests the server's version each time."""
        if self._signed_in is not None:
            return self._signed_in
        with _errors_as_ours("the kubeconfig's address"):
            if configured(self._host) is None:
                raise no_cluster(not_configured(self._host))
            for path in kubeconfigs(self._host):
                data = parse_yaml(read_text(path, inside=None, limit_bytes=MAX_BYTES), str(path))
                if not isinstance(data, dict) or not data:
                    message = f"{path} is not a kubeconfig: expected a table, got {shown(data)}"
                    raise ConfigError(message, run=f"kubectl config view --kubeconfig {path}")
            warnings.filterwarnings("ignore", message="Kubernetes version", module="kr8s")  # survey looks at it itself
            api = await self._sign_in()
        api.timeout = ANSWER_TIMEOUT_S
        self._signed_in = api
        return api

    async def _sign_in(self) -> Api:
        """Sign in. Raises EngineUnavailableError, UsageError. kr8s trusts the types of a kubeconfig's values."""
        import httpx
        import kr8s.asyncio
        import yaml

        try:
            return await kr8s.asyncio.api(context=self._context, kubeconfig=self._host.env.get("KUBECONFIG"))
        except (OSError, LookupError, TypeError, AttributeError, ValueError, httpx.InvalidURL, yaml.YAMLError) as error:
            if self._context and "No such context" in str(error):
                message = f"The kubeconfig has no context {self._context}"
                raise UsageError(message, run="kubectl config get-contexts") from None
            why = str(error) if type(error) is ValueError else f"the kubeconfig cannot be used: {error}"
            raise no_cluster(why) from error
