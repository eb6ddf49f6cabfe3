"""Assumptions of ordinary scripts hold in the planned container, on real engines. No agent, no GPU."""

import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from cdi_specs import written_spec
from fakes import FakeBackend
from planning_sites import a_host
from seatrial.backends.containers.cdi import DEFAULT_SPEC_DIRS, read_specs
from seatrial.backends.containers.injection import InjectionPlan, choose
from seatrial.backends.containers.mounts import make_host_files
from seatrial.backends.containers.run_options import proxy_env, run_argv
from seatrial.job.gpus import Selection
from seatrial.job.model import Job, Target
from seatrial.job.plan import Gpu, ImagePlan
from seatrial.planning.container.plan import plan_container
from seatrial.planning.site import Site
from seatrial.probe.driver_files import DriverFiles, find
from seatrial.system.host import Host

from ..unit.backends.planning_facts import docker, podman
from ..unit.probe import driver_trees as trees

IMAGE = "python:3.11-slim-bookworm"

#: What Podman can run with in a virtual machine whose own limits are low.
PODMAN_KEYS = {"network": "host", "ulimits": ("nofile=1024:1024", "nproc=1024:1024")}

SCRIPT = """\
import getpass, grp, json, os, pathlib, pwd, socket, subprocess, tempfile

home = pathlib.Path.home()
(home / ".cache" / "huggingface").mkdir(exist_ok=True)
(home / ".cache" / "huggingface" / "hub").touch()
(home / ".local").mkdir()
pathlib.Path("model.pth").write_text("saved next to the script")
program = pathlib.Path(tempfile.mkdtemp()) / "program"
program.write_text("#!/bin/sh\\necho ran")
program.chmod(0o755)
try:
    pathlib.Path("/usr/local/x").touch()
    root = "writable"
except OSError as error:
    root = error.strerror
print(json.dumps({
    "user": getpass.getuser(),
    "passwd": pwd.getpwuid(os.getuid()).pw_uid == os.getuid(),
    "group": bool(grp.getgrgid(os.getgid()).gr_name),
    "expanded": os.path.expanduser("~"),
    "address": bool(socket.gethostbyname(socket.gethostname())),
    "program": subprocess.run([program], capture_output=True, text=True).stdout,
    "root": root,
    "shm_bytes": os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize,
    "capabilities": [line.split()[1] for line in open("/proc/self/status") if line.startswith("CapEff")][0],
    "cuda": os.environ["CUDA_VISIBLE_DEVICES"],
}))
"""


def engine_or_skip(name: str, image: str) -> None:
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    if subprocess.run([name, "image", "inspect", image], capture_output=True).returncode != 0:
        pytest.skip(f"{name} does not answer, or has no image {image}")


def run_script(
    engine_name: str,
    folder: Path,
    uid: int,
    *,
    script: str = SCRIPT,
    injection: InjectionPlan | None = None,
    **keys: object,
) -> dict[str, object]:
    """The script's report from a container planned for this uid, who owns the folder."""
    project, record, place = folder / "project", folder / "record", folder / "run"
    for made in (project / ".seatrial", record, place / "outputs", folder / "cache"):
        made.mkdir(parents=True)
    (record / "agent.json").touch()
    (project / "train.py").write_text(script)
    agent = folder / "agent.pyz"
    agent.touch()
    facts = docker() if engine_name == "docker" else podman(rootless=False)
    site = Site(
        run_id=f"test-{folder.name[-20:]}-{os.getpid()}",
        record=record,
        outputs=place / "outputs",
        project_cache=folder / "cache",
        backend=FakeBackend(engine_name),
        engine=facts,
        host=a_host(folder, uid=uid, gid=uid, environ=proxy_env(Host({})), memory_bytes=None, most_pids=None),
        agent_archive=agent,
        selection=Selection((), ()),
    )
    job = Job.model_validate({"project": project, "target": Target(kind="script", value="train.py"), **keys})
    way_in = injection or choose(facts, (), DriverFiles(version=None))
    container = plan_container(job, site, ImagePlan(tag=IMAGE, build=False), way_in).container
    container = container.changed(command=("sh", "-c", "cd /workspace && exec python3 train.py"))
    make_host_files(container, project)
    if os.geteuid() == 0:
        for path in [folder, *folder.rglob("*")]:
            os.chown(path, uid, uid)
    argv = run_argv([engine_name], container, IMAGE, remove=True)
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert isinstance(report, dict)
    return report


def assert_owned(folder: Path, uid: int) -> None:
    for saved in ("project/model.pth", "cache/huggingface/hub", "record/home/.local"):
        assert (folder / saved).stat().st_uid == uid


