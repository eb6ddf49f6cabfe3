"""Manifests: golden texts of every kind, valid for Kubernetes since 1.25, for the CRDs and for the webhooks."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from syrupy.assertion import SnapshotAssertion

from cluster_plans import CLAIMS, DDP, MODERN, a_cluster_plan, rendered
from manifest_rules import CRDS, CUSTOM, VERSIONS, violations
from seatrial.backends.kubernetes.manifests import MAX_CONFIG_MAP_BYTES, as_yaml
from seatrial.backends.kubernetes.objects import copy_pod
from seatrial.backends.kubernetes.pod import check_admission, secret
from seatrial.backends.kubernetes.survey import ClusterFacts
from seatrial.errors import UsageError
from seatrial.system.project_files import parse_yaml
from tables import cases, constant

POOL = constant(__file__, "POOL")
CLASSES = {"priority_class": "research", "runtime_class": "nvidia"}

CASES: dict[str, tuple[ClusterFacts, dict[str, Any]]] = {
    "one-cpu-pod": (MODERN, {"gpus": "none"}),
    "indexed-gpus": (
        MODERN,
        {
            "gpus": "2",
            "nodes": "2",
            "script": DDP,
            "cpus": "8",
            "memory": "64GB",
            "name": "baseline",
            "secrets": ["HF_TOKEN"],
            "env": {"EPOCHS": "3"},
            "kubernetes": {**POOL, **CLASSES},
        },
    ),
    "pytorchjob": (
        MODERN,
        {"gpus": "1", "nodes": "3", "script": DDP, "kubernetes": {**POOL, **CLASSES, "kind": "pytorchjob"}},
    ),
    "pytorchjob-elastic": (
        MODERN,
        {
            "gpus": "1",
            "nodes": "2",
            "script": DDP,
            "kubernetes": {"min_nodes": 1, "models": "pvc:models", "kind": "pytorchjob"},
        },
    ),
    "trainjob": (MODERN, {"gpus": "1", "nodes": "2", "script": DDP, "kubernetes": {**POOL, "kind": "trainjob"}}),
    "claims": (
        CLAIMS,
        {"gpus": "2", "nodes": "2", "script": DDP, "kubernetes": {"models": "pvc:models", "gpu_claims": True}},
    ),
    "jobset": (MODERN, {"gpus": "2", "nodes": "2", "script": DDP, "kubernetes": {**POOL, **CLASSES, "kind": "jobset"}}),
}


@pytest.fixture(params=CASES)
def manifests(request: pytest.FixtureRequest, tmp_path: Path) -> list[dict[str, Any]]:
    facts, flags = CASES[request.param]
    return rendered(a_cluster_plan(tmp_path, facts, **flags))


def test_golden(manifests: list[dict[str, Any]], snapshot: SnapshotAssertion) -> None:
    manifests[0]["data"]["plan.json"] = "(test_the_agent_comes_with_its_plan looks at it)"
    manifests[0]["metadata"]["annotations"] = {"seatrial.content": "(a hash of it)"}
    assert as_yaml(manifests, whole=False) == snapshot


def test_valid_for_kubernetes(manifests: list[dict[str, Any]]) -> None:
    claims = any(manifest["apiVersion"] == "resource.k8s.io/v1" for manifest in manifests)
    for manifest in manifests:
        if manifest["kind"] not in CUSTOM:
            for version in VERSIONS[VERSIONS.index("1.34") if claims else 0 :]:
                assert violations(manifest, version) == []


@pytest.mark.skipif(not CRDS.is_dir(), reason="the CRDs are not next to the repository")
def test_valid_for_the_operators(manifests: list[dict[str, Any]]) -> None:
    for manifest in manifests:
        if manifest["kind"] in CUSTOM:
            assert violations(manifest) == []


def test_what_is_made_next_to_the_workload_is_valid(tmp_path: Path) -> None:
    plan = a_cluster_plan(tmp_path, gpus="1", secrets=["HF_TOKEN"], kubernetes={"models": "pvc:models/alice"}).cluster
    assert plan is not None
    for manifest in (secret(plan, {"HF_TOKEN": "x"}), copy_pod(plan, "seatrial-x-cp-1")):
        for version in VERSIONS:
            assert violations(manifest, version) == []


def test_every_mount_has_its_volume_and_a_path_of_its_own(manifests: list[dict[str, Any]]) -> None:
    for spec in _pod_specs(manifests):
        for container in spec["containers"]:
            paths = [mount["mountPath"] for mount in container["volumeMounts"]]
            names = [volume["name"] for volume in spec["volumes"]]
            assert {mount["name"] for mount in container["volumeMounts"]} == set(names)
            assert len(set(paths)) == len(paths) and len(set(names)) == len(names)
            claims = [volume["persistentVolumeClaim"]["claimName"] for volume in spec["volumes"] if _is_claim(volume)]
            assert len(set(claims)) == len(claims), "a kubelet waits forever for a claim that two volumes name"


def _is_claim(volume: dict[str, Any]) -> bool:
    return "persistentVolumeClaim" in volume


def _pod_specs(value: Any) -> Iterator[dict[str, Any]]:
    """Specs of pods, wherever they lie in manifests."""
    if isinstance(value, dict):
        if "containers" in value:
            yield value
        value = list(value.values())
    for item in value if isinstance(value, list) else ():
        yield from _pod_specs(item)


def test_the_agent_comes_with_its_plan(tmp_path: Path) -> None:
    [config, *_] = rendered(a_cluster_plan(tmp_path, gpus="2", nodes="2", script=DDP))
    assert base64.b64decode(config["binaryData"]["agent.pyz"]) == b"the agent"
    agent = yaml.safe_load(config["data"]["plan.json"])["agent"]
    assert (agent["gpu_count"], agent["gpu_mode"], agent["evidence_dir"]) == (2, "required", None)
    assert (agent["nodes"], agent["processes"], agent["node_rank_variable"]) == (2, 2, "JOB_COMPLETION_INDEX")
    assert str(tmp_path) not in config["data"]["plan.json"]


def test_a_script_too_large_for_a_config_map(tmp_path: Path) -> None:
    large = "#" * MAX_CONFIG_MAP_BYTES
    with pytest.raises(UsageError, match="under 1 MiB") as raised:
        a_cluster_plan(tmp_path, gpus="none", script=large, kubernetes={"code": "configmap"})
    assert 'code = "image"' in (raised.value.run or "")
    plan = a_cluster_plan(tmp_path, gpus="none", script=large)
    assert plan.cluster is not None and plan.cluster.code == "image"
    assert any(choice.reason == "too large for a ConfigMap" for choice in plan.choices)


def test_what_a_script_reads_of_its_project_goes_along_or_plan_names_it(tmp_path: Path) -> None:
    for name in ("config.json", "data/rows.csv", "unread.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    alone = a_cluster_plan(tmp_path, gpus="none", script='open("data/rows.csv")\n')
    assert alone.cluster is not None and alone.cluster.code == "configmap"
    here = "which stays on this machine; --data pvc:NAME mounts a volume at /data"
    assert f"train.py:1 reads data/rows.csv, {here}" in alone.warnings
    (tmp_path / "link.json").symlink_to("config.json")  # which goes along as the file
    both = a_cluster_plan(tmp_path, gpus="none", script='open("link.json")\nopen("data/rows.csv")\n')
    assert both.cluster is not None and both.cluster.code == "image"
    assert [each.split(",")[0] for each in both.warnings if "stays" in each] == ["train.py:2 reads data/rows.csv"]


def test_a_script_of_a_sub_folder_is_found_where_the_pod_starts_it(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "own.py").write_text("print(1)\n")
    flags = {"gpus": "none", "target": "sub/own.py", "workdir": "sub"}
    for code in ("configmap", "image"):
        plan = a_cluster_plan(tmp_path, kubernetes={"code": code}, **flags)
        assert plan.agent.argv[-1] == "own.py"
        [spec] = _pod_specs(rendered(plan))
        [container] = spec["containers"]
        assert container["workingDir"] == "/workspace/sub"
        mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
        assert ("/workspace/sub/own.py" in mounted) is (code == "configmap")


def test_a_trainjob_mounts_each_volume_once_and_its_run_lies_with_the_models(tmp_path: Path) -> None:
    flags = {"gpus": "1", "kubernetes": {"kind": "trainjob", "models": "pvc:models/alice"}, "resume": "before"}
    plan = a_cluster_plan(tmp_path, MODERN, **flags)
    [spec] = _pod_specs(rendered(plan))
    mounts = {mount["mountPath"]: mount for mount in spec["containers"][0]["volumeMounts"]}
    assert len({mount["name"] for mount in mounts.values()}) == len(mounts)
    assert mounts["/models"]["subPath"] == "alice" and "/seatrial/run" not in mounts
    assert plan.agent.run_dir == plan.agent.env["SEATRIAL_RUN_DIR"] == f"/models/.seatrial/{plan.run_id}"
    assert plan.agent.env["SEATRIAL_RESUME_DIR"] == "/models/.seatrial/before/checkpoints"


@pytest.mark.parametrize("kind", ["job", "pytorchjob", "trainjob", "jobset"])
def test_a_queue_is_a_label_of_the_workload_alone(tmp_path: Path, kind: str) -> None:
    options = {"kind": kind, "queue": "team-a.gpus"}
    flags = {"gpus": "1", "nodes": "2", "script": DDP, "kubernetes": options}
    *others, workload = rendered(a_cluster_plan(tmp_path, MODERN, **flags))
    assert workload["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team-a.gpus"
    assert not any("kueue" in key for other in others for key in other["metadata"]["labels"])
    assert (workload["kind"] in CUSTOM and not CRDS.is_dir()) or violations(workload) == []


@pytest.mark.parametrize(
    ("version", "models", "nodes", "rules"),
    [((1, 33), "pvc:models", "2", 1), ((1, 25), "pvc:models", "2", 0), ((1, 33), "emptydir", "2", 0)],
)
def test_a_disruption_spends_no_restart(
    tmp_path: Path, version: tuple[int, int], models: str, nodes: str, rules: int
) -> None:
    """The rule stands first, so none before it counts the pod; restartPolicy Never is what the API requires with it."""
    facts = replace(MODERN, version=version)
    flags = {"gpus": "1", "nodes": nodes, "script": DDP, "kubernetes": {"kind": "job", "models": models}}
    spec = rendered(a_cluster_plan(tmp_path, facts, **flags))[-1]["spec"]
    found = spec.get("podFailurePolicy", {}).get("rules", [])
    assert bool(found) == bool(rules) and spec["template"]["spec"]["restartPolicy"] == "Never"
    if found:
        assert found[0] == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}


@cases("kind", "host", "variable")
def test_nodes_meet_at_the_name_that_the_kind_gives(tmp_path: Path, kind: str, host: str, variable: str) -> None:
    plan = a_cluster_plan(tmp_path, gpus="1", nodes="2", script=DDP, kubernetes={"kind": kind})
    assert plan.cluster is not None and plan.agent.node_rank_variable == variable
    assert plan.agent.rendezvous == host.format(plan.cluster.name) + ":29400"


@pytest.mark.parametrize(
    ("flags", "words"),
    [({"kubernetes": CLASSES}, "priority_class"), ({"env": {"PET_NNODES": "2"}}, "PET_NNODES")],
)
def test_what_a_trainjob_cannot_have_is_refused(tmp_path: Path, flags: dict[str, Any], words: str) -> None:
    """Settings that no patch has, and variables that its webhook reserves."""
    kubernetes = {"kind": "trainjob", **flags.pop("kubernetes", {})}
    plan = a_cluster_plan(tmp_path, MODERN, gpus="1", kubernetes=kubernetes, **flags)
    with pytest.raises(UsageError, match=words):
        rendered(plan)


def test_requests_stand_below_limits(tmp_path: Path) -> None:
    own = {"requests": {"cpus": 2, "memory": "1GiB"}}
    workload = rendered(a_cluster_plan(tmp_path, gpus="none", cpus="4", memory="2GiB", kubernetes=own))[-1]
    resources = workload["spec"]["template"]["spec"]["containers"][0]["resources"]
    assert resources["requests"] == {"cpu": "2", "memory": str(2**30)} and resources["limits"]["cpu"] == "4"
    with pytest.raises(UsageError, match="more cpu than --cpus"):
        a_cluster_plan(tmp_path, cpus="1", kubernetes=own)


def test_a_kubelet_leaves_every_value_as_it_was_given(tmp_path: Path) -> None:
    given = {"A": "$(B)", "B": "pa$$word", "C": "$HOME$"}
    env = rendered(a_cluster_plan(tmp_path, env=given))[-1]["spec"]["template"]["spec"]["containers"][0]["env"]
    read = {one["name"]: one["value"].replace("$$", "$") for one in env}
    assert {name: read[name] for name in given} == given


def test_what_steers_the_loader_is_the_targets_and_not_pid_1s(tmp_path):
    plan = a_cluster_plan(tmp_path, env={"LD_PRELOAD": "/workspace/evil.so", "PYTHONPATH": "lib", "LEVEL": "3"})
    assert plan.cluster is not None
    assert "LD_PRELOAD" not in plan.cluster.env and "PYTHONPATH" not in plan.cluster.env
    assert plan.agent.env["LD_PRELOAD"] == "/workspace/evil.so" and plan.agent.env["PYTHONPATH"] == "lib"
    assert plan.cluster.env["LEVEL"] == "3"


GOOD = constant(__file__, "GOOD")


@pytest.mark.parametrize("name", GOOD)
def test_what_the_operators_take_is_taken(name: str) -> None:
    check_admission(parse_yaml(GOOD[name], name), None)


@cases("of", "old", "new", "words")
def test_what_the_operators_refuse_is_refused(of: str, old: str, new: str, words: str) -> None:
    assert old in GOOD[of]
    with pytest.raises(UsageError) as caught:
        check_admission(parse_yaml(GOOD[of].replace(old, new), of), "job.yaml")
    assert words in caught.value.message and " refuses it (ku" in (caught.value.cause or "")
    assert caught.value.run == "${EDITOR:-vi} job.yaml"
