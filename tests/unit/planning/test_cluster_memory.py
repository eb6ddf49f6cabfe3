"""What plan remembers of a cluster, and for how long."""

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from cluster_plans import CLAIMS, KUBEFLOW
from fakes import load_job
from seatrial.backends.kubernetes.devices import Claimable
from seatrial.backends.kubernetes.survey import ClusterFacts, Node
from seatrial.job.cluster_config import ClusterOptions
from seatrial.job.plan import EngineAddress
from seatrial.planning.cluster import survey as planning_survey
from seatrial.planning.cluster.memory import LASTS_S, recall, remember
from seatrial.planning.cluster.survey import lacks, survey_cluster
from seatrial.planning.host import HostFacts

OPTIONS = ClusterOptions(namespace="team")
TAINTED = Node(
    "a", 8, 7, ready=True, product="NVIDIA-H200", labels={"pool": "gpu"}, taints=({"key": "k", "effect": "E"},)
)


def kubeconfig(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "config").write_text("{}")
    return {"KUBECONFIG": str(tmp_path / "config")}


def test_it_comes_back_whole(tmp_path: Path) -> None:
    environ = kubeconfig(tmp_path)
    for facts in (
        KUBEFLOW,
        CLAIMS,
        replace(CLAIMS, claimable=Claimable("v1beta1")),
        ClusterFacts(nodes=(TAINTED,), unread=("nothing",)),
        ClusterFacts(nodes=None),
        ClusterFacts(address=EngineAddress(endpoint="https://10.0.0.1:6443", id="9f2c")),
    ):
        remember(facts, OPTIONS, environ, tmp_path)
        kept = recall(OPTIONS, environ, tmp_path)
        assert kept is not None and kept[0] == facts and 0 <= kept[1] < 60


def test_another_namespace_or_a_changed_kubeconfig_is_asked_anew(tmp_path: Path) -> None:
    environ = kubeconfig(tmp_path)
    remember(KUBEFLOW, OPTIONS, environ, tmp_path)
    assert recall(ClusterOptions(namespace="other"), environ, tmp_path) is None
    assert recall(OPTIONS, {"KUBECONFIG": "/nowhere"}, tmp_path) is None
    before = (tmp_path / "config").stat()
    (tmp_path / "new").write_text("{}")
    os.utime(tmp_path / "new", ns=(before.st_atime_ns, before.st_mtime_ns))
    (tmp_path / "new").replace(tmp_path / "config")  # another file of the same time and size
    assert recall(OPTIONS, environ, tmp_path) is None
    remember(KUBEFLOW, OPTIONS, environ, tmp_path)
    os.utime(tmp_path / "config", (1, 1))
    assert recall(OPTIONS, environ, tmp_path) is None


def test_a_kubeconfig_below_the_home_folder_and_a_pods_own_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    kubeconfig(tmp_path)
    remember(KUBEFLOW, OPTIONS, {"KUBECONFIG": "~/config"}, tmp_path)
    assert recall(OPTIONS, {"KUBECONFIG": "~/config"}, tmp_path) is not None
    (tmp_path / "config").write_text("{ }")
    assert recall(OPTIONS, {"KUBECONFIG": "~/config"}, tmp_path) is None
    here = {"KUBECONFIG": "/nowhere", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    remember(KUBEFLOW, OPTIONS, here, tmp_path)
    assert recall(OPTIONS, here, tmp_path) is not None
    assert recall(OPTIONS, {**here, "KUBERNETES_SERVICE_HOST": "10.1.0.1"}, tmp_path) is None


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


@pytest.mark.parametrize(
    ("flags", "facts", "missing"),
    [
        ({"kind": "trainjob"}, ClusterFacts(), True),  # its CRD may have been installed a minute ago
        ({"kind": "trainjob"}, ClusterFacts(operators=("trainjob",)), False),
        ({"kind": "trainjob"}, ClusterFacts(operators=("trainjob",), idle=("trainjob",)), True),
        ({"kind": "job"}, ClusterFacts(), False),
        ({"queue": "team"}, ClusterFacts(), True),
        ({"queue": "team"}, ClusterFacts(kueue=True), False),
        ({}, ClusterFacts(), False),
        ({}, ClusterFacts(nodes=()), True),  # two GPUs, and no node yet
        ({}, ClusterFacts(nodes=(TAINTED,)), False),
        ({"node_selector": {"pool": "gpu"}}, ClusterFacts(nodes=(TAINTED,)), False),
        ({"node_selector": {"pool": "other"}}, ClusterFacts(nodes=(TAINTED,)), True),
    ],
)
def test_what_was_asked_for_and_is_not_among_the_facts(
    tmp_path: Path, flags: dict[str, object], facts: ClusterFacts, missing: bool
) -> None:
    (tmp_path / "train.py").write_text("print(1)")
    job = load_job(tmp_path, {"target": "train.py", "on": "k8s", "gpus": "2", "kubernetes": flags}, cwd=tmp_path)
    assert lacks(job, facts) is missing


def test_a_plan_asks_anew_for_a_kind_that_it_does_not_remember(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The CRD has come since; the answer is of now, and is remembered."""
    asked = []

    def answer(cluster: object, resource: str, runtime: str) -> ClusterFacts:
        asked.append(resource)
        return KUBEFLOW

    monkeypatch.setattr(planning_survey, "survey", answer)
    host = SimpleNamespace(environ=kubeconfig(tmp_path), cache_folder=tmp_path)
    (tmp_path / "train.py").write_text("print(1)")
    flags = {"target": "train.py", "on": "k8s", "gpus": "none", "kubernetes": {"kind": "pytorchjob"}}
    job = load_job(tmp_path, flags, cwd=tmp_path)
    remember(ClusterFacts(), job.kubernetes, host.environ, tmp_path)
    for _ in range(2):
        assert survey_cluster(job, cast(HostFacts, host), offline=True).facts == KUBEFLOW
    assert len(asked) == 1