@pytest.mark.docker
@pytest.mark.parametrize("uid", [1234, 0])
def test_docker(tmp_path: Path, uid: int) -> None:
    engine_or_skip("docker", IMAGE)
    if os.geteuid() != 0:
        if uid == 0:
            pytest.skip("only root's container runs as root")
        uid = os.getuid()
    report = run_script("docker", tmp_path, uid)
    assert_owned(tmp_path, uid)
    assert report == {
        "user": "ada",
        "passwd": True,
        "group": True,
        "expanded": "/home/seatrial",
        "address": True,
        "program": "ran\n",
        "root": "Read-only file system",
        "shm_bytes": 64 * 2**30,
        # CHOWN, DAC_OVERRIDE and FOWNER are bits 0, 1 and 3
        "capabilities": "000000000000000b" if uid == 0 else "0000000000000000",
        "cuda": "",
    }


@pytest.mark.docker
@pytest.mark.parametrize(("network", "writable"), [("host", False), ("none", True)])
def test_docker_on_other_networks(tmp_path: Path, network: str, writable: bool) -> None:
    engine_or_skip("docker", IMAGE)
    uid = os.getuid()
    report = run_script("docker", tmp_path, uid, network=network, writable=writable)
    assert report["address"] is True
    assert (report["root"] == "Read-only file system") is not writable


@pytest.mark.podman
def test_podman_as_root(tmp_path: Path) -> None:
    """Podman writes the passwd entry itself; its user need not be known to the image."""
    if os.geteuid() != 0:
        pytest.skip("rootful Podman is root's")
    engine_or_skip("podman", IMAGE)
    report = run_script("podman", tmp_path, 1234, **PODMAN_KEYS)
    assert_owned(tmp_path, 1234)
    assert (report["user"], report["passwd"], report["root"]) == ("ada", True, "Read-only file system")
    assert report["shm_bytes"] == 64 * 2**30


@pytest.mark.podman
def test_podman_resolves_a_made_up_cdi_device(tmp_path: Path) -> None:
    """A spec of a kind of our own: it cannot be taken for a GPU by others on this machine."""
    if os.geteuid() != 0:
        pytest.skip("only root writes CDI specs where Podman reads them")
    engine_or_skip("podman", IMAGE)
    library = tmp_path / "libcuda.so.1"
    library.write_text("driver")
    edits = {
        "env": ["MADE_UP=1"],
        "deviceNodes": [{"path": "/dev/nvidia7", "hostPath": "/dev/null"}],
        "mounts": [{"hostPath": str(library), "containerPath": "/opt/driver/libcuda.so.1", "options": ["ro", "bind"]}],
    }
    device = {"name": f"made-up-{os.getpid()}", "containerEdits": edits}
    spec = json.dumps({"cdiVersion": "0.5.0", "kind": "seatrial.test/gpu", "devices": [device]})
    with written_spec(f"seatrial-test-{os.getpid()}.json", spec, DEFAULT_SPEC_DIRS[1]):
        facts = podman(rootless=False, cdi_devices=read_specs(DEFAULT_SPEC_DIRS).names)
        name = f"seatrial.test/gpu={device['name']}"
        gpu = Gpu(index=0, uuid="GPU-made-up", name="none", memory_bytes=1, cdi_name=name)
        injection = choose(facts, (gpu,), DriverFiles(version=None))
        assert (injection.strategy, injection.devices) == ("cdi", (name,))
        script = (
            "import json, os; print(json.dumps({'env': os.environ['MADE_UP'], 'node': os.stat('/dev/nvidia7').st_rdev,"
            " 'library': open('/opt/driver/libcuda.so.1').read()}))"
        )
        report = run_script("podman", tmp_path, 1234, script=script, injection=injection, **PODMAN_KEYS)
    assert report == {"env": "1", "node": Path("/dev/null").stat().st_rdev, "library": "driver"}


@pytest.mark.docker
def test_libraries_mounted_by_hand_are_found_by_the_linker(tmp_path: Path) -> None:
    """No ldconfig, read-only root: a library of the image, mounted as the driver's, loads by the driver's soname."""
    engine_or_skip("docker", IMAGE)
    tree = tmp_path / "host"
    trees.ubuntu(tree)
    cat = ["docker", "run", "--rm", IMAGE, "sh", "-c", "cat /lib/*/libz.so.1"]
    folder = tree / "usr/lib/x86_64-linux-gnu"
    (folder / f"libcuda.so.{trees.VERSION}").write_bytes(subprocess.run(cat, capture_output=True, check=True).stdout)
    injection = choose(
        docker(), (Gpu(index=0, minor=0, uuid="GPU-0", name="none", memory_bytes=1),), find(str(tree), {})
    )
    here = replace(
        injection,
        devices=("/dev/null:/dev/nvidia0",),
        mounts=tuple(m.model_copy(update={"source": tree / m.source.relative_to("/")}) for m in injection.mounts),
    )
    script = "import ctypes; print(ctypes.CDLL('libcuda.so.1').zlibCompileFlags() != 0 and '{\"loaded\": true}')"
    assert run_script("docker", tmp_path, os.getuid(), script=script, injection=here) == {"loaded": True}
