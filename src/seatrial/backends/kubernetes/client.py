"""Cluster: the one door to a Kubernetes API server. kr8s signs in and reconnects; answers are plain dictionaries."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from seatrial.backends.kubernetes.access import configured, kubeconfigs
from seatrial.backends.kubernetes.kubeconfig import read_kubeconfig
from seatrial.backends.kubernetes.problems import ApiError, no_cluster, refused, unreachable
from seatrial.errors import EngineUnavailableError, UsageError
from seatrial.job.plan import EngineAddress

if TYPE_CHECKING:
    from kr8s.asyncio import Api

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

    def __init__(self, environ: Mapping[str, str], context: str | None = None, namespace: str | None = None) -> None:
        self._environ, self._context, self._namespace = environ, context, namespace
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
        """As ``address``. A cluster is known by its namespace kube-system, where that may be read; else by its server.

        Source: the practice of cluster-api and OpenTelemetry's k8s.cluster.uid.
        """
        server = str((await self._api()).auth.server)
        try:
            system = await self._find("/api/v1/namespaces/kube-system", {})
        except ApiError:
            system = None
        files = os.pathsep.join(str(path.absolute()) for path in kubeconfigs(self._environ))
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
        except ImportError as error:
            raise EngineUnavailableError(
                "Kubernetes needs the package kr8s", run="python -m pip install 'seatrial[k8s]'"
            ) from error
        if configured(self._environ) is None:
            raise no_cluster("no kubeconfig")
        for path in kubeconfigs(self._environ):
            read_kubeconfig(path)
        warnings.filterwarnings("ignore", message="Kubernetes version", module="kr8s")  # survey looks at it itself
        try:
            api = await kr8s.asyncio.api(context=self._context, kubeconfig=self._environ.get("KUBECONFIG"))
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
        except (OSError, LookupError, httpx.InvalidURL) as error:  # a certificate, a program that gives a token
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
    """Of the Status object that ends an exec."""
    causes = (status.get("details") or {}).get("causes") or []
    codes = [int(cause["message"]) for cause in causes if cause.get("reason") == "ExitCode"]
    return codes[0] if codes else int(status.get("status") != "Success")


def _refused(error: Any) -> Exception:
    """kr8s's ServerError as ours: it carries the API's Status object, or text where a proxy answered."""
    status = error.response.status_code if error.response is not None else 0
    body = error.status if isinstance(error.status, dict) else {}
    return refused(status, str(body.get("reason", "")), str(body.get("message") or error))
