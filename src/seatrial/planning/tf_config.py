"""TF_CONFIG that the user sets: half of it makes TensorFlow fail after minutes, or each machine train for itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from seatrial.backends.containers.env_file import read_env_file
from seatrial.errors import UsageError
from seatrial.job.model import Job
from seatrial.job.script import ScriptFacts

_EXAMPLE = json.dumps({"cluster": {"worker": ["a:29400", "b:29400"]}, "task": {"type": "worker", "index": 0}})


def refuse_half_set(job: Job, script: ScriptFacts, environ: Mapping[str, str], *, inherits: bool) -> None:
    """Raises UsageError for a TF_CONFIG of a TensorFlow script that is none.

    Args:
        inherits: the target has this process's environment.
    """
    found = {}
    for path in job.env_files:
        found.update(read_env_file(path, environ))
    found.update(job.env)
    value = found.get("TF_CONFIG", environ.get("TF_CONFIG") if inherits else None)
    if value is None or script.framework != "tensorflow" or (wrong := what_is_wrong(value)) is None:
        return
    where = "" if "TF_CONFIG" in found else " of this shell"
    raise UsageError(
        f"TF_CONFIG{where} is half set: {wrong}",
        cause="TensorFlow's workers find each other by it, and without a part of it each would train for itself; "
        f"whole it is {_EXAMPLE}",
        run=f"seatrial run {job.target.value} --nodes host1,host2   # and no TF_CONFIG: it is set on each host",
    )


def what_is_wrong(value: str) -> str | None:
    """A few words on the first thing that is missing or does not fit; None: it is whole, or empty.

    Source: tensorflow/python/distribute/cluster_resolver/tfconfig_cluster_resolver.py of 2.21, and what a
    MultiWorkerMirroredStrategy says of each.
    """
    try:
        told = json.loads(value or "{}")
    except ValueError as error:
        return f"it is not JSON ({error})"
    if not isinstance(told, dict):
        return "it is not a JSON object"
    if not told:
        return None
    cluster, task = told.get("cluster"), told.get("task")
    if not isinstance(cluster, dict) or not cluster:
        return "it has no cluster"
    if wrong := next((name for name, hosts in cluster.items() if not _hosts(hosts)), None):
        return f"cluster.{wrong} is not a list of HOST:PORT"
    if not isinstance(task, dict):
        return "it has no task"
    kind, index = task.get("type"), task.get("index")
    if kind is None or index is None:
        return f"its task has no {'type' if kind is None else 'index'}"
    if kind == "evaluator":  # stands in no cluster
        return None
    if kind not in cluster:
        return f"its task is of type {kind!r}, and the cluster has {', '.join(sorted(cluster))}"
    if not str(index).isdigit() or int(index) >= len(cluster[kind]):
        return f"its task's index is {index!r}, and the cluster has {len(cluster[kind])} of type {kind}"
    return None


def _hosts(hosts: Any) -> bool:
    """A list, or of a sparse cluster a mapping, of HOST:PORT."""
    values = list(hosts.values()) if isinstance(hosts, dict) else hosts
    if not isinstance(values, list) or not values:
        return False
    return all(isinstance(host, str) and host.rpartition(":")[2].isdigit() and ":" in host for host in values)
