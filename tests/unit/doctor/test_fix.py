"""--fix and --undo: what is merged, written, linked, refused, taken back; and the CDI spec that is written."""

from __future__ import annotations

import json
import os
import stat
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from fakes import FakeGpu
from machines import SPEC, UUID, VERSION, FakeHost, HealthGpu, docker_info, healthy, podman_info
from seatrial.backends.containers.cdi import read_specs, spec_text
from seatrial.doctor.checks.engine import merged
from seatrial.doctor.examine import examine
from seatrial.doctor.fix import Change, ChangeJournal, apply_fixes, changes_for, undo
from seatrial.errors import DiskError, EngineError, GpuContractError, UsageError
from seatrial.system.host import Host
from unit.doctor.test_breaks import Breaker


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    made = healthy(tmp_path / "root")
    made.environ["XDG_STATE_HOME"] = str(tmp_path / "state")
    return made


def older_spec(host: FakeHost) -> None:
    Breaker(host).docker_takes_cdi()
    Breaker(host).spec(version="550.54.14")


def console() -> Console:
    return Console(file=StringIO(), width=200, force_terminal=False)


def message(screen: Console) -> str:
    assert isinstance(screen.file, StringIO)
    return screen.file.getvalue()


def fix(host: FakeHost, *, answer: str = "") -> tuple[int, str]:
    """Say yes to every question with these words in it; the number of changes, and what was printed."""
    screen, machine = console(), host.machine()
    made = apply_fixes(examine(machine), machine, screen, lambda question: answer in question)
    return made, message(screen)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@given(settings=st.dictionaries(st.text(max_size=8), JSON, max_size=5))
def test_merging_loses_no_other_key(settings: dict[str, object]) -> None:
    after = json.loads(merged(json.dumps(settings), {"features": {"cdi": True}}))
    assert after["features"]["cdi"] is True
    assert {key: value for key, value in after.items() if key != "features"} == {
        key: value for key, value in settings.items() if key != "features"
    }
    if isinstance(settings.get("features"), dict):
        assert {**settings["features"], "cdi": True} == after["features"]  # type: ignore[dict-item]


def test_merging_keeps_order_and_indent() -> None:
    text = '{\n  "data-root": "/x",\n  "features": {\n    "containerd-snapshotter": true\n  }\n}\n'
    assert merged(text, {"features": {"cdi": True}}) == (
        '{\n  "data-root": "/x",\n  "features": {\n    "containerd-snapshotter": true,\n    "cdi": true\n  }\n}\n'
    )
    assert "\n\t" in merged('{\n\t"a": 1\n}', {"b": 2})


@pytest.mark.parametrize("text", ["{,}", "[]", '"x"'])
def test_nothing_is_merged_into_what_is_no_object(text: str) -> None:
    with pytest.raises(EngineError):
        merged(text, {"a": 1})


def test_cdi_is_turned_on_without_dropping_features_and_taken_back(host: FakeHost) -> None:
    Breaker(host).docker_takes_cdi()
    Breaker(host).spec()
    before = '{"features": {"containerd-snapshotter": true}, "log-driver": "local"}'
    host.write("/etc/docker/daemon.json", before)
    host.docker = docker_info(Runtimes={"runc": {"path": "runc"}}, ServerVersion="27.5.1", CDISpecDirs=None)
    host.answer("systemctl", "restart", "docker")
    host.answer("nvidia-ctk", "--version", stdout="NVIDIA Container Toolkit CLI version 1.19.0\n")
    path = host.root / "etc/docker/daemon.json"
    path.chmod(0o640)
    made, text = fix(host)
    assert made == 1 and '+        "cdi": true' in text
    assert json.loads(path.read_text()) == {
        "features": {"containerd-snapshotter": True, "cdi": True},
        "log-driver": "local",
    }
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert ("systemctl", "restart", "docker") in host.commands and "Docker was restarted" in text
    undo(console(), Host(host.environ))
    assert path.read_text() == before
    with pytest.raises(UsageError, match="No fix to undo"):
        undo(console(), Host(host.environ))


def test_an_engine_with_running_containers_is_not_restarted(host: FakeHost) -> None:
    Breaker(host).without_toolkit()
    host.write("/usr/bin/nvidia-container-runtime")  # the package is there, and was never registered
    host.docker = docker_info(Runtimes={"runc": {"path": "runc"}}, ContainersRunning=3)
    made, text = fix(host, answer="daemon.json")
    assert made == 1 and "would stop the 3 running containers" in text
    assert not any(words[:2] == ("systemctl", "restart") for words in host.commands)
    [runtimes] = json.loads((host.root / "etc/docker/daemon.json").read_text()).values()
    assert runtimes == {"nvidia": {"args": [], "path": "nvidia-container-runtime"}}


def test_what_is_not_agreed_to_is_not_written(host: FakeHost) -> None:
    older_spec(host)
    before = (host.root / SPEC.lstrip("/")).read_text()
    made, text = fix(host, answer="no such question")
    assert made == 0 and "Nothing was changed" in text
    assert (host.root / SPEC.lstrip("/")).read_text() == before


def test_a_stale_spec_is_written_anew_and_then_fresh(host: FakeHost) -> None:
    older_spec(host)
    assert fix(host)[0] == 1
    again = {result.check.id: result.verdict for result in examine(host.machine())}
    assert again["cdi.fresh"].status == "ok" and again["cdi.uvm"].status == "ok"
    assert changes_for(examine(host.machine()), host.machine()) == []
    undo(console(), Host(host.environ))
    assert "550.54.14" in (host.root / SPEC.lstrip("/")).read_text()


