"""The container plan: golden plans for each kind of engine, and the rules one by one."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from fakes import a_container
from seatrial.backends.containers.mounts import CACHE, make_host_files
from seatrial.errors import DiskError, UntrustedPathError, UsageError
from seatrial.job.in_container import CONTAINER_HOME
from seatrial.job.plan import ContainerPlan, ImagePlan, Mount
from seatrial.probe import driver_files
from tables import cases, constant

from ..probe import driver_trees as trees
from .planning_facts import CDI_BY_UUID, H200S, PLACE, RECORD, STATE, container, docker, podman

GIB = 2**30


def mounts(plan: ContainerPlan) -> dict[str, str]:
    return {mount.target: f"{mount.source}{':ro' if mount.read_only else ''}" for mount in plan.mounts}


def test_golden(snapshot: SnapshotAssertion, tmp_path: Path) -> None:
    """The ways that need a GPU; tests/golden plans the others. The driver in a folder of its own: a measured host."""
    driver = driver_files.find(str(trees.one_folder(tmp_path)), {})
    image = ImagePlan(tag="cuda", build=False, env={"LD_LIBRARY_PATH": "/usr/local/nvidia/lib64:/usr/local/cuda/lib64"})
    plans = {
        "docker, nvidia-runtime": container(docker(nvidia_hook=True), H200S),
        "docker, cdi": container(docker(cdi_devices=CDI_BY_UUID), H200S[:1]),
        "docker, device-nodes": container(docker(), H200S[:1], driver, image=image),
        "podman rootless, cdi": container(podman(cdi_devices=CDI_BY_UUID, selinux=True), H200S),
    }
    for name, parts in plans.items():
        assert json.dumps(parts.container.model_dump(mode="json", exclude_defaults=True), indent=1) == snapshot(
            name=name
        )


@pytest.mark.parametrize(
    ("engine", "uid", "user", "userns", "passwd", "capabilities"),
    [
        (docker(), 1000, "1000:1000", None, True, False),
        (docker(), 0, "0:0", None, False, True),
        (docker(rootless=True), 1000, "0:0", None, False, True),
        (podman(), 1000, "1000:1000", "keep-id", False, False),
        (podman(rootless=False), 0, "0:0", None, False, True),
    ],
)
def test_outputs_belong_to_the_caller(engine, uid, user, userns, passwd, capabilities) -> None:  # type: ignore[no-untyped-def]
    plan = container(engine, uid=uid).container
    assert (plan.user, plan.userns) == (user, userns)
    assert ("/etc/passwd" in mounts(plan)) is passwd
    assert ("DAC_OVERRIDE" in plan.capabilities) is capabilities


def test_env_precedence_and_secrets(tmp_path: Path) -> None:
    file = tmp_path / "train.env"
    file.write_text(
        "# comment\n\nA=file\nB=file\nHF_TOKEN=leaked\nHF_HOME=/models/hf\nFROM_HOST\nNOT_ON_HOST\nQ='x y'\n"
    )
    parts = container(
        docker(),
        env_files=(file,),
        env={"B": "flag"},
        secrets=("HF_TOKEN",),
        environ={"FROM_HOST": "h", "HF_TOKEN": "t"},
    )
    env = parts.container.env
    assert [env[name] for name in ("A", "B", "HF_HOME", "FROM_HOST", "Q")] == [
        "file",
        "flag",
        "/models/hf",
        "h",
        "'x y'",
    ]
    assert not {"HF_TOKEN", "NOT_ON_HOST"} & env.keys()
    assert "leaked" not in parts.container.model_dump_json()
    assert any("HF_TOKEN is a secret" in warning for warning in parts.warnings)


def test_the_drivers_folder_comes_last_any_way_the_user_sets(tmp_path: Path) -> None:
    driver = driver_files.find(str(trees.one_folder(tmp_path)), {})
    parts = container(docker(), H200S[:1], driver, env={"LD_LIBRARY_PATH": "/opt/lib"})
    assert parts.target_env == {"LD_LIBRARY_PATH": "/opt/lib:/usr/local/nvidia/lib64"}
    assert parts.container.env["LD_LIBRARY_PATH"] == "/usr/local/nvidia/lib64"


STEERING = constant(__file__, "STEERING")


def test_what_steers_the_loader_reaches_the_target_and_not_the_agent(tmp_path: Path) -> None:
    """A library of the project's in PID 1 could write evidence as it likes."""
    file = tmp_path / "train.env"
    file.write_text("LD_DEBUG_OUTPUT=/seatrial/run/x\nOMP_NUM_THREADS=4\n")
    parts = container(docker(), env={**STEERING, "PYTHONUNBUFFERED": "0", "WORLD": "1"}, env_files=(file,))
    assert parts.target_env == {**STEERING, "LD_DEBUG_OUTPUT": "/seatrial/run/x", "PYTHONUNBUFFERED": "0"}
    assert not {name for name in parts.container.env if name.startswith(("LD_", "GCONV", "PYTHON", "LOC"))}
    assert (parts.container.env["WORLD"], parts.container.env["OMP_NUM_THREADS"]) == ("1", "4")
    own = container(docker(), env={"WORLD": "1"})
    assert own.target_env == {} and own.container.env["PYTHONUNBUFFERED"] == "1"


