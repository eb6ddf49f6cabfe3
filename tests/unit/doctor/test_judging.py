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

H200, RTX = ["NVIDIA H200"], ["NVIDIA GeForce RTX 5090"]
#: As nvidia/cuda:12.8 sets it.
CUDA_12_8 = "cuda>=12.8 brand=tesla,driver>=535,driver<536 brand=geforce,driver>=570,driver<571"


@pytest.mark.parametrize(
    ("requirement", "cuda", "driver", "names", "expected"),
    [
        ("cuda>=12.8", "13.0", "580.159.04", H200, True),
        ("cuda>=12.8", "12.2", "535.183.01", H200, False),
        (CUDA_12_8, "12.2", "535.183.01", H200, True),
        (CUDA_12_8, "12.2", "535.183.01", RTX, False),
        (CUDA_12_8, "12.2", "550.54.14", H200, False),
        ("cuda>=13.0", "12.10", "570.1", H200, False),
        ("cuda>=12.9", "12.10", "570.1", H200, True),
        ("arch=x86_64", "12.2", "535.1", H200, True),
    ],
)
def test_requirements(requirement: str, cuda: str, driver: str, names: list[str], expected: bool) -> None:
    assert meets(requirement, cuda, driver, names) is expected


@pytest.mark.parametrize(
    ("arch_list", "capability", "expected"),
    [
        (["sm_80", "sm_90"], "9.0", True),
        (["sm_80"], "8.9", True),
        (["sm_90"], "12.0", False),
        (["sm_120"], "9.0", False),
        (["sm_90a"], "9.0", True),
        (["sm_90a"], "9.1", False),
        (["sm_50", "compute_90"], "12.0", True),
        (["sm_89"], "8.6", False),
        (["sm_100f"], "10.3", True),
        ([], "9.0", False),
        (["gfx942"], "9.4", False),
    ],
)
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


@pytest.mark.parametrize(
    ("os_release", "words", "not_words"),
    [
        ("ID=ubuntu\nID_LIKE=debian\n", ["stable/deb/nvidia-container-toolkit.list", "signed-by="], ["apt-key", "dnf"]),
        ("ID=debian\n", ["apt-get install -y nvidia-container-toolkit"], ["dnf"]),
        ('ID="rocky"\nID_LIKE="rhel centos fedora"\n', ["stable/rpm/nvidia-container-toolkit.repo", "dnf"], ["apt"]),
        ("ID=fedora\n", ["dnf install -y nvidia-container-toolkit"], ["apt"]),
        ('ID="opensuse-leap"\nID_LIKE="suse opensuse"\n', ["zypper ar", "zypper --gpg-auto-import-keys"], ["apt"]),
        ("ID=arch\n", ["pacman -S --needed nvidia-container-toolkit"], ["apt"]),
        ("ID=nixos\n", ["seatrial doctor --write-cdi"], ["apt", "dnf"]),
    ],
)
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
