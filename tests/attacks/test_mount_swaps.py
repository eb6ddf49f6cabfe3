"""Attacks on the time between a check and a mount: another container swaps what is about to be mounted."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from attacks_harness import IMAGE, READY, SECRET, Canaries, finding_ids
from cli_project import Project

#: In the attacker's container: when the project's folder is opened, and a little later each time, names change places
#: with links to a host folder, and back. ``paths`` is evaluated at that moment.
SWAPPER = """
import ctypes, glob, os, select, time
libc = ctypes.CDLL(None, use_errno=True)
AT_FDCWD, RENAME_EXCHANGE, IN_OPEN = -100, 2, 0x20

def exchange(path):
    if not os.path.lexists(path + ".link"):
        os.symlink({victim!r}, path + ".link")
    libc.renameat2(AT_FDCWD, path.encode(), AT_FDCWD, (path + ".link").encode(), RENAME_EXCHANGE)

def swap(hold_s):
    paths = {paths}
    for _ in range(2):
        for path in paths:
            try:
                exchange(path)
            except OSError:
                pass
        time.sleep(hold_s)

def on_open(folder, step_s):
    watch = libc.inotify_init1(os.O_NONBLOCK)
    libc.inotify_add_watch(watch, folder.encode(), IN_OPEN)
    for number in range(1000):
        select.select([watch], [], [])
        time.sleep(step_s * (1 + number % 10))
        swap(0.8)
        try:
            while os.read(watch, 65536):
                pass
        except BlockingIOError:
            pass
"""

#: In the victim's container: what reached the host folder would show, and be left there.
READER = """
import os
for top in {tops!r}:
    for folder, _, names in os.walk(top):
        for name in names:
            try:
                print(name, open(os.path.join(folder, name), errors='replace').read(100))
            except OSError:
                pass
    try:
        open(top + '/pwned', 'w').write('pwned')
    except OSError:
        pass
"""

TRIES = 10


@pytest.fixture
def victim(tmp_path: Path) -> Canaries:
    return Canaries.plant(tmp_path)


@contextmanager
def swapping(attacker: Project, script: str) -> Iterator[None]:
    """A run of the attacker's that swaps until the end of the block."""
    attacker.write("swap.py", script)
    attacker.detach("swap.py", "--gpus", "none")
    try:
        yield
    finally:
        attacker.cli("runs", "stop", "last", "--kill", exit_code=None)


def swapper(victim: Canaries, paths: str) -> str:
    return SWAPPER.replace("{victim!r}", repr(str(victim.home))).replace("{paths}", paths)


#: The folder that is watched; each swap comes 0.1 s later than the one before.
ON_OPEN = "print('ready', flush=True)\non_open('%s', 0.1)\n"


def refused(ended: subprocess.CompletedProcess[str]) -> bool:
    """It was refused in a sentence; else it ran to its end."""
    assert ended.returncode in (0, 2, 5), ended.stderr
    return ended.returncode != 0


def test_a_models_folder_that_a_run_of_the_project_swaps_gives_no_host_folder(
    container_project: Project, victim: Canaries
) -> None:
    before = victim.digest()
    container_project.write("seatrial.toml", READY)
    (container_project.folder / "models").mkdir()
    container_project.write("read.py", READER.format(tops=["/models"]))
    script = swapper(victim, "['/workspace/models']") + ON_OPEN % "/workspace"
    with swapping(container_project, script):
        for _ in range(TRIES):
            ended = container_project.run("read.py", "--gpus", "none", "--models", "./models", exit_code=None)
            refused(ended)
            assert SECRET not in ended.stdout and victim.digest() == before


