"""The connection to a Kubernetes API server. kr8s signs in and reconnects; answers are plain dictionaries."""

from __future__ import annotations

import asyncio
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
from seatrial.system.host import Host
from seatrial.system.project_files import read_text
from seatrial.system.text import shown
from seatrial.system.yaml_file import MAX_BYTES, parse_yaml

if TYPE_CHECKING:
    from kr8s.asyncio import Api


_SERVER = re.compile(r"https?://[!-~]+$")
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


def kubeconfigs(host: Host) -> Iterator[Path]:
    """The files that are there, of those that KUBECONFIG names, or the usual one."""
    for name in host.env.get("KUBECONFIG", "~/.kube/config").split(os.pathsep):
        path = Path(os.path.expanduser(name))  # noqa: PTH111  Path's raises where there is no home
        if name and path.is_file():
            yield path


def configured(host: Host) -> str | None:
    """Why there is a cluster to talk to, or None."""
    for path in kubeconfigs(host):
        return f"kubeconfig {path}"
    return "this pod's service account" if SERVICE_ACCOUNT.exists() else None


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
        return NameInUseError(
            f"The resource already exists: {message}",
            run="seatrial runs ls; kubectl get job,configmap -l app.kubernetes.io/managed-by=seatrial",
        )
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


#: What a kubeconfig has, as far as kr8s relies on its types: a type, a table of keys, or a list of one of these.
#: Source: kubernetes.io/docs/reference/config-api/kubeconfig.v1.
_CLUSTER = dict.fromkeys(("server", "certificate-authority", "certificate-authority-data", "proxy-url"), str)
_USER = {
    **dict.fromkeys(("token", "client-certificate", "client-certificate-data", "client-key", "client-key-data"), str),
    "exec": {"command": str, "apiVersion": str, "args": [str], "env": [{"name": str, "value": str}]},
    "auth-provider": {"name": str, "config": {"id-token": str}},
}
_KUBECONFIG = {
    "current-context": str,
    "clusters": [{"name": str, "cluster": {**_CLUSTER, "tls-server-name": str, "insecure-skip-tls-verify": bool}}],
    "contexts": [{"name": str, "context": {"cluster": str, "user": str, "namespace": str}}],
    "users": [{"name": str, "user": _USER}],
}
_REQUIRED = {"name", "cluster", "user", "context", "server", "command", "apiVersion", "value"}
_NULLABLE = {"args", "env", "exec", "auth-provider", "config"}


def read_kubeconfig(path: Path) -> dict[str, Any]:
    """Return the file's data, with the types that kr8s takes for granted. Raises ConfigError naming ``file: key``."""
    data = parse_yaml(read_text(path, inside=None, limit_bytes=MAX_BYTES), str(path))
    run = f"kubectl config view --kubeconfig {path}"
    if not isinstance(data, dict) or not data:
        raise ConfigError(f"{path} is not a kubeconfig: expected a table, got {shown(data)}", run=run)
    if (problem := _problem(data, _KUBECONFIG, "")) is not None:
        raise ConfigError(f"{path}: {problem}", run=run)
    return data


def _problem(value: Any, shape: Any, key: str) -> str | None:
    """Return ``key: what is wrong`` of the first value that does not have its type; None if all have."""
    if isinstance(shape, type):
        is_server = key.endswith(".server")
        right = type(value) is shape and (not is_server or bool(_SERVER.match(str(value))))
        expected = "an address" if is_server else "a text" if shape is str else "true or false"
        return None if right else f"{key}: expected {expected}, got {shown(value)}"
    if not isinstance(value, type(shape)):
        expected = "a list" if isinstance(shape, list) else "a table"
        return f"{key}: expected {expected}, got {shown(value)}"
    if isinstance(shape, list):
        parts = [(each, shape[0], f"{key}.{number}") for number, each in enumerate(value)]
    else:
        at = f"{key}." if key else ""
        missing = sorted(name for name in shape.keys() - value.keys() if name in _REQUIRED)
        if missing:
            return f"{at}{missing[0]}: is missing"
        present = [name for name in shape if name in value and not (value[name] is None and name in _NULLABLE)]
        parts = [(value[name], shape[name], f"{at}{name}") for name in present]
    return next((found for part in parts if (found := _problem(*part)) is not None), None)


_EXEC_PROTOCOL = "v4.channel.k8s.io"

#: For one answer. Servers end a request that takes a minute themselves.
ANSWER_TIMEOUT_S = 20.0

Object = dict[str, Any]
T = TypeVar("T")


