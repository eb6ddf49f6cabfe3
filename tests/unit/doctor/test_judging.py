"""Rules that checks judge by: requirements of images, architectures of torch, redaction, install steps, the bus."""

from __future__ import annotations

import json
import platform
from pathlib import Path

import pytest

from machines import docker_info, healthy, podman_info
from seatrial.doctor import report, toolkit_install
from seatrial.doctor.checks.image import meets
from seatrial.doctor.examine import examine
from seatrial.findings.device_code import covers
from tables import cases

H200, RTX = ["NVIDIA H200"], ["NVIDIA GeForce RTX 5090"]
#: As nvidia/cuda:12.8 sets it.
CUDA_12_8 = "cuda>=12.8 brand=tesla,driver>=535,driver<536 brand=geforce,driver>=570,driver<571"


@cases("requirement", "cuda", "driver", "names", "expected")
def test_requirements(requirement: str, cuda: str, driver: str, names: list[str], expected: bool) -> None:
    assert meets(requirement, cuda, driver, names) is expected


@cases("arch_list", "capability", "expected")
def test_architectures(arch_list: list[str], capability: str, expected: bool) -> None:
    assert covers(arch_list, capability) is expected


def test_the_report_holds_the_facts_and_no_secret(tmp_path: Path) -> None:
    host = healthy(tmp_path)
    token = "hf_" + "a1b2c3d4" * 4
    host.environ.update(
        HF_TOKEN=token, NVIDIA_VISIBLE_DEVICES="all", CUDA_NOTE=f"see {token}", AWS_SECRET_ACCESS_KEY="q" * 20
    )
    host.docker = docker_info(HttpProxy="http://me:pa55word@proxy:3128", Labels=["key=" + "q" * 20])
    machine = host.machine()
    text = json.dumps(report.full(examine(machine), machine), default=str)
    assert '"NVIDIA_VISIBLE_DEVICES": "all"' in text and '"580.159.04"' in text and "NVIDIA H200" in text
    assert "http://<redacted>@proxy:3128" in text
    for secret in (token, "pa55word", "q" * 20):
        assert secret not in text


def test_the_report_reports_neither_user_host_nor_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = healthy(tmp_path)
    monkeypatch.setattr(platform, "node", lambda: "florence.example.org")
    host.environ.update(HOME="/data/zebedee", USER="zebedee", KUBECONFIG="/data/zebedee/.kube/config")
    host.environ.update(DOCKER_HOST="ssh://zebedee@ermintrude", SEATRIAL_NOTE="zebedee on florence")
    plugin = {"Name": "buildx", "Path": "/data/zebedee/.docker/cli-plugins/docker-buildx"}
    host.docker = docker_info(Name="ermintrude", ClientInfo={"Plugins": [plugin], "Context": "of-zebedee"})
    host.podman = podman_info(host={**podman_info()["host"], "hostname": "vm"}, store={"/data/zebedee/x": "y"})
    machine = host.machine()
    results = examine(machine)
    text = json.dumps(report.full(results, machine), default=str)
    for name in ("zebedee", "florence", "ermintrude", "/data/", '"vm"'):
        assert name not in text, name
    assert "~/.docker/cli-plugins/docker-buildx" in text and "ssh://USER@HOST" in text and '"~/x"' in text
    result = json.dumps(report.full(results, machine, with_names=True), default=str)
    assert all(name in result for name in ("zebedee", "florence", "ermintrude", "/data/zebedee/x", '"vm"'))


def test_the_report_reports_not_of_a_user_who_is_called_as_a_thing_is(tmp_path: Path) -> None:
    host = healthy(tmp_path)
    host.environ.update(HOME="/mnt/max", USER="max", DOCKER_HOST="ssh://moritz@ermintrude:22")
    plugin = {"Name": "buildx", "Path": "/mnt/max/.docker/cli-plugins/docker-buildx", "Owner": "max"}
    host.docker = docker_info(Name="vm", ClientInfo={"Plugins": [plugin], "Mounts": ["/srv/max/x max:max"]})
    machine = host.machine()
    text = json.dumps(report.full(examine(machine), machine))
    for name in ("max/", "max:", '"max"', "moritz", "ermintrude"):
        assert name not in text, name


def test_json_has_the_stable_keys(tmp_path: Path) -> None:
    host = healthy(tmp_path)
    host.remove("/dev/nvidia-uvm")
    result = report.to_dict(examine(host.machine()))
    assert set(result) == {"schema_version", "seatrial", "created_at", "exit_code", "first_broken", "checks"}
    assert (result["exit_code"], result["first_broken"]) == (2, "userspace.nodes")
    keys = {"id", "layer", "title", "status", "line", "blocked_by", "seconds", "findings"}
    assert all(set(check) == keys for check in result["checks"])
    [nodes] = [check for check in result["checks"] if check["id"] == "userspace.nodes"]
    assert set(nodes["findings"][0]) == {"id", "severity", "message", "cause", "fix", "evidence"}
    assert json.loads(json.dumps(result)) == result


@cases("os_release", "words", "not_words")
def test_install_steps(tmp_path: Path, os_release: str, words: list[str], not_words: list[str]) -> None:
    host = healthy(tmp_path)
    host.write("/etc/os-release", os_release)
    steps = toolkit_install.toolkit_steps(host.machine())
    assert all(word in steps for word in words) and not any(word in steps for word in not_words), steps
    if "seatrial" not in steps:
        assert steps.endswith("nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker")


def test_the_way_off_what_came_before(tmp_path: Path) -> None:
    host = healthy(tmp_path)
    host.write("/var/lib/dpkg/status", "Package: bash\n\nPackage: nvidia-docker2\nStatus: install ok installed\n")
    host.write("/etc/apt/sources.list.d/nvidia-docker.list", "deb https://nvidia.github.io/nvidia-docker/x /\n")
    host.write("/etc/apt/trusted.gpg.d/nvidia.asc")
    commands = toolkit_install.toolkit_steps(host.machine()).split(" && ")
    assert commands[:3] == [
        "sudo apt-get purge -y nvidia-docker2",
        "sudo rm -f /etc/apt/sources.list.d/nvidia-docker.list",
        "sudo rm -f /etc/apt/trusted.gpg.d/*nvidia*",
    ]


def test_docker_of_the_snap_is_configured_where_it_reads(tmp_path: Path) -> None:
    host = healthy(tmp_path)
    host.docker = docker_info(DockerRootDir="/var/snap/docker/common/var-lib-docker")
    steps = toolkit_install.toolkit_steps(host.machine())
    assert "--config=/var/snap/docker/current/config/daemon.json" in steps and "snap restart docker" in steps
