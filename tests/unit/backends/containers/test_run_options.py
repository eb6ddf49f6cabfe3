"""ContainerPlan → run options: what is called is what we print, and traps of both engines."""

from __future__ import annotations

from pathlib import Path

import pytest

from fakes import a_container, a_plan, a_program
from seatrial.backends.containers import images as own_storage
from seatrial.backends.containers.docker_and_podman import Docker, Podman
from seatrial.backends.containers.images import OwnImage, unused_images
from seatrial.backends.containers.run_options import proxies_with_login, proxy_env
from seatrial.errors import GpuContractError
from seatrial.images.dockerfile.render import OURS
from seatrial.job.plan import EngineAddress, Mount, Tmpfs
from seatrial.system.host import Host
from tables import cases

#: A stand-in for an engine's program: writes down how it was called and answers like an engine that succeeds.
RECORDER = """printf '%s\\0' "$@" >> '{calls}'
printf '\\n\\0' >> '{calls}'
case " $* " in
*" container run "*) echo cafe ;;
*" inspect "*) cat <<'END'
[{{"Id": "cafe", "Image": "sha256:1", "State": {{"StartedAt": "2026-11-20T00:00:00.5Z"}}, "Config": {{"Cmd": ["-c"]}}}}]
END
;;
esac
"""

FULL = {
    "hostname": "trial",
    "command": ("/usr/bin/python3", "/seatrial/agent.pyz", "/seatrial/plan.json"),
    "user": "1000:1000",
    "groups": ("44", "keep-groups"),
    "capabilities": ("DAC_OVERRIDE",),
    "security_opts": ("label=disable",),
    "workdir": "/workspace",
    "env": {"A": "1", "B": "two words", "C": "x=y,z", "EMPTY": ""},
    "mounts": (
        Mount(source=Path("/home/u/my, project"), target="/workspace"),
        Mount(source=Path("/data"), target="/data", read_only=True),
    ),
    "tmpfs": (Tmpfs(target="/tmp", options="exec,mode=1777"),),
    "devices": ("/dev/nvidiactl", "nvidia.com/gpu=0"),
    "runtime": "nvidia",
    "network": "host",
    "publish": ("127.0.0.1:8080:80", "6006:6006/tcp"),
    "ulimits": ("memlock=-1:-1", "nofile=1024:2048"),
    "cpus": 1.5,
    "memory_bytes": 4 * 2**30,
    "shm_bytes": 2**30,
    "labels": {"seatrial.run": "20261120-000000-test"},
    "stop_timeout_s": 0,
}


@pytest.fixture
def recorder(tmp_path):
    """(path of the stand-in, function that gives the calls made to it)."""
    calls = tmp_path / "calls"
    program = a_program(tmp_path / "engine", RECORDER.format(calls=calls))
    return program, lambda: [call.split("\0")[:-1] for call in calls.read_text().split("\n\0")[:-1]]


@pytest.mark.parametrize(
    ("engine", "container"),
    [
        (Docker, a_container()),
        (Docker, a_container(**FULL, gpus_flag='"device=0,2"')),
        (Docker, a_container(**FULL, gpus_flag="all", read_only_root=False)),
        (Podman, a_container()),
        (Podman, a_container(**FULL, userns="keep-id")),
    ],
)
def test_what_is_printed_is_what_is_run(recorder, tmp_path, engine, container):
    program, calls = recorder
    at = EngineAddress(endpoint="unix:///run/engine.sock", id="7c2e")
    backend = engine([program, "--global", "option"], at)
    led_there = backend.client.call[3:]
    there = [each.changed(source=tmp_path / each.source.name) for each in container.mounts]
    for mount in there:
        mount.source.mkdir()
    plan = a_plan(container=container.changed(mounts=tuple(there)))
    handle = backend.start(plan, tmp_path)
    ran = calls()[0]
    id_file = ran.index("--cidfile")
    assert ran[2 : 2 + len(led_there)] == led_there
    assert [program, *ran[:2], *ran[2 + len(led_there) : id_file], *ran[id_file + 2 :]] == backend.compile(plan)
    assert handle.engine == at
    assert (handle.id, handle.framed) == ("cafe", False)
    assert (handle.run_id, handle.run_dir) == (plan.run_id, str(tmp_path))


def test_podman_refuses_a_plan_with_gpus_flag():
    plan = a_plan(backend="podman", container=a_container(gpus_flag="all"))
    with pytest.raises(GpuContractError, match="--gpus") as caught:
        Podman().compile(plan)
    assert "ignores" in (caught.value.cause or "")


def test_safe_by_default():
    argv = Docker().compile(a_plan(container=a_container(memory_bytes=2**30)))
    for flag, value in [
        ("--cap-drop", "ALL"), ("--security-opt", "no-new-privileges"), ("--pull", "never"),
        ("--memory", "1073741824"), ("--memory-swap", "1073741824"),
    ]:  # fmt: skip
        assert argv[argv.index(flag) + 1] == value
    assert "--read-only" in argv and not {"--privileged", "--volume"} & set(argv)


def test_a_proxy_is_passed_on_in_both_cases_and_one_with_a_login_as_a_secret():
    environ = Host({"https_proxy": "http://user:password@proxy:3128", "NO_PROXY": "localhost"})
    assert proxies_with_login(environ) == ("https_proxy",)
    assert proxy_env(environ) == {"NO_PROXY": "localhost", "no_proxy": "localhost"}


# -------------------------------------------- storage that prune may remove


def test_a_project_keeps_its_newest_and_what_a_container_has() -> None:
    made = (("seatrial/net:1", "20"), ("seatrial/net:2", "21"), ("seatrial/other:1", "21"), ("seatrial/net:3", "22"))
    images = [OwnImage(f"id of {name}", (name,), day, used=name.endswith(":2")) for name, day in made]
    assert [each.names[0] for each in unused_images(images, "seatrial/net")] == ["seatrial/net:1"]
    assert unused_images(images, "seatrial/other") == unused_images(images, "seatrial/ne") == []


@pytest.mark.parametrize(
    ("description", "ours"),
    [
        (f"mount / from exec /bin/sh -c export A=b &&     python3 /mnt/layer.py finish{OURS}", True),
        ("mount / from exec /bin/sh -c python3 -m venv /opt/venv", False),
        (f"mount / from exec /bin/sh -c echo '{OURS}' > notes", False),
        ("mount / from exec /bin/sh -c pip install seatrial", False),
        ("local source for context", False),
        ("fileop target", False),
        ("", False),
    ],
)
def test_a_step_of_ours_ends_with_our_mark(description: str, ours: bool) -> None:
    assert own_storage._is_ours(description) is ours


@cases("name", "ours")
def test_a_name_of_ours(name: str, ours: bool) -> None:
    assert own_storage._is_our_name(name) is ours