class Cluster:
    """A cluster, as one user sees it. Safe to use from several threads.

    Args:
        context, namespace: of the kubeconfig; None: its current ones.
    """

    def __init__(self, host: Host, context: str | None = None, namespace: str | None = None) -> None:
        self._host, self._context, self._namespace = host, context, namespace
        self._signed_in: Api | None = None

    # ---------------------------------------------------------------- requests

    def get(self, path: str, **params: str) -> Object:
        """GET an object or list; ``path`` such as ``/api/v1/namespaces/default/pods``."""
        return self.call(self.request("GET", path, params=params))

    def find(self, path: str, **params: str) -> Object | None:
        """GET, or None where there is no such object."""
        return self.call(self._find(path, params))

    def create(self, path: str, body: Object, *, dry_run: bool = False) -> Object:
        params = {"fieldManager": "seatrial", **({"dryRun": "All"} if dry_run else {})}
        return self.call(self.request("POST", path, params=params, body=body))

    def patch(self, path: str, body: Object) -> Object:
        """A merge patch."""
        return self.call(
            self.request("PATCH", path, body=body, headers={"content-type": "application/merge-patch+json"})
        )

    def delete(self, path: str, *, grace_s: int | None = None, propagation: str = "Background") -> None:
        """DELETE; nothing where it is gone already."""
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        self.call(self._delete(path, options))

    def text(self, path: str, **params: str) -> str:
        """GET of what is no JSON: a pod's log."""
        return self.call(self._text(path, params))

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
        """One request. Raises SeatrialError with the server's own words."""
        content = None if body is None else json.dumps(body)
        response = await self._respond(method, path, params=dict(params or {}), content=content, headers=headers)
        answer: Object = response.json()
        return answer

    async def lines(self, path: str, **params: str) -> AsyncIterator[bytes]:
        """Lines of an answer that goes on: a watch, or a followed log. Ends when the server ends it."""
        import httpx
        import kr8s

        api = await self._api()
        timeout = httpx.Timeout(ANSWER_TIMEOUT_S, read=None)
        try:
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
        except kr8s.ServerError as error:
            raise _refused(error) from error
        except (httpx.TransportError, kr8s.APITimeoutError) as error:
            raise unreachable(api.auth.server, str(error)) from error

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
        """Run a command in a pod's container, which must be named where there are several; its exit code.

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
                    return _exit_code(json.loads(data))
                (out if channel == 1 else err)(data)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of this cluster to its end, from any thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def submit(self, work: Coroutine[Any, Any, T]) -> Any:
        """Start a coroutine of this cluster; its concurrent future."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    @cached_property
    def namespace(self) -> str:
        """The one asked for, or the context's."""
        return self.call(self.its_namespace())

    @cached_property
    def context(self) -> str | None:
        """The context in use; None inside a pod."""
        return self.call(self.its_context())

    def address(self) -> EngineAddress:
        """Where this cluster is, and which one."""
        return self.call(self.its_address())

    async def its_address(self) -> EngineAddress:
        """Return the cluster's address. Its ID is that of the namespace kube-system, or else its server.

        Source: the practice of cluster-api and OpenTelemetry's k8s.cluster.uid.
        """
        server = str((await self._api()).auth.server)
        try:
            system = await self._find("/api/v1/namespaces/kube-system", {})
        except ApiError:
            system = None
        files = os.pathsep.join(str(path.absolute()) for path in kubeconfigs(self._host))
        identity = system["metadata"].get("uid") if system else None
        return EngineAddress(endpoint=server, id=identity or server, credentials=files or None)

    async def its_namespace(self) -> str:
        return self._namespace or str((await self._api()).auth.namespace)

    async def its_context(self) -> str | None:
        return (await self._api()).auth.active_context or None

    # --------------------------------------------------------------- the parts

    @cached_property
    def _loop(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, name="kubernetes", daemon=True).start()
        return loop

    async def _api(self) -> Api:
        """The signed-in connection. kr8s keeps it, too, but asks for the server's version each time."""
        if self._signed_in is not None:
            return self._signed_in
        try:
            import httpx
            import kr8s.asyncio
            import yaml
        except ImportError as error:
            raise EngineUnavailableError(
                "Kubernetes needs the package kr8s", run="python -m pip install 'seatrial[k8s]'"
            ) from error
        if configured(self._host) is None:
            raise no_cluster("no kubeconfig")
        for path in kubeconfigs(self._host):
            read_kubeconfig(path)
        warnings.filterwarnings("ignore", message="Kubernetes version", module="kr8s")  # survey looks at it itself
        try:
            api = await kr8s.asyncio.api(context=self._context, kubeconfig=self._host.env.get("KUBECONFIG"))
        except ValueError as error:
            if self._context and "No such context" in str(error):
                raise UsageError(
                    f"The kubeconfig has no context {self._context}", run="kubectl config get-contexts"
                ) from None
            raise no_cluster(str(error)) from error
        except kr8s.ServerError as error:
            raise _refused(error) from error
        except (httpx.TransportError, kr8s.APITimeoutError) as error:
            raise unreachable("the kubeconfig's address", str(error)) from error
        except (
            OSError,
            LookupError,
            httpx.InvalidURL,
            yaml.YAMLError,
        ) as error:  # a certificate, a program that gives a token
            raise no_cluster(f"the kubeconfig's credentials or address cannot be used: {error}") from error
        api.timeout = ANSWER_TIMEOUT_S
        self._signed_in = api
        return api

    async def _respond(self, method: str, path: str, **arguments: Any) -> Any:
        import httpx
        import kr8s

        api = await self._api()
        arguments = {key: value for key, value in arguments.items() if value}
        try:
            async with api.call_api(method, base=path, version="", **arguments) as response:
                return response
        except kr8s.ServerError as error:
            raise _refused(error) from error
        except (httpx.TransportError, kr8s.APITimeoutError) as error:
            raise unreachable(api.auth.server, str(error)) from error

    async def _find(self, path: str, params: Mapping[str, str]) -> Object | None:
        try:
            return await self.request("GET", path, params=params)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def _delete(self, path: str, options: Object) -> None:
        try:
            await self.request("DELETE", path, body=options)
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    async def _text(self, path: str, params: Mapping[str, str]) -> str:
        response = await self._respond("GET", path, params=dict(params))
        return str(response.text)


def _exit_code(status: Object) -> int:
    """Return the exit code in the Status object that ends an exec."""
    causes = (status.get("details") or {}).get("causes") or []
    codes = [int(cause["message"]) for cause in causes if cause.get("reason") == "ExitCode"]
    return codes[0] if codes else int(status.get("status") != "Success")


def _refused(error: Any) -> Exception:
    """kr8s's ServerError as ours: it carries the API's Status object, or text where a proxy answered."""
    status = error.response.status_code if error.response is not None else 0
    body = error.status if isinstance(error.status, dict) else {}
    return refused(status, str(body.get("reason", "")), str(body.get("message") or error))
