"""CDI specs, as nvidia-ctk writes them (YAML) and as other vendors do (JSON)."""

import json
from pathlib import Path

import pytest

from seatrial.backends.containers.cdi import read_specs
from tables import cases

#: The shape that nvidia-ctk 1.17 writes, shortened: common edits, one device under two names and all.
YAML = """\
---
cdiVersion: 0.5.0
kind: nvidia.com/gpu
containerEdits:
    deviceNodes:
        - path: /dev/nvidiactl
          hostPath: {root}/dev/nvidiactl
    env: [NVIDIA_VISIBLE_DEVICES=void]
    hooks:
        - hookName: createContainer
          path: {root}/usr/bin/nvidia-cdi-hook
          args: [nvidia-cdi-hook, update-ldcache, --folder, /usr/lib/x86_64-linux-gnu]
    mounts:
        - hostPath: {root}/lib/libcuda.so.580.159.04
          containerPath: /usr/lib/x86_64-linux-gnu/libcuda.so.580.159.04
          options: [ro, nosuid, nodev, bind]
devices:
    - name: "0"
      containerEdits:
          deviceNodes:
              - path: {root}/dev/nvidia0
    - name: GPU-de421f49-0f0c-4a5b-8c6d-112233445566
      containerEdits:
          deviceNodes:
              - path: {root}/dev/nvidia0
    - name: all
      containerEdits:
          deviceNodes:
              - path: {root}/dev/nvidia0
"""


@pytest.fixture
def host(tmp_path: Path) -> Path:
    for path in ("dev/nvidiactl", "dev/nvidia0", "lib/libcuda.so.580.159.04", "usr/bin/nvidia-cdi-hook"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    (tmp_path / "cdi").mkdir()
    return tmp_path


def json_spec(kind: str, *names: str, path: str = "/dev/null") -> str:
    edits = {"deviceNodes": [{"path": path}]}
    devices = [{"name": name, "containerEdits": edits} for name in names]
    return json.dumps({"cdiVersion": "0.6.0", "kind": kind, "devices": devices})


def test_yaml(host: Path) -> None:
    (host / "cdi/nvidia.yaml").write_text(YAML.format(root=host))
    specs = read_specs([host / "cdi"])
    assert specs.findings == ()
    assert specs.names == (
        "nvidia.com/gpu=0",
        "nvidia.com/gpu=GPU-de421f49-0f0c-4a5b-8c6d-112233445566",
        "nvidia.com/gpu=all",
    )
    assert specs.devices[0].host_paths == (
        f"{host}/dev/nvidiactl",
        f"{host}/lib/libcuda.so.580.159.04",
        f"{host}/dev/nvidia0",
        f"{host}/usr/bin/nvidia-cdi-hook",
    )
    assert specs.devices[0].programs == (f"{host}/usr/bin/nvidia-cdi-hook",)


def test_a_later_folder_wins(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "nvidia.json").write_text(json_spec("nvidia.com/gpu", "0"))
    specs = read_specs([tmp_path / "a", tmp_path / "b"])
    assert [device.spec for device in specs.devices] == [tmp_path / "b" / "nvidia.json"]
    assert specs.findings == ()


def test_twice_in_one_folder_is_a_conflict(host: Path) -> None:
    (host / "cdi/a.json").write_text(json_spec("nvidia.com/gpu", "0", "1"))
    (host / "cdi/b.json").write_text(json_spec("nvidia.com/gpu", "0"))
    specs = read_specs([host / "cdi"])
    assert specs.names == ("nvidia.com/gpu=1",)
    assert [finding.id for finding in specs.findings] == ["cdi-device-conflict"]
    assert specs.findings[0].evidence == [str(host / "cdi/a.json"), str(host / "cdi/b.json")]


@cases("name", "text", "cause")
def test_a_broken_spec_is_a_finding(host: Path, name: str, text: str, cause: str) -> None:
    (host / "cdi" / name).write_text(text)
    (host / "cdi/good.json").write_text(json_spec("nvidia.com/gpu", "0"))
    specs = read_specs([host / "cdi"])
    assert specs.names == ("nvidia.com/gpu=0",)
    (finding,) = specs.findings
    assert finding.id == "cdi-spec-unreadable"
    assert cause in (finding.cause or "")
