"""What watching costs: 1,000 pods of one run on a real API server, their changes and events; the watcher's CPU time.

    KUBECONFIG=… python benchmarks/kubernetes_watch.py [--pods 1000] [--seconds 20] [--rate 20]

The pods name a scheduler that does not exist, so they wait for ever and run nothing. A process of its own changes
``rate`` of them a second and reports as many Events; the watcher is the collector that every followed run has.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import tempfile
import time
from pathlib import Path
from typing import Any

from seatrial.backends.kubernetes.client import Cluster
from seatrial.backends.kubernetes.collect import collecting
from seatrial.system.host import Host

RUN = "20261121-000000-many"
LABELS = {"app.kubernetes.io/managed-by": "seatrial", "seatrial.run": RUN}
PODS, EVENTS = "/api/v1/namespaces/default/pods", "/api/v1/namespaces/default/events"


def pod(number: int) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"many-{number}", "labels": {**LABELS, "seatrial.node": str(number)}},
        "spec": {"schedulerName": "nobody", "containers": [{"name": "train", "image": "none"}]},
    }


def event(name: str, number: int) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{name}.{number:x}"},
        "involvedObject": {"kind": "Pod", "name": name, "namespace": "default"},
        "reason": "Pulling",
        "type": "Normal",
        "message": f"number {number}",
    }


def in_batches(cluster: Cluster, work: list[Any], size: int = 40) -> None:
    async def batch(some: list[Any]) -> None:
        await asyncio.gather(*some)

    for first in range(0, len(work), size):
        cluster.call(batch(work[first : first + size]))


def disturb(pods: int, rate: float, seconds: float, done: Any) -> None:
    """Change a pod and report an event, ``rate`` times a second; how many were done."""
    cluster, number, began = Cluster(Host()), 0, time.monotonic()
    while time.monotonic() < began + seconds:
        name = f"many-{number % pods}"
        cluster.patch(f"{PODS}/{name}", {"metadata": {"annotations": {"changed": str(number)}}})
        cluster.create(EVENTS, event(name, int(time.time() * 1e6)))
        number += 1
        time.sleep(max(0.0, began + number / rate - time.monotonic()))
    done.value = number


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pods", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rate", type=float, default=20.0)
    arguments = parser.parse_args()
    cluster = Cluster(Host())
    found: dict[str, Any] = {"pods": arguments.pods}
    in_batches(cluster, [cluster.request("POST", PODS, body=pod(number)) for number in range(arguments.pods)])
    try:
        with tempfile.TemporaryDirectory() as folder:
            began, cpu = time.monotonic(), time.process_time()
            with collecting(cluster, "default", RUN, Path(folder), arguments.pods, lambda line: None):
                time.sleep(5)  # the first look at all of them
                found["first_look_cpu_s"] = round(time.process_time() - cpu, 2)
                began, cpu = time.monotonic(), time.process_time()
                time.sleep(arguments.seconds / 2)
                found["quiet_cpu_pct"] = round(100 * (time.process_time() - cpu) / (time.monotonic() - began), 2)
                done = multiprocessing.get_context("spawn").Value("i", 0)
                process = multiprocessing.get_context("spawn").Process(
                    target=disturb, args=(arguments.pods, arguments.rate, arguments.seconds, done)
                )
                process.start()
                began, cpu = time.monotonic(), time.process_time()
                process.join()
                seconds = time.monotonic() - began
                found["changes_and_events_per_s"] = round(2 * done.value / seconds, 1)
                found["busy_cpu_pct"] = round(100 * (time.process_time() - cpu) / seconds, 2)
            notes = (Path(folder) / "events.jsonl").read_text().count("pulls its image")
            found["pods_whose_event_was_seen"] = notes
    finally:
        at_once = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
        paths = [f"{PODS}/many-{number}" for number in range(arguments.pods)]
        in_batches(cluster, [cluster.request("DELETE", path, body=at_once) for path in paths])
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