def test_a_mounted_file_that_a_run_of_the_project_swaps_gives_no_host_file(
    docker_project: Project, victim: Canaries
) -> None:
    docker_project.write("seatrial.toml", READY)
    docker_project.write("settings", "mine")
    docker_project.write("read.py", "print(open('/settings').read())")
    key = victim.home / ".ssh" / "id_rsa"
    script = SWAPPER.replace("{victim!r}", repr(str(key))).replace("{paths}", "['/workspace/settings']")
    with swapping(docker_project, script + ON_OPEN % "/workspace"):
        for _ in range(TRIES):
            words = ("read.py", "--gpus", "none", "--mount", "./settings:/settings:ro")
            ended = docker_project.run(*words, exit_code=None)
            refused(ended)
            assert SECRET not in ended.stdout


def test_the_seatrial_folder_of_a_nested_project_gives_no_host_folder(
    container_project: Project, victim: Canaries
) -> None:
    """The outer project's run began before the inner project had one."""
    before = victim.digest()
    outer = container_project
    outer.write("seatrial.toml", READY)
    inner = Project(outer.folder / "inner", outer.backend, outer.environ, outer.engine)
    inner.write("seatrial.toml", READY)
    inner.write("read.py", READER.format(tops=["/seatrial/run", "/home/seatrial"]))
    paths = "[f for name in ('outputs', 'home') for f in glob.glob('/workspace/inner/.seatrial/runs/*/' + name)]"
    with swapping(outer, swapper(victim, paths) + ON_OPEN % "/workspace/inner"):
        for _ in range(TRIES):
            ended = inner.run("read.py", "--gpus", "none", exit_code=None)
            refused(ended)
            assert SECRET not in ended.stdout and victim.digest() == before
    inner.clean()


def test_a_mount_over_a_symlink_of_the_image_is_refused(docker_project: Project) -> None:
    """The engine follows it inside the image: the mount would cover a folder that nobody named."""
    tag = f"seatrial-test-links:{os.getpid()}"
    dockerfile = f"FROM {IMAGE}\nRUN ln -s /srv /links\n"
    build = [*docker_project.engine, "build", "--network", "none", "--tag", tag, "-"]
    subprocess.run(build, input=dockerfile, text=True, capture_output=True, check=True)
    try:
        docker_project.write("seatrial.toml", f'[image]\nready = "{tag}"\n')
        docker_project.write("train.py", "print('RAN')")
        (docker_project.folder / "lib").mkdir()
        ended = docker_project.run("train.py", "--gpus", "none", "--mount", "./lib:/links", exit_code=5)
        assert "mount /links" in ended.stdout + ended.stderr and "RAN" not in docker_project.output()
        assert finding_ids(docker_project) == {"mount-swapped"}
    finally:
        subprocess.run([*docker_project.engine, "rmi", tag], capture_output=True)


def test_home_and_caches_behind_symlinks_are_mounted_as_before(docker_project: Project, tmp_path: Path) -> None:
    (tmp_path / "far" / "cache").mkdir(parents=True)
    (tmp_path / "home").symlink_to("far")
    environ = {**docker_project.environ, "HOME": str(tmp_path / "home"), "XDG_CACHE_HOME": str(tmp_path / "home/cache")}
    linked = Project(docker_project.folder, "docker", environ, docker_project.engine)
    linked.write("seatrial.toml", READY)
    linked.write("train.py", "import os; open(os.environ['XDG_CACHE_HOME'] + '/kept', 'w').close()")
    linked.run("train.py", "--gpus", "none")
    assert list((tmp_path / "far" / "cache").rglob("kept"))


LOCAL = 'on = "local"\n'

#: In a project that is the user's home: every folder above state and caches is replaced by one of the script's own.
ABOVE = """
import os, pathlib
home, out = pathlib.Path("/workspace"), open("/workspace/printed", "w")
for name in (".local", ".local/state", ".local/state/seatrial", ".cache", ".cache/seatrial"):
    for act in (lambda path: os.rename(path, f"{path}-old"), os.rmdir, os.unlink):
        try:
            act(home / name)
            print("MOVED", name, file=out)
        except OSError as error:
            print(name, error.strerror, file=out)
state = home / ".local/state/seatrial"
try:
    state.mkdir(parents=True, exist_ok=True)
    state.chmod(0o700)
    (state / "trust.json").write_text(%(trust)r)
    print("PLANTED", file=out)
except OSError as error:
    print(error.strerror, file=out)
(home / "seatrial.toml").write_text(%(local)r)
(home / "train.py").write_text("open(%(proof)r, 'w').close()")
"""


