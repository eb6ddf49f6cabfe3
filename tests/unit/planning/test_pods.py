"""Pods of a run: their GPUs and shared memory, and the registry that their image is pushed to."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster_plans import CLAIMS, DDP, MODERN, a_cluster_plan, rendered
from fakes import load_job
from manifest_rules import CRDS, VERSIONS, violations
from planning_sites import READY, a_site, chosen, facts_of, plan_of
from seatrial.backends.containers.docker_and_podman import Docker
from seatrial.backends.kubernetes.objects import path_of
from seatrial.backends.kubernetes.survey import ClusterFacts, Node
from seatrial.cli.errors import as_typed
from seatrial.errors import ConfigError, UsageError
from seatrial.job.cluster import ClusterOptions
from seatrial.job.model import Target
from seatrial.job.plan import Plan
from seatrial.planning.plan import make_plan
from seatrial.planning.pod_contents import cluster_machine
from tables import constant

#: The device plugin with MIG strategy mixed: whole GPUs, and slices of two sizes.
MIXED = replace(
    MODERN,
    nodes=(
        Node("whole", 0, 0, ready=True, offers={"nvidia.com/gpu": 8}),
        Node("cut", 7, 7, ready=True, offers={"nvidia.com/mig-1g.10gb": 7, "nvidia.com/mig-3g.40gb": 2}),
    ),
)


def _container(plan: Plan) -> dict[str, Any]:
    spec = rendered(plan)[-1]["spec"]["template"]["spec"]
    return {**spec["containers"][0], "pod": spec}


@pytest.mark.parametrize("gpus", ["2", "mig-1g.18gb"])
def test_claim_names_class_count_and_profile(tmp_path: Path, gpus: str) -> None:
    made = rendered(a_cluster_plan(tmp_path, CLAIMS, gpus=gpus, kubernetes={"gpu_claims": True}))
    [template] = [manifest for manifest in made if manifest["kind"] == "ResourceClaimTemplate"]
    for version in VERSIONS[VERSIONS.index("1.34") :]:
        assert violations(template, version) == []
    [request] = template["spec"]["spec"]["devices"]["requests"]
    wanted = request["exactly"]
    assert wanted["deviceClassName"] == ("mig.nvidia.com" if "mig" in gpus else "gpu.nvidia.com")
    assert wanted["count"] == (1 if "mig" in gpus else 2)
    assert ("'].profile == '1g.18gb'" in str(wanted.get("selectors"))) is ("mig" in gpus)
    assert path_of(template, named=False) == "/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates"


@pytest.mark.parametrize("kind", ["job", "pytorchjob", "jobset", "trainjob"])
def test_every_kind_but_a_trainjob_claims(tmp_path: Path, kind: str) -> None:
    options = {"kind": kind, "gpu_claims": True, "models": "pvc:m"}
    plan = a_cluster_plan(tmp_path, CLAIMS, gpus="1", nodes="2", script=DDP, kubernetes=options)
    with pytest.raises(UsageError, match=r"needs resource\.k8s\.io/v1, which Kubernetes v1\.31\.0 lacks"):
        a_cluster_plan(tmp_path, gpus="1", nodes="2", script=DDP, kubernetes=options)
    if kind == "trainjob":
        with pytest.raises(UsageError, match="cannot claim GPUs"):
            rendered(plan)
        return
    workload = rendered(plan)[-1]
    assert "resourceClaims" in str(workload)
    if kind == "job" or CRDS.is_dir():
        assert violations(workload) == []


def test_image_is_built_for_a_gpu_that_auto_claims(tmp_path: Path) -> None:
    flags = {"script": "import torch\n", "image": {}, "kubernetes": {"gpu_claims": True}}
    for gpus, build in (("auto", "cu"), ("none", "cpu")):
        assert chosen(a_cluster_plan(tmp_path, CLAIMS, gpus=gpus, **flags), "torch build").value.startswith(build)


def test_a_slice_is_a_resource_of_its_own(tmp_path: Path) -> None:
    plan = a_cluster_plan(tmp_path, MIXED, gpus="mig-1g.10gb")
    assert _container(plan)["resources"]["limits"] == {"nvidia.com/mig-1g.10gb": "1"}
    choice = chosen(plan, "gpus")
    assert (choice.value, choice.reason) == ("1 nvidia.com/mig-1g.10gb per pod", "--gpus mig-1g.10gb")
    assert plan.warnings == a_cluster_plan(tmp_path, MIXED, gpus="none").warnings
    assert plan.job.gpus.noun == "1g.10gb MIG slice" and plan.injection == "device-plugin"


@pytest.mark.parametrize(
    ("flags", "size", "requested", "counts"),
    [
        ({"gpus": "2"}, 128 * 2**30, "2Gi", "what is used of it counts as the pod's memory"),
        ({"gpus": "2", "shm_size": "8GiB"}, 8 * 2**30, "10Gi", "requested on top of the pod's memory"),
        ({"gpus": "none", "shm_size": "512MiB"}, 2**29, "1.5Gi", "requested on top"),
        ({"gpus": "2", "memory": "6GiB"}, 3 * 2**30, str(6 * 2**30), "half of the memory"),
        ({"gpus": "2", "memory": "6GiB", "shm_size": "1GiB"}, 2**30, str(6 * 2**30), "part of the pod's 6 GiB"),
    ],
)
def test_shared_memory_is_sized_counted_and_reported(
    tmp_path: Path, flags: dict[str, Any], size: int, requested: str, counts: str
) -> None:
    plan = a_cluster_plan(tmp_path, **flags)
    container = _container(plan)
    [shm] = [volume["emptyDir"] for volume in container["pod"]["volumes"] if volume["name"] == "shm"]
    assert shm == {"medium": "Memory", "sizeLimit": str(size)}
    assert container["resources"]["requests"]["memory"] == requested
    assert counts in chosen(plan, "/dev/shm").reason


A100 = constant(__file__, "A100")
H200 = {"nvidia.com/gpu.product": "NVIDIA-H200", "nvidia.com/cuda.driver-version.full": "580.95.05", "pool": "new"}


def _nodes(*labels: dict[str, str]) -> ClusterFacts:
    return ClusterFacts(nodes=tuple(Node(str(at), 8, 8, ready=True, labels=each) for at, each in enumerate(labels)))


@pytest.mark.parametrize(
    ("facts", "selector", "driver", "capabilities"),
    [
        (_nodes(A100, H200, A100), {}, "535.129.03", ("8.0", "9.0")),  # the H200's from the table
        (_nodes(A100, H200), {"pool": "new"}, "580.95.05", ("9.0",)),
        (ClusterFacts(), {}, None, ()),
        (_nodes({}), {}, None, ()),
        (ClusterFacts(nodes=(Node("cpu", 0, 0, ready=True),)), {}, None, ()),
    ],
)
def test_machine_is_the_oldest_driver_and_all_kinds_of_eligible_nodes(
    facts: ClusterFacts, selector: dict[str, str], driver: str | None, capabilities: tuple[str, ...]
) -> None:
    machine = cluster_machine(facts, selector)
    assert (machine.driver, machine.capabilities) == (driver, capabilities)


@pytest.mark.parametrize(("sizes", "warned"), [(("81920", "81920"), True), (("81920", "143771"), False), ((), False)])
def test_limit_above_every_gpu_of_the_cluster_is_warned_of(
    tmp_path: Path, sizes: tuple[str, ...], warned: bool
) -> None:
    facts = _nodes(*({"nvidia.com/gpu.memory": size} for size in sizes), *([{}] if not sizes else []))
    plan = a_cluster_plan(tmp_path, facts, gpus="1", gpu_memory="100GiB", script="import torch\n")
    assert any("the largest GPU of this cluster has 80 GiB" in warning for warning in plan.warnings) is warned


TARGETS = {
    "configmap": Target(kind="script", value="train.py"),
    "image": Target(kind="script", value="train.py"),
    "auto": Target(kind="recipe", value="digits"),
}


@pytest.mark.parametrize("code", TARGETS)
def test_built_image_is_named_after_the_registry(tmp_path: Path, code: str) -> None:
    options = ClusterOptions(code=code, registry="ghcr.io/me")  # type: ignore[arg-type]
    plan = plan_of(tmp_path, "print(1)\n", "k8s", target=TARGETS[code], kubernetes=options)
    assert plan.image is not None and plan.cluster is not None
    assert re.fullmatch(r"ghcr\.io/me/[a-z-]+:[0-9a-f]{20}", plan.image.tag)
    assert plan.cluster.image == plan.image.tag
    assert any(name.startswith("code/") for name in plan.image.context_files) == (code == "image")


@pytest.mark.parametrize(
    "text", ["me", "seatrial", "me/images", "", "/", "docker.io", "https://ghcr.io/me", "ghcr.io/me:1", "ghcr.io/Me"]
)
def test_registry_without_a_host_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "seatrial.toml").write_text(f'[kubernetes]\nregistry = "{text}"\n')
    with pytest.raises(ConfigError, match=r"kubernetes\.registry: (expected HOST|docker\.io needs)") as refused:
        load_job(tmp_path, {"target": "train.py", "on": "k8s"})
    assert "docker.io/me" in str(refused.value)


@pytest.mark.parametrize("reference", ["seatrial/train:1", "train:1", "train", "me/images/train:1"])
def test_push_refuses_a_reference_without_a_host(tmp_path: Path, reference: str) -> None:
    log = tmp_path / "argv"
    program = tmp_path / "docker"
    program.write_text(f'#!/bin/sh\necho "$@" >> {log}\n')
    program.chmod(0o755)
    with pytest.raises(UsageError, match="names no registry") as refused:
        Docker({"SEATRIAL_DOCKER": str(program)}).images.push(reference)
    assert not log.exists()
    assert "[kubernetes] registry" in (refused.value.run or "")


def test_files_that_no_volume_has_and_hidden_gpus_are_named(tmp_path: Path) -> None:
    source = (
        "import torch\nx = torch.load('/input/x.pt')\ntorch.save(x, '/output/a/x.pt')\ntorch.save(x, '/models/x')\n"
    )
    flags = {"script": source, "gpus": "1", "env": {"CUDA_VISIBLE_DEVICES": "0"}, "image": {}}
    for models, kept in ({}, False), ({"models": "pvc:m"}, True):
        plan = a_cluster_plan(tmp_path, kubernetes=models, **flags)
        warnings = "\n".join(plan.warnings)
        assert "train.py:2 reads /input/x.pt, which no volume of the pod has; --data pvc:NAME mounts one" in warnings
        assert "train.py:3 writes /output/a/x.pt, and no volume keeps that" in warnings and "--mount" not in warnings
        assert ("train.py:4 writes /models/x" in warnings) is not kept and "this machine" not in warnings
        assert "-e CUDA_VISIBLE_DEVICES=0: the device plugin" in warnings and "checkpoints survive" not in str(
            plan.choices
        )


def test_a_pod_without_an_offline_model_is_warned_of_unless_a_volume_may_have_it(tmp_path: Path) -> None:
    source = "import transformers\n\ntransformers.AutoModel.from_pretrained('me/net')\n"
    for env, warned in (
        ({"HF_HUB_OFFLINE": "1"}, True),
        ({"HF_HUB_OFFLINE": "1", "HF_HOME": "/data/hf"}, False),
        ({}, False),
    ):
        warnings = "\n".join(plan_of(tmp_path, source, "k8s", env=env).warnings)
        assert (
            "-e HF_HUB_OFFLINE forbids downloads, and the run's cache lacks me/net (train.py:3)" in warnings
        ) is warned
    ready = a_cluster_plan(tmp_path, script=source, env={"HF_HUB_OFFLINE": "1"})  # its image may have the model
    assert "forbids downloads" not in "\n".join(ready.warnings)


def test_a_variable_of_this_machine_that_a_pod_does_not_get_is_warned_of(tmp_path: Path) -> None:
    script = facts_of(tmp_path, "import os\nSTEPS = os.environ.get('STEPS', 40)\n")
    job, site = (
        load_job(tmp_path, {"target": "train.py", "on": "k8s", "image": {"ready": READY}}),
        a_site("k8s", tmp_path, tmp_path),
    )
    site.host.env["STEPS"] = "9"  # type: ignore[index]
    assert "the target reads STEPS (train.py:2), set on this machine but" in "\n".join(
        make_plan(job, site, script).warnings
    )


def test_a_refused_option_is_left_out_of_the_fix(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error:
        a_cluster_plan(tmp_path, mounts=["./a:/b", "./c:/d"])
    typed = ["plan", "x.py", "--mount", "./a:/b", "--on", "k8s", "-v", "./c:/d"]
    fix = as_typed(error.value.run, typed)
    assert fix == "seatrial plan x.py --on k8s --data pvc:NAME --models pvc:NAME   # without --mount, -v"
