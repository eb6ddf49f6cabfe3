"""Where a cluster's images are pushed: to the registry that the user names, and nowhere else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fakes import load_job
from planning_sites import plan_of
from seatrial.backends.containers.docker import Docker
from seatrial.errors import ConfigError, UsageError
from seatrial.job.cluster_config import ClusterOptions
from seatrial.job.model import Target

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