def test_a_new_spec_is_removed_by_undo(host: FakeHost) -> None:
    host.docker, host.podman = None, podman_info()
    assert fix(host)[0] == 1
    path = host.root / SPEC.lstrip("/")
    assert yaml.safe_load(path.read_text())["kind"] == "nvidia.com/gpu"
    undo(console(), Host(host.environ))
    assert not path.exists()


def test_undo_does_not_lose_an_edit_made_since(host: FakeHost) -> None:
    older_spec(host)
    fix(host)
    path = host.root / SPEC.lstrip("/")
    path.write_text("mine")
    with pytest.raises(DiskError, match="changed after the fix"):
        undo(console(), Host(host.environ))
    assert path.read_text() == "mine"


def test_small_shared_memory_is_set_for_all_containers(host: FakeHost) -> None:
    host.live["shm_bytes"] = 64 * 2**20
    machine = host.machine()
    [change] = changes_for(examine(machine), machine)
    assert change.path == host.root / "etc/docker/daemon.json"
    assert json.loads(change.after) == {"default-shm-size": "2g"}


@pytest.mark.skipif(os.getuid() != 0, reason="only root makes device nodes")
def test_links_by_number_let_systemd_keep_the_gpu(host: FakeHost) -> None:
    host.docker = docker_info(CgroupDriver="systemd")
    for name, minor in (("nvidia0", 0), ("nvidiactl", 255)):
        path = host.root / "dev" / name
        path.unlink()
        try:
            os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(195, minor))
        except PermissionError:
            pytest.skip("this root may not make device nodes")
    assert fix(host)[0] == 2
    assert (host.root / "dev/char/195:0").readlink() == Path("../nvidia0")
    assert {r.check.id: r.verdict.status for r in examine(host.machine())}["toolkit.device-rules"] == "ok"
    undo(console(), Host(host.environ))
    assert list((host.root / "dev/char").iterdir()) == []


def test_a_file_that_changed_while_we_requested_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "daemon.json"
    path.write_text("{}")
    change = Change(path, "because", "{}", '{"a": 1}')
    path.write_text('{"b": 2}')
    with pytest.raises(DiskError, match="changed in the meantime"):
        change.make()
    assert path.read_text() == '{"b": 2}'


def test_when_one_change_fails_the_others_are_taken_back(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = host.root / "one", host.root / "two"
    first.write_text("1")
    changes = [Change(first, "a", "1", "1!"), Change(second, "b", "not what is there", "2!")]
    monkeypatch.setattr("seatrial.doctor.fix.changes_for", lambda results, machine: changes)
    with pytest.raises(DiskError):
        apply_fixes([], host.machine(), console(), lambda question: True)
    assert first.read_text() == "1" and not second.exists()
    with pytest.raises(UsageError):
        ChangeJournal(Host(host.environ)).newest()


#: Published by the CDI project; next to the repository on development machines.
SCHEMAS = Path(__file__).parents[4] / "shared" / "schemas"


def spec_of(host: FakeHost) -> str:
    machine = host.machine()
    return spec_text(machine.driver, machine.inventory.gpus, machine.root)


def nodes(edits: dict[str, Any]) -> list[str]:
    return [node["path"] for node in edits.get("deviceNodes", ())]


def test_one_gpu(host: FakeHost) -> None:
    spec = yaml.safe_load(spec_of(host))
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
    from referencing import Registry
    from referencing.jsonschema import DRAFT7

    host.two_gpus()
    spec = yaml.safe_load(spec_of(host))
    definitions = DRAFT7.create_resource(json.loads((SCHEMAS / "defs.json").read_text()))
    registry = Registry().with_resource("defs.json", definitions)
    schema = json.loads((SCHEMAS / "cdi-schema.json").read_text())
    jsonschema.Draft7Validator(schema, registry=registry).validate(spec)
    spec["devices"][0].pop("name")
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft7Validator(schema, registry=registry).validate(spec)


def test_our_reader_takes_it_and_misses_nothing(host: FakeHost, tmp_path: Path) -> None:
    host.two_gpus()
    folder = tmp_path / "specs"
    folder.mkdir()
    (folder / "nvidia.yaml").write_text(spec_of(host))
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
    spec = yaml.safe_load(spec_of(host))
    assert [device["name"] for device in spec["devices"]] == ["0:0", "MIG-1", "all"]
    rights = ["/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap12", "/dev/nvidia-caps/nvidia-cap13"]
    assert nodes(spec["devices"][0]["containerEdits"]) == rights


def test_wsl_has_one_device_for_all(host: FakeHost) -> None:
    Breaker(host).wsl()
    host.gpus.clear()
    spec = yaml.safe_load(spec_of(host))
    assert [device["name"] for device in spec["devices"]] == ["all"]
    assert nodes(spec["devices"][0]["containerEdits"]) == ["/dev/dxg"]
    assert spec["cdiVersion"] == "0.3.0"


@pytest.mark.parametrize("path", ["/dev/nvidia-uvm", "/proc/driver/nvidia/version", None])
def test_an_incomplete_driver_is_refused(host: FakeHost, tmp_path: Path, path: str | None) -> None:
    if path is None:
        host = FakeHost(tmp_path / "no GPUs", [])
    else:
        host.remove(path)
    with pytest.raises(GpuContractError) as raised:
        spec_of(host)
    assert (path or "") in str(raised.value.cause)
