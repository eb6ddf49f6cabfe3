"""A stop is final and leaves nothing: on an API in memory with an operator that replaces lost pods, as real ones do."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from cluster_plans import DDP, a_cluster_plan
from seatrial.backends.kubernetes import objects as ending
from seatrial.backends.kubernetes.client import Cluster
from seatrial.job.cluster import ClusterPlan

PODS, SERVICES = "/api/v1/namespaces/default/pods", "/api/v1/namespaces/default/services"
WORKLOADS = {
    "pytorchjob": "/apis/kubeflow.org/v1/namespaces/default/pytorchjobs",
    "trainjob": "/apis/trainer.kubeflow.org/v1alpha1/namespaces/default/trainjobs",
}
JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets"


@dataclass
class ApiWithAnOperator:
    """Objects by path, garbage collection by owner, and an operator that keeps two pods and their Services there.

    Time passes with each request. ``maker``: what the pods are made for: the workload, or a JobSet that it owns.
    ``started``: pods that were ever made. ``graces``: what each pod was given.
    """

    plan: ClusterPlan
    workload: str = ""
    maker: str = ""
    objects: dict[str, dict[str, Any]] = field(default_factory=dict)
    started: list[str] = field(default_factory=list)
    graces: dict[str, list[int | None]] = field(default_factory=dict)

    def run(self) -> ApiWithAnOperator:
        self.workload = self.maker = f"{WORKLOADS[self.plan.kind]}/{self.plan.name}"
        self.objects[self.workload] = {"metadata": {"name": self.plan.name, "labels": self.plan.labels}}
        if self.plan.kind == "trainjob":
            self.maker = f"{JOBSETS}/{self.plan.name}"
            self.objects[self.maker] = {"metadata": {"name": self.plan.name, "labels": {}, "owner": self.workload}}
        self._operator()
        return self

    def get(self, path: str, labelSelector: str) -> dict[str, Any]:
        self._collector()
        self._operator()
        key, _, value = labelSelector.partition("=")
        items = [
            one
            for name, one in self.objects.items()
            if name.startswith(path + "/") and one["metadata"]["labels"].get(key) == value
        ]
        return {"items": items}

    def delete(self, path: str, *, grace_s: int | None = None, propagation: str = "Background") -> None:
        if path not in self.objects:
            return
        if path.startswith(PODS):
            self.graces.setdefault(path.rpartition("/")[2], []).append(grace_s)
            self._mark(path)
            if grace_s == 0:
                del self.objects[path]
        elif propagation == "Foreground":
            self._mark(path)
        else:
            del self.objects[path]
            for one in self.objects.values():
                if propagation == "Orphan" and one["metadata"].get("owner") == path:
                    del one["metadata"]["owner"]

    def _mark(self, path: str) -> None:
        self.objects[path]["metadata"]["deletionTimestamp"] = "2026-11-21T00:01:00Z"

    def _collector(self) -> None:
        """A pod that that received SIGTERM has ended; dependents of a workload that is being deleted end too."""
        for one in self.objects.values():
            if "phase" in one.get("status", {}) and "deletionTimestamp" in one["metadata"]:
                one["status"]["phase"] = "Failed"
        for path, one in list(self.objects.items()):
            owner = one["metadata"].get("owner")
            if (
                owner
                and "deletionTimestamp" in self.objects.get(owner, {"metadata": ["deletionTimestamp"]})["metadata"]
            ):
                if path.startswith((PODS, JOBSETS)):
                    self._mark(path)
                else:
                    del self.objects[path]

    def _operator(self) -> None:
        maker = self.objects.get(self.maker)
        if maker is None or "deletionTimestamp" in maker["metadata"]:
            return
        for role in ("master-0", "worker-0"):
            name = f"{self.plan.name}-{role}"
            pod = self.objects.get(f"{PODS}/{name}")
            if pod is None or pod["status"]["phase"] == "Failed":
                self.started.append(name)
                self.objects[f"{PODS}/{name}"] = self._pod(name)
            labels = {"training.kubeflow.org/job-name": self.plan.name}
            self.objects.setdefault(
                f"{SERVICES}/{name}", {"metadata": {"name": name, "labels": labels, "owner": self.maker}}
            )

    def _pod(self, name: str) -> dict[str, Any]:
        meta = {"name": name, "uid": f"{name}-{len(self.started)}", "creationTimestamp": "2026-11-21T00:00:00Z"}
        state = {"containerStatuses": [{"name": "pytorch", "state": {"running": {}}}]}
        return {
            "metadata": {**meta, "labels": self.plan.labels, "owner": self.maker},
            "status": {"phase": "Running", **state},
        }


@pytest.fixture(params=["pytorchjob", "trainjob"])
def api(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ApiWithAnOperator:
    monkeypatch.setattr(ending, "POLL_S", 0.001)
    plan = a_cluster_plan(tmp_path, gpus="1", nodes="2", script=DDP, kubernetes={"kind": request.param})
    assert plan.cluster is not None
    return ApiWithAnOperator(plan.cluster).run()


@pytest.mark.parametrize("grace_s", [30, 0])
def test_no_worker_comes_back_and_pods_get_their_grace(api: ApiWithAnOperator, grace_s: int) -> None:
    ending.end(cast("Cluster", api), api.plan, [api.workload], grace_s)
    assert len(api.started) == 2, "the pods of before, and none after"
    assert not [path for path in api.objects if path not in (api.workload, api.maker)]
    assert [graces[0] for graces in api.graces.values()] == [grace_s] * 2


@pytest.mark.parametrize("api", ["pytorchjob"], indirect=True)
def test_what_a_workload_left_behind_that_is_gone(api: ApiWithAnOperator) -> None:
    """Orphan the pods as `kubectl delete pytorchjob --cascade=orphan` does: they run on, Services have no owner."""
    api.delete(api.workload, propagation="Orphan")
    ending.end(cast("Cluster", api), api.plan, [], 30)
    assert api.objects == {} and len(api.started) == 2