def test_a_project_above_the_state_folder_plants_no_consent(container_project: Project, tmp_path: Path) -> None:
    home, proof = container_project.folder, tmp_path / "proof"
    environ = {name: value for name, value in container_project.environ.items() if name != "XDG_CACHE_HOME"}
    environ |= {"HOME": str(home), "SEATRIAL_STATE": str(home / ".local" / "state" / "seatrial")}
    above = Project(home, container_project.backend, environ, container_project.engine)
    above.write("train.py", "print('mine')")
    above.write("seatrial.toml", LOCAL)
    above.cli("run", "train.py", "--gpus", "none", SEATRIAL_STATE=str(tmp_path / "another"))  # consents
    trust = (tmp_path / "another" / "trust.json").read_text()
    above.write("seatrial.toml", READY)
    above.write("train.py", ABOVE % {"trust": trust, "proof": str(proof), "local": LOCAL})
    above.run("train.py", "--gpus", "none")
    printed = (above.folder / "printed").read_text()
    assert "busy" in printed and "MOVED" not in printed and "PLANTED" not in printed
    above.trusted = False
    requested = above.cli("run", "train.py", "--gpus", "none", exit_code=None)
    assert requested.returncode == 2 and not proof.exists()


@pytest.mark.docker
def test_a_project_that_contains_the_engines_socket_is_refused(docker_project: Project) -> None:
    words = [*docker_project.program, "plan", "--on", "docker", "--gpus", "none", "--image", IMAGE]
    ended = subprocess.run(words, cwd="/", env=docker_project.environ, capture_output=True, text=True)
    assert ended.returncode == 2 and "The project / contains the engine's socket" in ended.stderr


def test_a_nested_project_that_a_script_replaced_by_a_link_is_refused(
    container_project: Project, victim: Canaries
) -> None:
    before = victim.digest()
    container_project.write("seatrial.toml", READY)
    container_project.write("train.py", f"import os; os.symlink({str(victim.home)!r}, 'inner')")
    container_project.run("train.py", "--gpus", "none")
    for verb in ("run", "plan", "up"):
        words = () if verb == "up" else ("train.py", "--gpus", "none")
        ended = container_project.cli(verb, *words, "-C", "inner", exit_code=2)
        assert "leads out of the project" in ended.stderr
    assert victim.digest() == before


#: A service that becomes no run, with each way to mount by a path.
SERVES = """\
services:
  web:
    image: %(image)s
    command: ["sh", "-c", "cat /bound/* /volume/* /settings /bound/.ssh/*; touch /bound/pwned /volume/pwned; true"]
    healthcheck: {test: "true"}
    volumes: ["./bound:/bound", "data:/volume"]
    configs: [{source: settings, target: /settings}]
volumes: {data: {driver_opts: {type: none, o: bind, device: %(device)s}}}
configs: {settings: {file: ./bound/settings}}
"""


def test_what_a_compose_service_mounts_by_path_gives_no_host_folder(docker_project: Project, victim: Canaries) -> None:
    before, folder = victim.digest(), docker_project.folder
    docker_project.write("seatrial.toml", READY)
    docker_project.write("bound/settings", "mine")
    (folder / "volume").mkdir()
    docker_project.write("compose.yaml", SERVES % {"image": IMAGE, "device": folder / "volume"})
    script = swapper(victim, "['/workspace/bound', '/workspace/volume']") + ON_OPEN % "/workspace"
    with swapping(docker_project, script):
        for _ in range(TRIES // 2):
            ended = docker_project.cli("up", "--gpus", "none", "--trust", exit_code=None)
            assert SECRET not in ended.stdout and victim.digest() == before
