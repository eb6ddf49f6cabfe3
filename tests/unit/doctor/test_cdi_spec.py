"""The CDI spec that we write: complete, of the lowest version, valid, and read back by our own reader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from fakes import FakeGpu
from machines import UUID, VERSION, FakeHost, HealthGpu, healthy
from seatrial.backends.containers.cdi import read_specs
from seatrial.doctor import fix
from seatrial.doctor.cdi_spec import minimum_version, to_yaml
from seatrial.errors import GpuContractError
from unit.doctor.test_breaks import Breaker

#: Published by the CDI project; beside the repository on development machines.
SCHEMAS = Path(__file__).parents[4] / "shared" / "schemas"


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return healthy(tmp_path)


def nodes(edits: dict[str, Any]) -> list[str]:
    return [node["path"] for node in edits.get("deviceNodes", ())]


def test_one_gpu(host: FakeHost) -> None:
    spec = fix.spec_of(host.machine())
    assert [device["name"] for device in spec["devices"]] == ["0", UUID, "all"]
    assert all(nodes(device["containerEdits"]) == ["/dev/nvidia0"] for device in spec["devices"])
    common = spec["containerEdits"]
    assert nodes(common) == ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"]
    assert common["env"] == ["NVIDIA_VISIBLE_DEVICES=void"]
    mounts = {mount["containerPath"]: mount["hostPath"] for mount in common["mounts"]}
    file = f"/usr/lib/x86_64-linux-gnu/libcuda.so.{VERSION}"
    for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib64"):  # searched by every linker without a cache
        assert mounts[f"{folder}/libcuda.so.1"] == file
    assert mounts["/usr/bin/nvidia-smi"] == "/usr/bin/nvidia-smi"
    assert "hooks" not in common
    assert spec["cdiVersion"] == "0.5.0"  # for the names that begin with a digit


def test_it_is_valid_by_the_published_schema(host: FakeHost) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    if not SCHEMAS.is_dir():
        pytest.skip("the CDI schema is not here")
    from referencing import Registry, Resource

    host.two_gpus()
    spec = yaml.safe_load(to_yaml(fix.spec_of(host.machine())))
    definitions = Resource.from_contents(
        json.loads((SCHEMAS / "defs.json").read_text()), default_specification=_draft7()
    )
    registry = Registry().with_resource("defs.json", definitions)
    schema = json.loads((SCHEMAS / "cdi-schema.json").read_text())
    jsonschema.Draft7Validator(schema, registry=registry).validate(spec)
    spec["devices"][0].pop("name")
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft7Validator(schema, registry=registry).validate(spec)


def _draft7() -> Any:
    from referencing.jsonschema import DRAFT7

    return DRAFT7


def test_our_reader_takes_it_and_misses_nothing(host: FakeHost, tmp_path: Path) -> None:
    host.two_gpus()
    folder = tmp_path / "specs"
    folder.mkdir()
    (folder / "nvidia.yaml").write_text(to_yaml(fix.spec_of(host.machine())))
    specs = read_specs([folder])
    assert {f"nvidia.com/gpu={name}" for name in ("0", "1", "all", UUID)} <= set(specs.names)
    [every] = [device for device in specs.devices if device.name.endswith("=all")]
    assert {"/dev/nvidia0", "/dev/nvidia1"} <= set(every.host_paths)
    assert all((host.root / path.lstrip("/")).exists() for path in every.host_paths)


def test_a_slice_brings_its_rights_and_its_parent_is_no_device(host: FakeHost) -> None:
    parent = HealthGpu()
    parent.slices = [FakeGpu(uuid="MIG-1", name="NVIDIA H200 MIG 1g.18gb", parent=parent)]
    host.gpus[:] = [parent]
    base = "/proc/driver/nvidia/capabilities/gpu0/mig/gi1"
    host.write(f"{base}/access", "DeviceFileMinor: 12\nDeviceFileMode: 444\n")
    host.write(f"{base}/ci0/access", "DeviceFileMinor: 13\nDeviceFileMode: 444\n")
    spec = fix.spec_of(host.machine())
    assert [device["name"] for device in spec["devices"]] == ["0:0", "MIG-1", "all"]
    rights = ["/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap12", "/dev/nvidia-caps/nvidia-cap13"]
    assert nodes(spec["devices"][0]["containerEdits"]) == rights


def test_wsl_has_one_device_for_all(host: FakeHost) -> None:
    Breaker(host).wsl()
    host.gpus.clear()
    spec = fix.spec_of(host.machine())
    assert [device["name"] for device in spec["devices"]] == ["all"]
    assert nodes(spec["devices"][0]["containerEdits"]) == ["/dev/dxg"]
    assert spec["cdiVersion"] == "0.3.0"


@pytest.mark.parametrize("path", ["/dev/nvidia-uvm", "/proc/driver/nvidia/version"])
def test_an_incomplete_driver_is_refused(host: FakeHost, path: str) -> None:
    host.remove(path)
    with pytest.raises(GpuContractError) as raised:
        fix.spec_of(host.machine())
    assert path in str(raised.value.cause)


def test_a_machine_without_gpus_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GpuContractError):
        fix.spec_of(FakeHost(tmp_path, []).machine())


@pytest.mark.parametrize(
    ("change", "version"),
    [
        ({}, "0.3.0"),
        ({"devices": [{"name": "0", "containerEdits": {}}]}, "0.5.0"),
        ({"containerEdits": {"mounts": [{"hostPath": "/a", "containerPath": "/a", "type": "bind"}]}}, "0.4.0"),
        ({"containerEdits": {"deviceNodes": [{"path": "/dev/a", "hostPath": "/dev/b"}]}}, "0.5.0"),
        ({"annotations": {"a": "b"}}, "0.6.0"),
        ({"kind": "nvidia.com/gpu.shared"}, "0.6.0"),
        ({"containerEdits": {"additionalGids": [44]}}, "0.7.0"),
        ({"containerEdits": {"netDevices": []}}, "1.1.0"),
    ],
)
def test_lowest_version(change: dict[str, Any], version: str) -> None:
    spec = {"kind": "nvidia.com/gpu", "devices": [{"name": "gpu", "containerEdits": {}}], "containerEdits": {}}
    assert minimum_version({**spec, **change}) == version
