"""What plan remembers of a cluster, and for how long."""

import os
from pathlib import Path

from cluster_plans import KUBEFLOW
from seatrial.backends.kubernetes.survey import ClusterFacts, Node
from seatrial.job.cluster_config import ClusterOptions
from seatrial.planning.cluster.memory import LASTS_S, recall, remember

OPTIONS = ClusterOptions(namespace="team")
TAINTED = Node(
    "a", 8, 7, ready=True, product="NVIDIA-H200", labels={"pool": "gpu"}, taints=({"key": "k", "effect": "E"},)
)


def kubeconfig(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "config").write_text("{}")
    return {"KUBECONFIG": str(tmp_path / "config")}


def test_it_comes_back_whole(tmp_path: Path) -> None:
    environ = kubeconfig(tmp_path)
    for facts in (KUBEFLOW, ClusterFacts(nodes=(TAINTED,), unread=("nothing",)), ClusterFacts(nodes=None)):
        remember(facts, OPTIONS, environ, tmp_path)
        kept = recall(OPTIONS, environ, tmp_path)
        assert kept is not None and kept[0] == facts and 0 <= kept[1] < 60


def test_another_namespace_or_a_changed_kubeconfig_is_asked_anew(tmp_path: Path) -> None:
    environ = kubeconfig(tmp_path)
    remember(KUBEFLOW, OPTIONS, environ, tmp_path)
    assert recall(ClusterOptions(namespace="other"), environ, tmp_path) is None
    assert recall(OPTIONS, {"KUBECONFIG": "/nowhere"}, tmp_path) is None
    os.utime(tmp_path / "config", (1, 1))
    assert recall(OPTIONS, environ, tmp_path) is None


def test_it_is_forgotten(tmp_path: Path) -> None:
    environ = kubeconfig(tmp_path)
    remember(KUBEFLOW, OPTIONS, environ, tmp_path)
    [file] = (tmp_path / "clusters").iterdir()
    old = file.stat().st_mtime - LASTS_S
    os.utime(file, (old, old))
    assert recall(OPTIONS, environ, tmp_path) is None
    file.write_text('{"of": "another version"}')
    assert recall(OPTIONS, environ, tmp_path) is None


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "clusters").write_text("in the way")
    remember(KUBEFLOW, OPTIONS, kubeconfig(tmp_path), tmp_path)
    assert recall(OPTIONS, kubeconfig(tmp_path), tmp_path) is None
