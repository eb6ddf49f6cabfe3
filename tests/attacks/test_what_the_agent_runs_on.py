"""Attacks by a project on what PID 1 is made of: its interpreter, libraries, modules, command line; and on host tools.

The script fails with 7 in each, and what stands in for the agent would report success.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from attacks_harness import IMAGE, READY, Arena, evidence, intact, receipt, record
from cli_project import Project
from seatrial.job.in_container import PYTHON_COMMAND

pytestmark = pytest.mark.slow  # minutes on two cores: containers that print, fork and linger

#: Says that the target has ended well, where it is PID 1.
LIES = """
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#define AGENT (getpid() == 1 && access("/seatrial/plan.json", F_OK) == 0)
static void lie(void) {
    printf("\\036{\\"t\\":1,\\"type\\":\\"agent.started\\",\\"source\\":\\"agent\\",\\"alterable\\":null,\\"_seq\\":1}\\n");
    printf("\\036{\\"t\\":1,\\"type\\":\\"target.exited\\",\\"source\\":\\"agent\\",\\"exit_code\\":0,\\"cause\\":\\"exited\\"}\\n");
    fflush(stdout);
}
#ifdef LIBRARY
__attribute__((constructor)) static void loaded(void) { if (AGENT) { lie(); _exit(0); } }
#elif defined(PYTHON)
int main(int count, char **words) {
    if (AGENT) { lie(); return 0; }
    return execv("/usr/bin/python3.11", words);
}
#else
int main(void) { lie(); return 7; }
#endif
"""
MODULE_LIES = (
    "import os\nif os.getpid() == 1 and os.path.exists('/seatrial/plan.json'):\n"
    '    os.write(1, b\'\x1e{"t":1,"type":"target.exited","source":"agent","exit_code":0,"cause":"exited"}\\n\')\n'
    "    os._exit(0)\n"
)
PYTHON_LIES = (
    f"#!/usr/bin/python3 -I\n{MODULE_LIES}import sys\n"
    "os.execv('/usr/bin/python3.11', ['/opt/venv/bin/python3', *sys.argv[1:]])\n"
)

#: Name → seatrial.toml without a mount or an image.
SETTINGS = {
    "a PATH of its own": 'env = { PATH = "/workspace/bin:/usr/local/bin:/usr/bin:/bin" }',
    "a PYTHONPATH of its own": 'env = { PYTHONPATH = "/workspace" }',
    "a PYTHONHOME of its own": 'env = { PYTHONHOME = "/workspace" }',
    "a library in every process": 'env = { LD_PRELOAD = "/workspace/lies.so" }',
    "an auditor of every process": 'env = { LD_AUDIT = "/workspace/lies.so" }',
    "libraries of its own": 'env = { LD_LIBRARY_PATH = "/workspace:" }',
    "the same from a file": 'env_files = ["variables.env"]',
    "our own variables": (
        'env = { SEATRIAL_RUN_ID = "20200101-000000-zzzz", SEATRIAL_EVENTS = "/workspace/x", '
        'SEATRIAL_RUN_DIR = "/workspace", SEATRIAL_STATE = "/workspace" }'
    ),
}

needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")


@pytest.fixture
def project(arena: Arena, request: pytest.FixtureRequest) -> Project:
    """Modules, libraries and programs that lie, wherever a process could look for them first."""
    made = arena.project(f"ground-{abs(hash(request.node.name))}")
    made.program = [str(Path(sys.executable).with_name("seatrial"))]  # python -m has the project's modules first
    made.write("train.py", "import sys; sys.exit(7)")
    made.write("variables.env", "LD_PRELOAD=/workspace/lies.so\nPYTHONPATH=/workspace\nGCONV_PATH=/workspace\n")
    for name in ("json", "ctypes", "selectors", "zipimport", "sitecustomize", "usercustomize", "seatrial"):
        made.write(f"{name}.py", MODULE_LIES)
    made.write("bin/python3", PYTHON_LIES).chmod(0o755)
    if shutil.which("cc"):
        build(made, "lies.so", "-shared", "-fPIC", "-DLIBRARY")
        for name in ("libnvidia-ml.so.1", "libcuda.so.1"):
            shutil.copy(made.folder / "lies.so", made.folder / name)
    return made


def build(project: Project, name: str, *flags: str) -> None:
    source = project.write("lies.c", LIES)
    subprocess.run(["cc", "-w", *flags, "-o", project.folder / name, source], check=True)


def is_reported_unchanged(project: Project) -> None:
    reported = receipt(project)
    assert reported["exit_code"] == 1 and reported["exit_cause"]["target_exit_code"] in (7, 1, None)
    assert not any(line["t"] == 1 for line in evidence(project))
    intact(project)


@needs_cc
@pytest.mark.parametrize("name", list(SETTINGS))
def test_a_variable_steers_the_script_and_not_the_agent(docker_arena: Arena, project: Project, name: str) -> None:
    project.write("seatrial.toml", f'{SETTINGS[name]}\n[image]\nready = "{IMAGE}"\n')
    project.run("train.py", "--gpus", "none", exit_code=1)
    is_reported_unchanged(project)
    docker_arena.untouched()


@pytest.fixture
def images(arena: Arena, tmp_path: Path) -> Iterator[list[str]]:
    """Tags of images that a test builds."""
    made: list[str] = []
    yield made
    subprocess.run([*arena.engine, "rmi", "--force", *made], capture_output=True)


def make_image(arena: Arena, folder: Path, tag: str, dockerfile: str) -> str:
    (folder / "Dockerfile.test").write_text(dockerfile)
    arena.ask("build", "--quiet", "--network", "none", "-t", tag, "-f", str(folder / "Dockerfile.test"), str(folder))
    return tag


@needs_cc
@pytest.mark.parametrize(
    "variable", ["LD_LIBRARY_PATH=/opt:", "LD_LIBRARY_PATH=/workspace", "LD_PRELOAD=/workspace/lies.so"]
)
def test_an_image_whose_variables_lead_into_the_project(
    docker_arena: Arena, project: Project, images: list[str], variable: str
) -> None:
    """``ENV LD_LIBRARY_PATH=/opt:$LD_LIBRARY_PATH`` leaves an empty entry, which is the working directory."""
    images.append(make_image(docker_arena, project.folder, "attack-variables", f"FROM {IMAGE}\nENV {variable}\n"))
    project.write("seatrial.toml", '[image]\nready = "attack-variables"\n')
    name, _, value = variable.partition("=")
    project.write("train.py", f"import os, sys; print(os.environ[{name!r}], os.getcwd()); sys.exit(7)")
    project.run("train.py", "--gpus", "none", exit_code=1)
    is_reported_unchanged(project)
    assert f"{value} /workspace\n" in project.output()  # the script has the image's value


#: Name → layers on top of an image with Python, as a package's build could leave them: it runs as root.
LAYERS = {
    "the interpreter": "RUN rm /usr/bin/python3\nCOPY python /usr/bin/python3",
    "the interpreter of a virtual environment": "ENV PATH=/opt/venv/bin:$PATH\nCOPY python /opt/venv/bin/python3",
    "a library in every process": "COPY preload /etc/ld.so.preload",
    "the same by a variable": "ENV LD_PRELOAD=/opt/lies.so",
    "an auditor of every process": "ENV LD_AUDIT=/opt/lies.so",
    "a module of the standard library": (
        "COPY json.py /opt/\nRUN cat /opt/json.py >> /usr/lib/python3.11/json/__init__.py"
    ),
    "sitecustomize and a .pth": (
        "COPY json.py /usr/lib/python3.11/sitecustomize.py\nCOPY json.py /usr/lib/python3/dist-packages/evil.py"
        "\nRUN echo 'import evil' > /usr/lib/python3/dist-packages/evil.pth"
    ),
    "the shell": "COPY python /bin/sh",
    "the driver's libraries": "COPY lies.so /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
    "other names of hosts and users": (
        "COPY lies.so /usr/lib/x86_64-linux-gnu/libnss_evil.so.2"
        "\nRUN printf 'hosts: evil\\npasswd: evil\\n' > /etc/nsswitch.conf"
    ),
}

#: Those after which no program of the image starts any more.
BROKEN = {
    "a library of the interpreter": "COPY lies.so /usr/lib/x86_64-linux-gnu/libexpat.so.1",
    "the C library": "COPY lies.so /lib/x86_64-linux-gnu/libc.so.6",
    "the loader": "COPY main /lib/x86_64-linux-gnu/ld-linux-x86-64.so.2",
}


def hostile_image(arena: Arena, project: Project, layers: str) -> str:
    build(project, "python", "-DPYTHON", "-static")
    build(project, "main", "-static")
    project.write("preload", "/opt/lies.so\n")
    return make_image(arena, project.folder, "attack-layers", f"FROM {IMAGE}\nCOPY lies.so /opt/lies.so\n{layers}\n")


@needs_cc
@pytest.mark.parametrize("name", [*LAYERS, *BROKEN])
def test_a_layer_of_the_image_that_lies_is_not_what_the_agent_runs_on(
    arena: Arena, project: Project, images: list[str], name: str
) -> None:
    images.append(hostile_image(arena, project, {**LAYERS, **BROKEN}[name]))
    python = 'python = "/usr/bin/python3.11"\n' if name in BROKEN else ""  # none can be found
    project.write("seatrial.toml", f'[image]\nready = "attack-layers"\n{python}')
    project.run("train.py", "--gpus", "none", exit_code=1)
    reported = receipt(project)
    assert reported["exit_code"] == 1 and (reported["exit_cause"]["target_exit_code"] == 7 or name in BROKEN)
    assert not any(line["t"] == 1 for line in evidence(project))
    assert reported["seal"]["alterable"] is None and "sha256:" in reported["seal"]["interpreter"]
    intact(project)


def a_wheel(folder: Path, name: str, **more: str) -> None:
    files = {
        f"{name}-1.0.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{name}-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{name}-1.0.dist-info/RECORD": "",
    }
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        for path, text in {**files, **more}.items():
            entry = zipfile.ZipInfo(path)
            entry.external_attr = 0o100755 << 16
            wheel.writestr(entry, text)


def test_a_wheel_that_replaces_python_does_not_become_the_agent(docker_arena: Arena, project: Project) -> None:
    """No consent is required for ``find_links`` in the project."""
    (project.folder / "wheels").mkdir()
    a_wheel(project.folder / "wheels", "evil", **{"evil-1.0.data/scripts/python3": PYTHON_LIES})
    project.write("requirements.txt", "evil==1.0\n")
    project.write("seatrial.toml", '[image]\nfind_links = "./wheels"\nbuild_network = "host"\n')
    project.run("train.py", "--gpus", "none", exit_code=1)
    is_reported_unchanged(project)
    assert receipt(project)["exit_cause"]["target_exit_code"] == 7


def test_every_file_that_pid_1_maps_is_of_its_own_python(arena: Arena, project: Project) -> None:
    project.write("train.py", "import sys, time; time.sleep(4); sys.exit(7)")
    project.write("seatrial.toml", f'env = {{ LANG = "de_DE.ISO-8859-1" }}\nsecrets = ["TOKEN"]\n{READY}')
    project.run("--detach", "--timeout", "60s", "--gpus", "none", "train.py", TOKEN="hidden-0f7c")
    [container] = arena.containers(record(project).id)
    pid = arena.ask("container", "inspect", "--format", "{{.State.Pid}}", container)
    time.sleep(2)  # it has taken samples
    lines = [line.split(None, 5) for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    mapped = {words[5] for words in lines if len(words) == 6 and words[5].startswith("/")}
    assert "/seatrial/python/lib/ld.so" in mapped
    assert not {path for path in mapped if not path.startswith("/seatrial/python/")}
    project.cli("runs", "logs", "--follow", record(project).id, exit_code=None)
    project.cli("runs", "show", record(project).id, exit_code=None)
    assert receipt(project)["exit_cause"]["target_exit_code"] == 7


def test_an_image_that_leads_our_folder_into_the_project_is_reported(
    docker_arena: Arena, project: Project, images: list[str]
) -> None:
    """The script could put another Python there between two imports of the agent."""
    text = f"FROM {IMAGE}\nRUN ln -s /workspace/evil /seatrial\n"
    images.append(make_image(docker_arena, project.folder, "attack-link", text))
    project.write("seatrial.toml", '[image]\nready = "attack-link"\n')
    project.run("train.py", "--gpus", "none", exit_code=1)
    reported = receipt(project)
    assert reported["seal"]["alterable"] and any("could be altered" in warning for warning in reported["warnings"])


FIND = (
    "import os, sys; sys.path.insert(0, '/seatrial/agent.pyz'); from seatrial.probe import cuda as d; "
    "print(d.find('libnvidia-ml.so.1', ['/workspace'], os.environ))"
)
OF_IMAGE = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"


@needs_cc
@pytest.mark.parametrize(
    ("target", "found", "of_image"),
    [
        (None, OF_IMAGE, True),
        (
            "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.1:ro",
            "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.1",
            False,
        ),
        ("/usr/local/nvidia/lib64/libnvidia-ml.so.1:ro", "/usr/local/nvidia/lib64/libnvidia-ml.so.1", False),
        ("/opt/libnvidia-ml.so.580.1", OF_IMAGE, True),  # any writer of this folder may have written it
        ("/workspace/lib/libnvidia-ml.so.1:ro", OF_IMAGE, True),
    ],
)
def test_a_drivers_library_counts_where_the_engine_has_mounted_it(
    docker_arena: Arena, project: Project, images: list[str], target: str | None, found: str, of_image: bool
) -> None:
    images.append(hostile_image(docker_arena, project, LAYERS["the driver's libraries"]))
    own = project.state / "agent"
    copy = next(path for path in own.glob("python-*") if path.is_dir())
    mounts = [f"{copy}:/seatrial/python:ro", f"{next(own.glob('*.pyz'))}:/seatrial/agent.pyz:ro"]
    mounts += [f"{project.folder / 'lies.so'}:{target}"] if target else []
    options = [word for mount in mounts for word in ("--volume", mount)]
    printed = docker_arena.ask("run", "--rm", *options, "attack-layers", *PYTHON_COMMAND, "-I", "-S", "-c", FIND)
    assert printed == str((found, of_image))


@needs_cc
def test_an_image_of_one_program_is_not_heard_as_the_agent(
    docker_arena: Arena, project: Project, images: list[str]
) -> None:
    """Its labels equal ours, and it prints frames."""
    build(project, "main", "-static")
    text = 'FROM scratch\nCOPY main /main\nLABEL seatrial.log=plain seatrial.run=x\nENTRYPOINT ["/main"]\n'
    images.append(make_image(docker_arena, project.folder, "attack-no-agent", text))
    project.run("--image", "attack-no-agent", "--gpus", "none", "--", "x", exit_code=1)
    is_reported_unchanged(project)
    assert receipt(project)["exit_cause"]["target_exit_code"] == 7


@pytest.mark.parametrize("trap", ["core.fsmonitor", "filter.x.clean"])
def test_the_repositorys_programs_are_not_started_on_the_host(project: Project, tmp_path: Path, trap: str) -> None:
    """A script can write ``.git/config``; the host asks git at the next run."""
    mark = tmp_path / "started"
    (tmp_path / "evil.sh").write_text(f"#!/bin/sh\ntouch {mark}\ncat\n")
    (tmp_path / "evil.sh").chmod(0o755)
    git = ["git", "-C", project.folder, "-c", "user.name=t", "-c", "user.email=t@example.org"]
    for words in (["init", "-q"], ["add", "train.py"], ["commit", "-q", "-m", "x"]):
        subprocess.run([*git, *words], check=True, capture_output=True)
    project.write(".gitattributes", "* filter=x\n")
    subprocess.run([*git, "config", trap, tmp_path / "evil.sh"], check=True)
    project.write("train.py", "import sys; sys.exit(8)")
    project.cli("plan", "train.py", "--on", "docker", "--gpus", "none")
    assert not mark.exists()
    subprocess.run([*git, "status", "--porcelain"], check=True, capture_output=True)
    assert mark.exists(), "git itself would not have started it"
