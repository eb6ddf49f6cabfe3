"""What ``plan`` remembers of a cluster for a few minutes: signing in and asking costs more than all the rest of a plan.

``run`` always asks anew. A file for each cluster, user and namespace in the cache folder; the kubeconfigs' time, size
and inode are part of its name, as is the version of seatrial, so that after a change of either it is asked anew.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from seatrial import __version__
from seatrial.backends.kubernetes.access import kubeconfigs
from seatrial.backends.kubernetes.devices import Claimable, Offer
from seatrial.backends.kubernetes.survey import ClusterFacts, Node
from seatrial.errors import DiskError
from seatrial.job.cluster_config import ClusterOptions
from seatrial.job.plan import EngineAddress
from seatrial.system.files import make_folder, write_atomically

#: Nodes come and go in minutes.
LASTS_S = 300.0


def recall(options: ClusterOptions, environ: Mapping[str, str], cache: Path) -> tuple[ClusterFacts, float] | None:
    """What was learned of this cluster and how many seconds ago, or None."""
    path = _path(options, environ, cache)
    try:
        age_s = time.time() - path.stat().st_mtime
        kept = json.loads(path.read_bytes())
        if not 0 <= age_s < LASTS_S:
            return None
        nodes = kept["nodes"]
        kept["nodes"] = None if nodes is None else tuple(_node(node) for node in nodes)
        kept["address"] = kept["address"] and EngineAddress.model_validate(kept["address"])
        kept["claimable"] = _claimable(kept["claimable"])
        facts: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in kept.items()}
        return ClusterFacts(**facts), age_s
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # none, or of another version of seatrial
        return None


def remember(facts: ClusterFacts, options: ClusterOptions, environ: Mapping[str, str], cache: Path) -> None:
    """Keep it. A cache that cannot be written is done without."""
    path = _path(options, environ, cache)
    try:
        make_folder(path.parent)
        write_atomically(path, json.dumps(asdict(facts), default=dict).encode())
    except DiskError:
        return


def _node(kept: dict[str, object]) -> Node:
    return Node(**{**kept, "taints": tuple(kept["taints"])})  # type: ignore[arg-type]


def _claimable(kept: dict[str, Any]) -> Claimable:
    classes, offers = kept["classes"], kept["offers"]
    told = None if offers is None else {node: Offer(**offer) for node, offer in offers.items()}
    return Claimable(kept["api"], None if classes is None else tuple(classes), told)


def _stamp(file: Path) -> tuple[int, int, int]:
    told = file.stat()
    return told.st_mtime_ns, told.st_size, told.st_ino


def _path(options: ClusterOptions, environ: Mapping[str, str], cache: Path) -> Path:
    files = [(str(path.absolute()), *_stamp(path)) for path in kubeconfigs(environ)]
    pod_of = environ.get("KUBERNETES_SERVICE_HOST") if not files else None  # the cluster of a pod without a kubeconfig
    asked = [__version__, files, pod_of, options.context, options.namespace, options.gpu_resource, options.runtime]
    return cache / "clusters" / f"{hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]}.json"
