"""Attacks by a project on builds: on layers and caches that another project gets, on the host that plans and sends."""

from __future__ import annotations

import functools
import http.server
import io
import os
import subprocess
import tarfile
import threading
import uuid
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from package_indexes import serving
from seatrial.backends.containers.docker_and_podman import Docker, Podman
from seatrial.errors import ConfigError, ImageError, SeatrialError
from seatrial.images.build.build import build, write_context
from seatrial.images.plan import plan_image
from seatrial.images.resolve.uv import UvResolver
from seatrial.job.model import ImageOptions, Job, Target
from seatrial.job.plan import Choice, ImagePlan
from seatrial.job.script import ScriptFacts
from seatrial.system.host import Host

#: Writes wherever a build can write and another might read: mounts, caches of pip, Python's own folders, pip.conf.
POISON = """
import glob, hashlib, json, os, shutil, sys
VICTIM = "http://127.0.0.1:{port}/victim_source-1.0.tar.gz"
python = "%d%d" % sys.version_info[:2]
key = json.dumps(dict(url=VICTIM, interpreter_name="cp", interpreter_version=python), sort_keys=True, separators=",:")
key = hashlib.sha224(key.encode()).hexdigest()  # of pip's cache of built wheels
roots = [line.split()[4] for line in open("/proc/self/mountinfo")]
roots += ["/root/.cache/pip", "/tmp", "/var/tmp", "/var/cache", "/dev/shm", "/srv", "/mnt", "/media", "/build/wheels"]
roots += [os.environ.get("PIP_CACHE_DIR") or "/root/.cache/pip", "/opt/venv", *glob.glob("/usr/lib/python3*")]
for root in dict.fromkeys(roots):
    if root.startswith(("/proc", "/sys")):
        continue
    for place in os.path.join(root, "wheels", key[:2], key[2:4], key[4:6], key[6:]), os.path.join(root, "wheels"):
        try:
            os.makedirs(place, exist_ok=True)
            shutil.copy("{wheel}", os.path.join(place, "victim_source-1.0-py3-none-any.whl"))
        except OSError:
            pass
    for name, text in (("planted", "x"), ("planted.pth", "import os"), ("sitecustomize.py", "planted = 1")):
        try:
            open(os.path.join(root, name), "w").write(text)
        except OSError:
            pass
for path in ("/etc/pip.conf", "/root/.netrc", "/root/.config/pip/pip.conf"):
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        open(path, "w").write("[global]\\nfind-links = /srv\\n# planted\\n")
    except OSError:
        pass
"""

BACKEND = """
import os, zipfile
def build_wheel(folder, config_settings=None, metadata_directory=None):
{attack}
    name = "{name}-1.0-py3-none-any.whl"
    write(os.path.join(folder, name))
    return name
def write(path):
    with zipfile.ZipFile(path, "w") as z:
        z.writestr("{name}.py", "MARK = 'clean'")
        z.writestr("{name}-1.0.dist-info/METADATA", "Metadata-Version: 2.1\\nName: {name}\\nVersion: 1.0\\n")
        z.writestr("{name}-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        z.writestr("{name}-1.0.dist-info/RECORD", "")
"""


