"""Collecting a run: its pods' logs into its folder as they appear, and what holds it up in words.

One process collects at a time; whoever else follows the run reads the same folder. Each pod's log is followed by one
request, pods and their events by one watch each: nothing is asked again and again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from seatrial.backends.collected import Sink, Turn
from seatrial.backends.kubernetes.client import Cluster
from seatrial.backends.kubernetes.manifests.names import selector
from seatrial.backends.kubernetes.pod_log import PodLog
from seatrial.backends.kubernetes.pods import Pod, read_pod
from seatrial.backends.kubernetes.progress import Progress
from seatrial.backends.kubernetes.workload import is_of_run
from seatrial.errors import SeatrialError

Say = Callable[[str], None]

#: Between two tries after the server has ended a watch or a log: it does so every few minutes by design.
RETRY_S = 1.0

#: A log goes on for a moment after its pod is told to have ended; the kubelet may be slower than the API.
DRAIN_S = 10.0

#: How often a process that is not the collector asks whether it may be.
TURN_S = 1.0


class Collector:
    """Follows the pods of one run.

    Args:
        run_dir: the run's folder, which gets the logs.
        nodes: of the run.
        say: progress in words.
    """

    def __init__(self, cluster: Cluster, namespace: str, run_id: str, run_dir: Path, nodes: int, say: Say) -> None:
        self._cluster, self._namespace, self._run_id = cluster, namespace, run_id
        self._sink = Sink(run_dir, nodes)
        self._pods: dict[str, Pod] = {}
        self._logs: dict[str, asyncio.Task[None]] = {}
        self._progress = Progress(cluster, say, self._sink.host_event, namespace)

    async def run(self) -> None:
        """Until cancelled."""
        watches = [asyncio.ensure_future(self._watch_pods()), asyncio.ensure_future(self._watch_events())]
        try:
            await asyncio.gather(*watches)
        finally:
            for watch in watches:
                watch.cancel()

    async def drain(self) -> None:
        """Read every pod's log to its end as it is now, and what holds up those that have none."""
        listing = await self._cluster.request(
            "GET", self._path("pods"), params={"labelSelector": selector(self._run_id)}
        )
        for item in listing["items"]:
            pod = self._pods[item["metadata"]["name"]] = read_pod(item)
            await self._progress.pod(pod, item)
            if not pod.started:
                continue
            with contextlib.suppress(SeatrialError):
                await PodLog(self._cluster, self._namespace, pod, self._sink).read(follow=False)
        with contextlib.suppress(SeatrialError):  # without the right to read them
            for item in (await self._cluster.request("GET", self._path("events")))["items"]:
                await self._event(item)

    async def finish(self) -> None:
        """Wait for the logs that are being followed, a moment each, then drain."""
        pending = [task for task in self._logs.values() if not task.done()]
        if pending:
            await asyncio.wait(pending, timeout=DRAIN_S)
        for task in pending:
            task.cancel()
        with contextlib.suppress(SeatrialError):
            await self.drain()
        self._sink.close()

    async def _watch_pods(self) -> None:
        async for kind, item in self._watch("pods", labelSelector=selector(self._run_id)):
            pod = read_pod(item)
            if kind == "DELETED":
                self._pods.pop(pod.name, None)
                continue
            self._pods[pod.name] = pod
            await self._progress.pod(pod, item)
            if (
                pod.started
                and (pod.name not in self._logs or self._logs[pod.name].done())
                and not self._read_whole(pod)
            ):
                self._logs[pod.name] = asyncio.ensure_future(self._follow(pod))

    def _read_whole(self, pod: Pod) -> bool:
        return pod.ended and pod.name in self._logs and self._logs[pod.name].done()

    async def _watch_events(self) -> None:
        async for _, item in self._watch("events"):
            await self._event(item)

    async def _event(self, item: dict[str, Any]) -> None:
        """One that is about the run; a namespace has many others."""
        involved = item.get("involvedObject", {})
        if involved.get("kind") == "Pod" and involved.get("name") in self._pods:
            await self._progress.event(self._pods[involved["name"]], item)
        elif is_of_run(involved, f"seatrial-{self._run_id}"):
            self._progress.workload_event(item)

    async def _follow(self, pod: Pod) -> None:
        """A pod's log until its end; again when the server cuts it while the pod goes on."""
        while True:
            with contextlib.suppress(SeatrialError):
                await PodLog(self._cluster, self._namespace, pod, self._sink).read(follow=True)
            now = self._pods.get(pod.name)
            if now is None or now.ended or now.restarts != pod.restarts:
                return
            await asyncio.sleep(RETRY_S)

    async def _watch(self, plural: str, **params: str) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """(type, object) of a list and then its changes, for ever."""
        while True:
            try:
                listing = await self._cluster.request("GET", self._path(plural), params=params)
                for item in listing["items"]:
                    yield "ADDED", item
                version = listing["metadata"]["resourceVersion"]
                watching = self._cluster.lines(self._path(plural), watch="1", resourceVersion=version, **params)
                async for line in watching:
                    change = json.loads(line)
                    if change["type"] == "ERROR":  # 410: the version is too old; list anew
                        break
                    if change["type"] != "BOOKMARK":
                        yield change["type"], change["object"]
            except SeatrialError as error:
                self._progress.trouble(error)
            await asyncio.sleep(RETRY_S)

    def _path(self, plural: str) -> str:
        return f"/api/v1/namespaces/{self._namespace}/{plural}"


@contextmanager
def collecting(cluster: Cluster, namespace: str, run_id: str, run_dir: Path, nodes: int, say: Say) -> Iterator[None]:
    """While open, the run is collected into its folder, by this process or another; then all that is there has come."""
    turn = Turn(run_dir)
    stopping = threading.Event()
    thread = threading.Thread(
        target=_collect,
        args=(turn, stopping, Collector, (cluster, namespace, run_id, run_dir, nodes, say)),
        daemon=True,
    )
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


def _collect(turn: Turn, stopping: threading.Event, make: type[Collector], arguments: Any) -> None:
    """Wait for the turn, collect until told to stop, then read what is left. Whoever comes second finds little left."""
    while not turn.take() and not stopping.wait(TURN_S):
        pass
    deadline_s = time.monotonic() + 2 * DRAIN_S
    while not turn.mine and time.monotonic() < deadline_s and not turn.take():
        time.sleep(0.1)
    try:
        if turn.mine:
            collector = make(*arguments)
            cluster: Cluster = arguments[0]
            working = cluster.submit(collector.run())
            stopping.wait()
            working.cancel()
            cluster.call(collector.finish())
    finally:
        turn.give_back()
