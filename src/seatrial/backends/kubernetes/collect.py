"""Collect a run: its pods' logs into its record, and the reasons why a pod does not run as messages.

One process collects at a time, by a request for each pod's log and a watch each for pods and events.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from seatrial import frames
from seatrial.backends.base import Echo, time_ns
from seatrial.backends.kubernetes.client import Cluster
from seatrial.backends.kubernetes.pending import STEPS, Surroundings, explain, explain_workload, gpu_holders, is_of_run
from seatrial.backends.kubernetes.pod import selector
from seatrial.backends.kubernetes.survey import Pod, read_node, read_pod
from seatrial.backends.log_sink import Cursor, Sink, Turn
from seatrial.errors import SeatrialError
from seatrial.events import Event, HostPod, Note
from seatrial.findings.finding import Finding, in_one_line
from seatrial.job.in_container import EXIT_POD_STOPPED

#: Commands of the catalogue that read a namespace; nodes and similar objects have none.
_LOOKS = re.compile(r"kubectl (?=(?:get|describe|logs) (?!node|namespaces|runtimeclass|validating))")
#: Between two tries after the server has ended a watch or a log: it does so every few minutes by design.
RETRY_S = 1.0
#: A log goes on for a moment after its pod is reported to have ended; the kubelet may be slower than the API.
DRAIN_S = 10.0
#: Interval between attempts of another process to become the collector.
TURN_S = 1.0


class PodProgress:
    """Reports what happens to the pods of a run: ``echo`` for people, ``record`` as host events."""

    def __init__(self, cluster: Cluster, echo: Echo, record: Callable[[Event], None], namespace: str = "default"):
        self._cluster, self._echo, self._record, self._namespace = cluster, echo, record, namespace
        self._reported: set[str] = set()
        self._items: dict[str, dict[str, Any]] = {}

    async def pod(self, pod: Pod, item: dict[str, Any]) -> None:
        """Report on a pod that is new or has changed."""
        self._items[pod.name] = item
        if pod.waiting and pod.waiting[0] not in ("ContainerCreating", "PodInitializing"):
            await self._trouble(pod, *pod.waiting)
        if pod.started and not pod.ended:
            self._once(f"{pod.name} is running" + (f" on {pod.host}" if pod.host else ""))
        if pod.started and pod.image_id:
            # ``docker-pullable://r/i@sha256:…``, ``docker://sha256:…`` or the bare digest.
            image = pod.image_id.rpartition("@")[2].rpartition("/")[2]
            self._record(HostPod(name=pod.name, node=pod.node, host=pod.host, image=image))
        if pod.unreachable:
            await self._trouble(pod, "NodeNotReady", "Node is not ready")
        if pod.reason in ("OOMKilled", "Evicted", "Preempting"):
            await self._trouble(pod, pod.reason, pod.message or "")
        if pod.unschedulable:
            await self._trouble(pod, "FailedScheduling", pod.unschedulable)
        if pod.deleted and pod.started and not pod.ended:
            self._once(f"{pod.name} is being deleted; its target received SIGTERM and may save")
        if pod.ended and pod.exit_code == EXIT_POD_STOPPED:
            self._once(f"{pod.name} received SIGTERM before it had finished: drained, preempted or deleted")
        elif pod.ended and pod.exit_code:
            self._once(f"{pod.name} has ended with exit code {pod.exit_code}")
        if pod.outlived_by:
            self._once(f"{pod.name} has ended, but its {', '.join(pod.outlived_by)} runs on until the run is removed")

    async def event(self, pod: Pod, item: Mapping[str, Any]) -> None:
        """Report an event of the cluster about a pod."""
        reason, message = item.get("reason", ""), item.get("message", "")
        if reason in STEPS and not pod.started:
            self._once(f"{pod.name} {STEPS[reason]}")
        elif item.get("type") == "Warning" and not pod.started:
            await self._trouble(pod, reason, message)

    def workload_event(self, item: Mapping[str, Any]) -> None:
        """Report an event about what makes the pods; each trouble once, however often the controller tries."""
        finding = explain_workload(item)
        if finding is not None and self._is_new(f"workload {finding.id}"):
            self._report(finding)

    def trouble(self, error: SeatrialError) -> None:
        """Report that the cluster cannot be watched."""
        self._once(f"{error.message}; trying again")

    async def _trouble(self, pod: Pod, reason: str, message: str) -> None:
        if not self._is_new(f"{pod.name} {reason} {message}"):
            return
        finding = explain(pod, reason, message, await self._surroundings(pod, message))
        if finding is not None and self._is_new(f"{pod.node} {finding.id} {finding.message}"):
            is_first = self._is_new(f"{pod.node} subject {finding.message.rpartition(': ')[2]}")
            if is_first or finding.id != "k8s-image-pull":  # the kubelet repeats a reason in general words
                self._report(finding)

    async def _surroundings(self, pod: Pod, message: str) -> Surroundings:
        """Request nodes and holders only where the answer needs them; leave out what may not be read."""
        around = Surroundings(self._items.get(pod.name, {}), pods=max(1, len(self._items)))
        if "Insufficient" in message or "node(s)" in message:
            resource = around.gpu_resource
            with contextlib.suppress(SeatrialError):  # a namespaced Role cannot read them: the explanation reports it
                listing = await self._cluster.request("GET", "/api/v1/nodes")
                around = replace(around, nodes=tuple(read_node(node, resource) for node in listing["items"]))
                listing = await self._cluster.request("GET", "/api/v1/pods")
                around = replace(around, holders=gpu_holders(listing["items"], resource))
        return around

    def _report(self, finding: Finding) -> None:
        if finding.fix and self._namespace != "default" and "--all-namespaces" not in finding.fix:
            finding.fix = _LOOKS.sub(f"kubectl -n {self._namespace} ", finding.fix)
        self._echo(in_one_line(finding.message, finding.cause, finding.fix))
        self._record(finding.event())

    def _once(self, line: str) -> None:
        if self._is_new(line):
            self._echo(line)
            self._record(Note(message=line))

    def _is_new(self, key: str) -> bool:
        """Return whether this is the first time that ``key`` comes up."""
        is_new = key not in self._reported
        self._reported.add(key)
        return is_new


class Collector:
    """Follows the pods of one run with its logs in ``run_dir``; ``echo``: progress in words."""

    def __init__(self, cluster: Cluster, namespace: str, run_id: str, run_dir: Path, nodes: int, echo: Echo) -> None:
        self._cluster, self._namespace, self._run_id = cluster, namespace, run_id
        self._sink = Sink(run_dir, nodes)
        self._pods: dict[str, Pod] = {}
        self._logs: dict[str, asyncio.Task[None]] = {}
        self._progress = PodProgress(cluster, echo, self._sink.host_event, namespace)

    async def run(self) -> None:
        """Watch pods and events until cancelled."""
        watches = [asyncio.ensure_future(self._watch_pods()), asyncio.ensure_future(self._watch_events())]
        try:
            await asyncio.gather(*watches)
        finally:
            for watch in watches:
                watch.cancel()

    async def drain(self) -> None:
        """Read every pod's log to its end as it is now, and what holds up those that have none."""
        labels = {"labelSelector": selector(self._run_id)}
        listing = await self._cluster.request("GET", self._path("pods"), params=labels)
        for item in listing["items"]:
            pod = self._pods[item["metadata"]["name"]] = read_pod(item)
            await self._progress.pod(pod, item)
            if pod.started:
                with contextlib.suppress(SeatrialError):
                    await self._read(pod, follow=False)
        with contextlib.suppress(SeatrialError):  # without the right to read them
            for item in (await self._cluster.request("GET", self._path("events")))["items"]:
                await self._event(item)

    async def finish(self) -> None:
        """Wait for the logs that are being followed, a moment each, then drain."""
        if pending := [task for task in self._logs.values() if not task.done()]:
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
            log = self._logs.get(pod.name)
            if pod.started and (log is None or (log.done() and not pod.ended)):  # an ended one was read whole
                self._logs[pod.name] = asyncio.ensure_future(self._follow(pod))

    async def _watch_events(self) -> None:
        async for _, item in self._watch("events"):
            await self._event(item)

    async def _event(self, item: dict[str, Any]) -> None:
        """Handle an event that is about the run; a namespace has many others."""
        involved = item.get("involvedObject", {})
        if involved.get("kind") == "Pod" and involved.get("name") in self._pods:
            await self._progress.event(self._pods[involved["name"]], item)
        elif is_of_run(involved, f"seatrial-{self._run_id}"):
            self._progress.workload_event(item)

    async def _follow(self, pod: Pod) -> None:
        """Follow a pod's log until its end; again when the server cuts it while the pod goes on."""
        while True:
            with contextlib.suppress(SeatrialError):
                await self._read(pod, follow=True)
            now = self._pods.get(pod.name)
            if now is None or now.ended or now.restarts != pod.restarts:
                return
            await asyncio.sleep(RETRY_S)

    async def _read(self, pod: Pod, *, follow: bool) -> None:
        """Read the log of a pod's container from the cursor on; with ``follow`` until the container ends."""
        (self._sink.folder / "pods").mkdir(exist_ok=True)
        path = self._sink.folder / "pods" / f"{pod.name}-{pod.restarts}.cursor"
        params = {"timestamps": "true", **({"follow": "true"} if follow else {})}
        if pod.container:  # must be named where the cluster has added a sidecar
            params["container"] = pod.container
        cursor = Cursor(path, 2)  # the last line's time in nanoseconds, and how many lines have that time
        decoder, (begin_ns, skip) = frames.FrameDecoder(), cursor.numbers
        last_ns, lines = begin_ns, skip
        if begin_ns:
            params["sinceTime"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(begin_ns // 10**9))
        with contextlib.closing(cursor):
            async for line in self._cluster.lines(f"{self._path('pods')}/{pod.name}/log", **params):
                stamp, _, text = line.partition(b" ")
                at_ns = time_ns(stamp.decode("ascii", "replace"))
                if at_ns is None or at_ns < begin_ns:  # None: a message of the kubelet in place of a log
                    continue
                if at_ns == begin_ns and skip:
                    skip -= 1
                    continue
                self._sink.take(decoder, text, pod.node)
                self._sink.flush()
                last_ns, lines = at_ns, lines + 1 if at_ns == last_ns else 1
                cursor.save(last_ns, lines)

    async def _watch(self, plural: str, **params: str) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """Yield (type, object) of a list and then its changes, for ever."""
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
def collecting(cluster: Cluster, namespace: str, run_id: str, run_dir: Path, nodes: int, echo: Echo) -> Iterator[None]:
    """Collect the run into its folder while open, by this process or another; then all that is there has come."""
    turn, stopping = Turn(run_dir), threading.Event()

    def collect() -> None:
        """Wait for the turn, collect until stopped, then read the rest. A second collector finds little."""
        while not turn.take() and not stopping.wait(TURN_S):
            pass
        deadline_s = time.monotonic() + 2 * DRAIN_S
        while not turn.mine and time.monotonic() < deadline_s and not turn.take():
            time.sleep(0.1)
        try:
            if turn.mine:
                collector = Collector(cluster, namespace, run_id, run_dir, nodes, echo)
                working = cluster.submit(collector.run())
                stopping.wait()
                working.cancel()
                cluster.call(collector.finish())
        finally:
            turn.give_back()

    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()