def wheel(folder: Path, name: str, mark: str = "clean", *, pth: str = "", metadata: bytes = b"") -> Path:
    """Write a wheel; one of another mark of five letters has the same size."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", f"MARK = '{mark}'")
        if pth:
            archive.writestr(f"{name}.pth", f"import {name}_poison")
            archive.writestr(f"{name}_poison.py", pth)
        head = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n".encode()
        archive.writestr(f"{name}-1.0.dist-info/METADATA", head + metadata, zipfile.ZIP_DEFLATED)
        tag = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        archive.writestr(f"{name}-1.0.dist-info/WHEEL", tag)
        archive.writestr(f"{name}-1.0.dist-info/RECORD", "")
    return path


def source(folder: Path, name: str, attack: str = "    pass") -> None:
    """Write a source distribution with a build backend of its own."""
    with tarfile.open(folder / f"{name}-1.0.tar.gz", "w:gz") as archive:
        project = '[build-system]\nrequires = []\nbuild-backend = "b"\nbackend-path = ["."]\n'
        project += f'[project]\nname = "{name}"\nversion = "1.0"\n'
        files = {"pyproject.toml": project, "b.py": BACKEND.format(name=name, attack=attack)}
        files["PKG-INFO"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
        for file, text in files.items():
            entry = tarfile.TarInfo(f"{name}-1.0/{file}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))


@dataclass
class Projects:
    """Projects below one folder, planned with uv; ``locks`` is the machine's memory of locks."""

    folder: Path
    engine: Docker | Podman | None = None
    tags: list[str] = field(default_factory=list)

    def plan(
        self, where: str, requirements: str, *, uv: bool = True, **image: object
    ) -> tuple[ImagePlan, tuple[Choice, ...]]:
        project = self.folder / where
        project.mkdir(parents=True, exist_ok=True)
        (project / "requirements.txt").write_text(requirements)
        options = ImageOptions.model_validate({"build_network": "host", **image})
        job = Job(project=project, target=Target(kind="script", value="train.py"), image=options)
        host = Host({"PIP_CONFIG_FILE": os.devnull, "HOME": str(self.folder)})
        resolver = UvResolver(self.folder / "locks", host) if uv else None
        return plan_image(job, script=ScriptFacts(), cpu_only=True, resolver=resolver)

    def build(self, plan: ImagePlan) -> str:
        assert self.engine is not None
        self.tags.append(plan.tag)
        build(plan, store=self.engine.images, progress=lambda line: None)
        return plan.tag

    def ask(self, tag: str, *words: str) -> str:
        assert self.engine is not None
        argv = [*self.engine.call, "run", "--rm", "--network", "none", "--pull", "never", "--user", "0", tag, *words]
        return subprocess.run(argv, capture_output=True, text=True, timeout=300, check=True).stdout.strip()


@pytest.fixture
def projects(tmp_path: Path) -> Projects:
    return Projects(tmp_path)


@pytest.fixture(
    params=[
        pytest.param("docker_backend", marks=pytest.mark.docker),
        pytest.param("second_docker", marks=pytest.mark.docker),
        pytest.param("podman_backend", marks=pytest.mark.podman),
    ]
)
def builds(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Projects]:
    found = request.getfixturevalue(request.param)
    made = Projects(tmp_path, Docker(["docker", "--host", found]) if isinstance(found, str) else found)
    yield made
    assert made.engine is not None
    for tag in made.tags:
        subprocess.run([*made.engine.call, "image", "rm", "--force", tag], capture_output=True)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder that a build reaches over HTTP, and its address."""
    folder = tmp_path / "served"
    folder.mkdir()
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield folder, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


# ------------------------------------------------------------------- another project's build


@pytest.mark.slow
def test_code_of_one_build_leaves_nothing_for_another(builds: Projects, served: tuple[Path, str]) -> None:
    """A's source package and the .pth of its wheel plant what pip would install for B, who uses the same address."""
    folder, address = served
    name = f"poison-{uuid.uuid4().hex[:8]}"
    evil = wheel(builds.folder / "a", "victim_source", "evil!")
    code = POISON.format(port=address.rpartition(":")[2], wheel=f"/build/wheels/{evil.name}")
    wheel(builds.folder / name / "a" / "w", "autostart", pth=code)
    evil.rename(builds.folder / name / "a" / "w" / evil.name)
    source(folder, "attacker", "\n".join(f"    {line}" for line in code.splitlines()))
    source(folder, "victim_source")
    wheel(builds.folder / name / "b" / "w", "plain")

    lines = f"--no-index\nautostart\nattacker @ {address}/attacker-1.0.tar.gz\n"
    attacker = builds.build(builds.plan(f"{name}/a", lines, find_links="w")[0])
    assert builds.ask(attacker, "sh", "-c", "ls /opt/venv/planted")  # it ran, and has its own image
    lines = f"--no-index\nplain\nvictim_source @ {address}/victim_source-1.0.tar.gz\n"
    victim = builds.build(builds.plan(f"{name}/b", lines, find_links="w")[0])
    code = "import plain, victim_source; print(plain.MARK, victim_source.MARK)"
    assert builds.ask(victim, "python3", "-c", code) == "clean clean"
    found = "find / -xdev -name 'planted*' -o -xdev -name sitecustomize.py; cat /etc/pip.conf /root/.netrc 2>/dev/null"
    assert "planted" not in builds.ask(victim, "sh", "-c", f"{found}; true")


@pytest.mark.slow
@pytest.mark.parametrize("uv", [True, False])
def test_same_list_with_another_wheel_of_that_name_and_size_is_another_image(builds: Projects, uv: bool) -> None:
    """Both projects have one folder name, list and options: the tag alone would bring one the image of the other."""
    name = f"same-{uuid.uuid4().hex[:8]}"
    tags = []
    for who, mark in (("attacker", "evil!"), ("victim", "clean")):
        path = wheel(builds.folder / who / name / "w", "thing", mark)
        os.utime(path, (0, 0))
        tags.append(builds.build(builds.plan(f"{who}/{name}", "--no-index\nthing\n", find_links="w", uv=uv)[0]))
    assert tags[0] != tags[1]
    assert [builds.ask(tag, "python3", "-c", "import thing; print(thing.MARK)") for tag in tags] == ["evil!", "clean"]


