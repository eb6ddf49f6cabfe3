"""Rules that checks judge by, and reports: redaction, install steps, Markdown to paste."""

from __future__ import annotations

import json
import platform
from pathlib import Path

import pytest

from machines import FakeHost, docker_info, healthy, podman_info
from seatrial import cli
from seatrial.doctor import report
from seatrial.doctor.checks.container import meets
from seatrial.doctor.checks.engine import toolkit_steps
from seatrial.doctor.examine import examine
from seatrial.doctor.report import markdown
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


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return healthy(tmp_path)


def full(host: FakeHost, **more: bool) -> str:
    machine = host.machine()
    return json.dumps(report.full(examine(machine), machine, **more), default=str)


def test_the_report_holds_the_facts_and_no_secret(host: FakeHost) -> None:
    token = "hf_" + "a1b2c3d4" * 4
    secrets = {"HF_TOKEN": token, "CUDA_NOTE": f"see {token}", "AWS_SECRET_ACCESS_KEY": "q" * 20}
    host.environ.update(NVIDIA_VISIBLE_DEVICES="all", **secrets)
    host.docker = docker_info(HttpProxy="http://me:pa55word@proxy:3128", Labels=["key=" + "q" * 20])
    text = full(host)
    assert '"NVIDIA_VISIBLE_DEVICES": "all"' in text and '"580.159.04"' in text and "NVIDIA H200" in text
    assert "http://<redacted>@proxy:3128" in text
    assert not any(secret in text for secret in (token, "pa55word", "q" * 20))


@pytest.mark.parametrize(("user", "home"), [("zebedee", "/data/zebedee"), ("max", "/mnt/max")])
def test_the_report_names_neither_user_host_nor_home(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch, user: str, home: str
) -> None:
    """``max`` is also a word of what engines report."""
    monkeypatch.setattr(platform, "node", lambda: "florence.example.org")
    host.environ.update(HOME=home, USER=user, KUBECONFIG=f"{home}/.kube/config")
    host.environ.update(DOCKER_HOST=f"ssh://{user}@ermintrude:22", SEATRIAL_NOTE=f"{user} on florence")
    plugin = {"Name": "buildx", "Path": f"{home}/.docker/cli-plugins/docker-buildx", "Owner": user}
    client = {"Plugins": [plugin], "Mounts": [f"/srv/{user}/x {user}:{user}"]}
    host.docker = docker_info(Name="ermintrude", ClientInfo=client)
    host.podman = podman_info(host={**podman_info()["host"], "hostname": "vm"}, store={f"{home}/x": "y"})
    text = full(host)
    for name in (f"{user}/", f"{user}:", f'"{user}"', "florence", "ermintrude", home, '"vm"'):
        assert name not in text, name
    assert "~/.docker/cli-plugins/docker-buildx" in text and "ssh://USER@HOST" in text and '"~/x"' in text
    result = full(host, with_names=True)
    assert all(name in result for name in (user, "florence", "ermintrude", f"{home}/x", '"vm"'))


def test_json_has_the_stable_keys(host: FakeHost) -> None:
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
def test_install_steps(host: FakeHost, os_release: str, words: list[str], not_words: list[str]) -> None:
    host.write("/etc/os-release", os_release)
    steps = toolkit_steps(host.machine())
    assert all(word in steps for word in words) and not any(word in steps for word in not_words), steps
    if "seatrial" not in steps:
        assert steps.endswith("nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker")


def test_the_way_off_what_came_before(host: FakeHost) -> None:
    host.write("/var/lib/dpkg/status", "Package: bash\n\nPackage: nvidia-docker2\nStatus: install ok installed\n")
    host.write("/etc/apt/sources.list.d/nvidia-docker.list", "deb https://nvidia.github.io/nvidia-docker/x /\n")
    host.write("/etc/apt/trusted.gpg.d/nvidia.asc")
    commands = toolkit_steps(host.machine()).split(" && ")
    assert commands[:3] == [
        "sudo apt-get purge -y nvidia-docker2",
        "sudo rm -f /etc/apt/sources.list.d/nvidia-docker.list",
        "sudo rm -f /etc/apt/trusted.gpg.d/*nvidia*",
    ]


def test_the_broken_check_comes_first_with_its_fix(host: FakeHost) -> None:
    host.remove("/sys/bus/pci/devices/0000:10:00.0")
    host.nvml_error = 9
    host.environ.update(HOME="/data/zebedee", USER="zebedee", CUDA_NOTE="hf_" + "a1b2c3d4" * 4)
    machine = host.machine()
    text = markdown(report.full(examine(machine), machine))
    assert len(text) < 30_000  # GitHub takes 65,536 characters
    head = text.partition("<details>")[0]
    assert "GPUs: none seen; driver 580.159.04" in head and "**broken:" in head
    assert "fix: `" in head
    assert "zebedee" not in text and "a1b2c3d4" not in text
    assert text.count("<details>") == text.count("</details>") == 2


def test_what_an_engine_prints_ends_no_block(host: FakeHost) -> None:
    machine = host.machine()
    content = report.full(examine(machine), machine)
    check = {**content["checks"][0], "status": "broken", "line": "a <details> b"}
    check["findings"] = [{"message": "m", "cause": None, "fix": None, "evidence": ["```", "````</details>"]}]
    text = markdown({**content, "checks": [check]})
    assert "a &lt;details> b" in text
    assert "\n`````text\n```\n````</details>\n`````\n" in text


def test_the_command_line(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["doctor", "--host-only", "--on", "local"]
    cli._main([*words, "--report"])
    printed = capsys.readouterr().out
    assert printed.startswith("### seatrial doctor\n") and "[✓]" not in printed
    cli._main([*words, "--report", "report.md"])
    cli._main([*words, "--report", "report.json"])
    shown = capsys.readouterr().out
    assert "[" in shown and "###" not in shown
    assert Path("report.md").read_text().startswith("### seatrial doctor\n")
    assert json.loads(Path("report.json").read_text())["facts"]["system"]
    assert cli._main([*words, "--json", "--report"]) == 2