@pytest.mark.parametrize(
    ("engine", "keys", "hostname"),
    [
        (docker(), {}, "20261120-231501-k3f9"),
        (docker(), {"name": "my run/№1"}, "my-run-1"),
        (docker(), {"network": "training"}, "20261120-231501-k3f9"),
        (docker(), {"network": "host"}, None),
        (docker(), {"network": "none"}, "localhost"),
        (docker(), {"network": "container:db"}, None),
        (podman(), {}, None),
    ],
)
def test_the_hostname_resolves(engine, keys, hostname) -> None:  # type: ignore[no-untyped-def]
    assert container(engine, **keys).container.hostname == hostname


@cases("mount", "message")
def test_mounts_that_cannot_be_intended(tmp_path: Path, mount: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        container(docker(), mounts=(mount.format(here=tmp_path),))


def test_a_mount_may_cover_a_folder_that_holds_the_same_and_be_given_twice(tmp_path: Path) -> None:
    (tmp_path / "venv/bin").mkdir(parents=True)
    made = container(docker(), mounts=(f"{tmp_path}:/opt", f"{tmp_path}:/opt")).container.mounts
    assert [mount.target for mount in made].count("/opt") == 1


@pytest.mark.parametrize("device", ["/dev/nvidia0", "/dev/nvidiactl", "/dev/dxg", "nvidia.com/gpu=0"])
def test_gpus_come_through_the_request_alone(device: str) -> None:
    with pytest.raises(UsageError, match="is a GPU"):
        container(docker(), devices=(device,))
    assert container(docker(), devices=("/dev/fuse",)).container.devices == ("/dev/fuse",)


def _covering(project: Path, sources: Mapping[str, Path]) -> ContainerPlan:
    """A project's container with further mounts in it: path below the project → source."""
    covering = [Mount(source=source, target=f"/workspace/{path}") for path, source in sources.items()]
    return a_container(mounts=(Mount(source=project, target="/workspace"), *covering))


def test_mount_points_inside_mounts_are_made_by_the_caller(tmp_path: Path) -> None:
    """Docker would make them, owned by root: in the user's project, or in the cache of all later runs."""
    project, weights, token = tmp_path / "project", tmp_path / "weights", tmp_path / "token"
    project.mkdir()
    weights.mkdir()
    token.write_text("t")
    make_host_files(_covering(project, {"a/weights": weights, "a/token": token, "/elsewhere": weights}), project)
    assert (project / "a" / "weights").is_dir()
    assert (project / "a" / "token").read_bytes() == b""
    home = (Mount(source=tmp_path / "home", target=CONTAINER_HOME), Mount(source=weights, target=CACHE))
    make_host_files(a_container(mounts=home), project)
    assert (tmp_path / "home" / ".cache").is_dir()


@pytest.mark.parametrize("path", ["a/models", "a/file", "token"])
def test_mount_points_are_not_made_through_a_link(tmp_path: Path, path: str) -> None:
    """A script left a link in the project where the next run needs a folder or a file."""
    project, outside = tmp_path / "project", tmp_path / "outside"
    project.mkdir()
    outside.mkdir()
    (project / "a").symlink_to(outside)
    (project / "token").symlink_to(outside / "token")
    source = tmp_path / "source"
    source.mkdir() if path == "a/models" else source.touch()
    with pytest.raises((UntrustedPathError, DiskError)):
        make_host_files(_covering(project, {path: source}), project)
    assert list(outside.iterdir()) == []


def test_a_pipe_in_place_of_a_mount_point_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "point")
    (tmp_path / "source").touch()
    make_host_files(_covering(tmp_path, {"point": tmp_path / "source"}), tmp_path)


@cases("host_gib", "keys", "facts", "gib")
def test_a_container_leaves_the_host_some_memory(host_gib, keys, facts, gib) -> None:  # type: ignore[no-untyped-def]
    host_memory_bytes = None if host_gib is None else int(host_gib * GIB)
    parts = container(docker(**facts), host_memory_bytes=host_memory_bytes, **keys)
    assert parts.container.memory_bytes == (None if gib is None else pytest.approx(gib * GIB, rel=1e-6))
    assert ("memory" in [choice.what for choice in parts.choices]) is (gib is not None and not keys)


def test_no_container_is_given_the_hosts_state(tmp_path: Path) -> None:
    """Neither the record, but for plan, HOME and the user's name, nor the state folder through a mount around it."""
    plan = container(docker(), mounts=(f"{tmp_path}:/mnt",)).container
    of_record = {t: m for t, m in mounts(plan).items() if m.startswith(str(STATE))}
    assert of_record == {
        "/seatrial/plan.json": f"{RECORD}/agent.json:ro",
        "/seatrial/agent.pyz": f"{STATE}/agent/agent.pyz:ro",
        "/home/seatrial": f"{RECORD}/home",
        "/etc/passwd": f"{RECORD}/passwd:ro",
        "/etc/group": f"{RECORD}/group:ro",
    }
    assert mounts(plan)["/seatrial/run"] == f"{PLACE}/outputs"
    at_home = container(docker(), project=Path("/home/ada")).container
    masked = {tmpfs.target: tmpfs.options for tmpfs in at_home.tmpfs}
    assert set(masked) == {"/tmp", "/workspace/.seatrial", "/workspace/.local/state/seatrial"}
    assert masked["/workspace/.seatrial"].startswith("ro,")