@pytest.mark.slow
def test_a_file_other_than_the_planned_one_is_not_installed(builds: Projects, served: tuple[Path, str]) -> None:
    folder, address = served
    wheel(folder, "thing")
    (folder / "links.html").write_text('<a href="thing-1.0-py3-none-any.whl">thing-1.0-py3-none-any.whl</a>')
    plan, _ = builds.plan(f"swap-{uuid.uuid4().hex[:8]}", f"--no-index\n--find-links {address}/links.html\nthing\n")
    if "--hash" not in plan.context_texts.get("locked/requirements.txt", ""):
        pytest.skip("uv gives no hash for a page without any")
    wheel(folder, "thing", "evil!")
    with pytest.raises(ImageError, match="hash"):
        builds.build(plan)


def test_projects_with_one_list_and_other_sources_share_no_layer_above_the_base(projects: Projects) -> None:
    """Logins and certificates are build secrets, which no engine counts among what a step follows from."""
    for name in ("ca.pem", "other.pem"):
        (projects.folder / name).write_text(f"-----BEGIN CERTIFICATE-----\n{name}")
    index = "https://{}packages.example/simple"
    options = {
        "none": {},
        "index": {"index_url": index.format("")},
        "login": {"index_url": index.format("me:one@")},
        "certificate": {"index_url": index.format(""), "ca_bundle": projects.folder / "ca.pem"},
        "another certificate": {"index_url": index.format(""), "ca_bundle": projects.folder / "other.pem"},
    }
    plans = {name: projects.plan(f"{name}/p", "thing\n", uv=False, **each)[0] for name, each in options.items()}
    plans["another's login"] = projects.plan("x/p", "thing\n", uv=False, index_url=index.format("you:two@"))[0]
    steps = {str(plan.dockerfile).partition("\nFROM base\n")[2].partition("\nENV")[0] for plan in plans.values()}
    assert len(steps) == len({plan.tag for plan in plans.values()}) == len(plans)
    assert not any(word in str(plan) for plan in plans.values() for word in ("me:one", "you:two"))


def test_digests_are_too_long_to_be_met_on_purpose(projects: Projects) -> None:
    """A project chooses its lines: of 48 bits, a GPU finds those of another project's image in hours."""
    plan, _ = projects.plan("p", "thing\n", uv=False, index_url="https://packages.example/simple")
    assert len(plan.tag.rpartition(":")[2]) >= 20
    digests = [line.partition("=")[2] for line in str(plan.dockerfile).splitlines() if line.startswith("ARG ")]
    assert len(digests) == 3 and min(map(len, digests)) >= 32


# ------------------------------------------------------------------- the host that plans and sends


def test_a_link_to_a_file_of_the_host_is_not_sent_to_the_builder(projects: Projects) -> None:
    (projects.folder / "id_rsa").write_text("secret")
    wheels = projects.folder / "p" / "w"
    wheel(wheels, "thing")
    (wheels / "key-1.0-py3-none-any.whl").symlink_to(projects.folder / "id_rsa")
    with pytest.raises(ConfigError, match="is not a file"):
        projects.plan("p", "thing\n", find_links="w")


@pytest.mark.parametrize("swapped", ["link", "content"])
def test_a_wheel_swapped_after_the_plan_stops_the_build(projects: Projects, tmp_path: Path, swapped: str) -> None:
    (projects.folder / "id_rsa").write_text("secret")
    path = wheel(projects.folder / "p" / "w", "thing")
    plan, _ = projects.plan("p", "--no-index\nthing\n", find_links="w", uv=False)
    if swapped == "link":
        path.unlink()
        path.symlink_to(projects.folder / "id_rsa")
    else:
        wheel(path.parent, "thing", "evil!")
    with pytest.raises(SeatrialError, match=r"have changed|is a symlink"):
        write_context(plan, tmp_path / "context")
    sent = [file for file in (tmp_path / "context").rglob("*.whl") if not file.is_symlink()]
    assert b"secret" not in [file.read_bytes() for file in sent]


