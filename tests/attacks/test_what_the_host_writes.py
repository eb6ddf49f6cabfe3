"""Attacks on what the host writes into a project, and on what it sends from one, while a script swaps names for links.

And on folders that all programs of a user share: no project is one, and a mount of one shows no other run's secrets.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from attacks_harness import IMAGE, READY, SECRET, Canaries
from cli_project import Project
from fakes import a_container
from seatrial.backends.containers.mounts import make_host_files
from seatrial.errors import ConfigError, SeatrialError
from seatrial.images.build.build import write_context
from seatrial.images.dockerfile.context import with_code
from seatrial.images.sources import ca_bundle
from seatrial.job.model import ImageOptions, Job, Target
from seatrial.job.plan import ContainerPlan, ImagePlan, Mount
from seatrial.system import nofollow
from seatrial.system.files import write_atomically

#: Until it is killed, what ``pattern`` names changes places with a link next to it, and back.
SWAPPER = """
import ctypes, glob, os, random, sys, time
libc, (pattern, victim) = ctypes.CDLL(None), sys.argv[1:]
print("ready", flush=True)
while True:
    for path in glob.glob(pattern):
        link = path + ".link"
        if not path.endswith(".link"):
            if not os.path.lexists(link):
                os.symlink(victim, link)
            for _ in range(2):
                libc.renameat2(-100, path.encode(), -100, link.encode(), 2)
                time.sleep(random.random() / 500)
            try:
                os.unlink(link)
            except OSError:
                pass
"""


@pytest.fixture
def victim(tmp_path: Path) -> Canaries:
    return Canaries.plant(tmp_path)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project" / "sub").mkdir(parents=True)
    return tmp_path / "project"


@contextmanager
def swapping(pattern: Path, victim: Path) -> Iterator[None]:
    argv = [sys.executable, "-c", SWAPPER, str(pattern), str(victim)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        try:
            yield
        finally:
            process.kill()


def covering(project: Path, point: str, source: Path) -> ContainerPlan:
    """Return a plan that mounts a source at a point in the project."""
    mounts = (Mount(source=project, target="/workspace"), Mount(source=source, target=f"/workspace/{point}"))
    return a_container(mounts=mounts)


#: What is written → (what is swapped meanwhile, the act).
WRITTEN: dict[str, tuple[str, Callable[[Path, int], object]]] = {
    "the point of a mounted file": (
        "sub",
        lambda project, at: make_host_files(covering(project, f"sub/new{at}", Path("/dev/null")), project),
    ),
    "the point of a mounted folder": (
        "sub",
        lambda project, at: make_host_files(covering(project, f"sub/new{at}", Path("/tmp")), project),
    ),
    "a page": ("sub", lambda project, at: nofollow.write_inside(project, "sub", f"page{at}", data=b"x")),
    "a new folder of files": (
        ".made*",
        lambda project, at: nofollow.write_tree(project, f"made{at}", {f"{n}/{n}": b"x" for n in range(9)}),
    ),
}


@pytest.mark.parametrize("written", WRITTEN)
def test_what_is_swapped_for_a_link_while_the_host_writes_leads_nowhere(
    project: Path, victim: Canaries, written: str
) -> None:
    before, (pattern, act) = victim.digest(), WRITTEN[written]
    with swapping(project / pattern, victim.home):
        for at in range(2000):
            with contextlib.suppress(SeatrialError, OSError):
                act(project, at)
    assert victim.digest() == before


def test_a_page_is_written_into_the_folder_that_was_opened(project: Path, victim: Canaries) -> None:
    """So are the page and the results of a search, one after the other."""
    before = victim.digest()
    with nofollow.folder(project, ".seatrial", "sweeps", "x", make=True) as held:
        (project / ".seatrial" / "sweeps").rename(project / "moved")
        (project / ".seatrial" / "sweeps").symlink_to(victim.home)
        write_atomically(project / ".seatrial" / "sweeps" / "x" / "index.html", b"page", folder=held)
    assert victim.digest() == before and (project / "moved" / "x" / "index.html").read_bytes() == b"page"
    assert [path.name for path in (project / "moved" / "x").iterdir()] == ["index.html"]


def test_a_file_of_the_code_that_became_a_link_is_not_sent_to_the_builder(
    project: Path, victim: Canaries, tmp_path: Path
) -> None:
    (project / "train.py").write_text("print()")
    (project / "alias.py").symlink_to("train.py")
    plan = with_code(ImagePlan(tag="x:1", build=False), project)
    write_context(plan, tmp_path / "context")
    assert (tmp_path / "context" / "code" / "alias.py").read_text() == "print()"
    (project / "train.py").unlink()
    (project / "train.py").symlink_to(victim.home / ".ssh" / "id_rsa")
    with pytest.raises(SeatrialError, match="is a symlink"):
        write_context(plan, tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_a_bundle_of_authorities_in_the_project_is_no_link_to_a_key_outside(project: Path, victim: Canaries) -> None:
    """A client's key often stands in one file with its certificate."""
    (victim.home / "client.pem").write_text("-----BEGIN CERTIFICATE-----\n-----BEGIN PRIVATE KEY-----\n")
    (project / "ca.pem").symlink_to(victim.home / "client.pem")
    job = Job(project=project, target=Target(kind="script", value="t.py"), image=ImageOptions(ca_bundle=Path("ca.pem")))
    with pytest.raises(ConfigError, match="is not a PEM file"):
        ca_bundle(job)


@pytest.mark.docker
@pytest.mark.parametrize("variable", ["TMPDIR", "XDG_RUNTIME_DIR"])
def test_a_project_that_holds_the_temporary_files_of_all_programs_is_refused(
    docker_project: Project, variable: str
) -> None:
    """A script there could rewrite the build of another project, and reach the sockets of a terminal or an agent."""
    inside = docker_project.folder / "inside"
    inside.mkdir()
    environ = {variable: str(inside)}
    ended = docker_project.cli("plan", "--on", "docker", "--gpus", "none", "--image", IMAGE, exit_code=2, **environ)
    assert "contains temporary files and sockets of all your programs" in ended.stderr


@pytest.mark.slow
def test_a_mount_of_shared_memory_shows_no_secret_of_another_run(container_project: Project) -> None:
    container_project.write("seatrial.toml", READY)
    container_project.write(
        "look.py",
        "import os, time\n"
        "print('ready', flush=True)\n"
        "end, found = time.time() + 30, set()\n"
        "while time.time() < end and not os.path.exists('stop'):\n"
        "    for top, _, names in os.walk('/host-shm'):\n"
        "        for name in names:\n"
        "            try: found.add(open(os.path.join(top, name), 'rb').read(100))\n"
        "            except OSError: pass\n"
        f"print('STOLEN' if any({SECRET.encode()!r} in text for text in found) else 'nothing')\n",
    )
    container_project.write("train.py", "import os; assert os.environ['KEY']")
    looking = container_project.start("look.py", "--gpus", "none", "--mount", "/dev/shm:/host-shm")
    container_project.wait_for_output("ready")
    environ = {"KEY": SECRET, "XDG_RUNTIME_DIR": ""}
    for _ in range(2):
        container_project.run("train.py", "--gpus", "none", "--secret", "KEY", **environ)
    container_project.write("stop", "")
    printed, _ = looking.communicate(timeout=240)
    assert "nothing" in printed and "STOLEN" not in printed