def test_a_wheel_that_unpacks_to_gigabytes_is_not_unpacked(projects: Projects) -> None:
    wheel(projects.folder / "p" / "w", "thing", metadata=b"\n" * 300_000_000)
    projects.plan("p", "--no-index\nthing\n", find_links="w")
    kept = sum(path.stat().st_size for path in (projects.folder / "locks").rglob("*") if path.is_file())
    assert kept < 5_000_000


def test_a_wheel_with_a_path_out_of_its_folder_writes_nothing(projects: Projects) -> None:
    path = wheel(projects.folder / "p" / "w", "thing")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("../../../../../../../../tmp/seatrial-planted", "x")
        archive.writestr("thing-1.0.dist-info/../../../planted", "x")
    plan, _ = projects.plan("p", "--no-index\nthing\n", find_links="w")
    assert "thing==1.0 --hash" in plan.context_texts["locked/requirements.txt"]
    assert not Path("/tmp/seatrial-planted").exists() and not list(projects.folder.rglob("planted"))


def test_a_wheel_whose_list_of_files_is_endless_is_passed_over(projects: Projects) -> None:
    path = wheel(projects.folder / "p" / "w", "thing")
    with zipfile.ZipFile(path, "a") as archive:
        for number in range(100_000):
            archive.writestr(zipfile.ZipInfo(f"{'x' * 80}{number}"), b"")
    plan, _ = projects.plan("p", "--no-index\nthing\n", find_links="w")
    assert "locked/requirements.txt" not in plan.context_texts


def test_a_source_distribution_next_to_the_wheels_does_not_run(projects: Projects) -> None:
    folder = projects.folder / "p" / "w"
    wheel(folder, "thing")
    mark = projects.folder / "ran"
    source(folder, "other", f"    open({str(mark)!r}, 'w')")
    with pytest.raises(ConfigError, match=r"other==1.0 .*: no wheel of other is in w/"):
        projects.plan("p", "--no-index\nthing\nother==1.0\n", find_links="w")
    assert not mark.exists()


def test_a_lock_of_one_project_is_not_that_of_another_with_wheels_of_the_same_names(projects: Projects) -> None:
    """Locks are remembered for all projects of a machine; these wheels have one name, size and time."""
    locked = []
    for who, mark in (("a", "evil!"), ("b", "clean")):
        os.utime(wheel(projects.folder / who / "w", "thing", mark), (0, 0))
        plan, _ = projects.plan(who, "--no-index\nthing\n", find_links="w")
        locked.append(plan.context_texts["locked/requirements.txt"])
    assert locked[0] != locked[1]


def test_a_list_names_no_folder_of_the_host_as_an_index(projects: Projects) -> None:
    wheel(projects.folder / "victim", "thing")
    lines = f"--no-index\n--find-links file://{projects.folder}/victim\nthing\n"
    plan, _ = projects.plan("p", lines)
    assert "--hash" not in "".join(plan.context_texts.values())


def test_a_login_of_the_users_goes_to_no_index_of_the_projects(projects: Projects) -> None:
    """As with pip, ~/.netrc is for the host that it names."""
    (projects.folder / ".netrc").write_text("machine packages.example login me password hunter2\n")
    with serving() as index:
        index.has("thing", "thing-1.0-py3-none-any.whl")
        index.login = "me:hunter2"
        plan, _ = projects.plan("p", f"--index-url {index.url}\nthing\n")
    assert "--hash" not in "".join(plan.context_texts.values())  # the index has refused


def test_settings_in_folders_above_the_one_that_uv_runs_in_are_not_read(
    projects: Projects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder for temporary files that others write, or a project that is one."""
    above, mark = projects.folder / "above", projects.folder / "ran"
    trap = f"#!/bin/sh\ntouch {mark}\nexit 1\n"
    for name in (".venv/bin/python", "bin/python3", "bin/git", "bin/cc"):
        path = above / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(trap)
        path.chmod(0o755)
    (above / ".venv" / "pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.11.0\n")
    (above / "uv.toml").write_text('index-url = "http://127.0.0.1:9/simple"\n')
    (above / "pyproject.toml").write_text('[tool.uv]\nindex-url = "http://127.0.0.1:9/simple"\n')
    (above / ".python-version").write_text(f"{above}/bin/python3\n")
    monkeypatch.setattr("tempfile.tempdir", str(above))
    monkeypatch.setenv("PATH", f"{above}/bin:{os.environ['PATH']}")
    wheel(projects.folder / "p" / "w", "thing")
    plan, _ = projects.plan("p", "--no-index\nthing\n", find_links="w")
    assert "thing==1.0 --hash" in plan.context_texts["locked/requirements.txt"]
    assert not mark.exists()
