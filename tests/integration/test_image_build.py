"""Images built for real, by Docker's BuildKit and by Podman's Buildah, from the package index.

The layers stay in the engine's build cache, so that only the first run of these tests is slow; the images go.
"""

from __future__ import annotations

import json
import subprocess
import uuid
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import seatrial
from pace import within
from seatrial.backends.containers.docker_and_podman import Docker, Podman
from seatrial.errors import EngineUnavailableError, ImageError
from seatrial.images.build.build import BuildResult, build
from seatrial.images.build.failure import NAME_THE_PACKAGE
from seatrial.images.build.size import image_bytes
from seatrial.images.dockerfile.context import WHEEL_NAME, wheel_bytes
from seatrial.images.plan import plan_image
from seatrial.images.sources import pip_conf
from seatrial.job.model import ImageOptions, Job, Target
from seatrial.job.plan import ImagePlan
from seatrial.job.script import ScriptFacts
from seatrial.system.host import Host

#: A self-signed certificate is enough of a bundle of extra authorities; no server presents it.
MAKE_CERTIFICATE = "openssl req -x509 -newkey rsa:2048 -nodes -keyout /dev/null -days 2 -subj /CN=seatrial-test -out"


class Builder:
    """Builds for a project of a name nobody else has, on one engine; removes what it tagged."""

    def __init__(self, backend: Docker | Podman, project: Path) -> None:
        self.backend = backend
        self.project = project
        self.lines: list[str] = []

    def plan(self, *imports: str, target: Target | None = None, **image: Any) -> tuple[ImagePlan, ImageOptions]:
        options = ImageOptions(build_network="host", **image)
        target = target or Target(kind="script", value="train.py")
        job = Job(project=self.project, target=target, image=options)
        return plan_image(job, script=ScriptFacts(imports=tuple(imports)), cpu_only=True)[0], options

    def build(
        self, plan: ImagePlan, options: ImageOptions, progress: Any = None, labels: dict[str, str] | None = None
    ) -> BuildResult:
        return build(
            plan,
            store=self.backend.images,
            pip_conf=pip_conf(options),
            progress=progress or self.lines.append,
            labels=labels,
        )

    def tags(self) -> list[str]:
        listed = self._engine("images", "--format", "{{.Repository}}:{{.Tag}}", f"*/{self.project.name}")
        return (
            listed.stdout.split()
            or self._engine(
                "images", "--format", "{{.Repository}}:{{.Tag}}", f"seatrial/{self.project.name}"
            ).stdout.split()
        )

    def size(self, tag: str, python: str | None) -> int:
        facts = self.backend.images.image(tag)
        assert facts is not None
        return image_bytes(self.backend.images, facts, python, Host({"SEATRIAL_STATE": str(self.project)})) or 0

    def python(self, tag: str, code: str) -> subprocess.CompletedProcess[str]:
        """Run with an unknown user ID, nothing writable and, on Docker, no network."""
        network = "none" if self.backend.name == "docker" else "host"
        options = ["--rm", "--read-only", "--user", "1000:1000", "--network", network, "--pull", "never"]
        return self._engine("run", *options, tag, "python", "-W", "error", "-c", code)

    def _engine(self, *argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*self.backend.call, *argv], capture_output=True, text=True, timeout=300)

    def remove(self) -> None:
        for tag in self.tags():
            self._engine("image", "rm", tag)


@pytest.fixture
def builder(engine: Docker | Podman, tmp_path: Path) -> Iterator[Builder]:
    yield from _builder(engine, tmp_path)


def _builder(engine: Docker | Podman, tmp_path: Path) -> Iterator[Builder]:
    project = tmp_path / f"test-{uuid.uuid4().hex[:10]}"
    project.mkdir()
    made = Builder(engine, project)
    yield made
    made.remove()


@pytest.mark.both_engines
def test_a_small_project_is_built_once(builder: Builder) -> None:
    plan, options = builder.plan("six")
    first = builder.build(plan, options)
    built = " ".join(builder.lines)
    assert any(words in built for words in ("Successfully installed six", "CACHED", "Using cache"))
    assert not first.cached
    assert [tag.removeprefix("localhost/") for tag in builder.tags()] == [plan.tag]
    ended = builder.python(plan.tag, "import six, sys; print(sys.prefix, six.__cached__); open('/x', 'w')")
    assert ended.stdout.startswith("/opt/venv /opt/venv/lib/python3")
    assert "Read-only file system" in ended.stderr

    second = within(1.0, lambda: builder.build(plan, options))
    assert second.cached
    assert second.image_id == first.image_id
    assert first.image_id.startswith("sha256:")


def test_further_labels_are_on_the_image_and_in_no_tag(builder: Builder) -> None:
    plan, options = builder.plan("six")
    labels = {"org.opencontainers.image.revision": "abc", "org.opencontainers.image.source": "https://e.org/x, y"}
    builder.build(plan, options, labels=labels)
    shown = builder._engine("image", "inspect", "--format", "{{json .Config.Labels}}", plan.tag)
    assert labels.items() <= json.loads(shown.stdout).items()


def test_secrets_stay_out_of_the_image(builder: Builder) -> None:
    subprocess.run([*MAKE_CERTIFICATE.split(), str(builder.project / "ca.pem")], check=True, capture_output=True)
    plan, options = builder.plan("six", ca_bundle=Path("ca.pem"), index_url="https://me:hunter2@pypi.org/simple")
    builder.build(plan, options)
    history = builder._engine("history", "--no-trunc", plan.tag).stdout
    assert "pypi.org" not in history
    assert "hunter2" not in history
    code = "import pathlib; print(list(pathlib.Path('/tmp').glob('*')), list(pathlib.Path('/run').glob('secrets/*')))"
    assert builder.python(plan.tag, code).stdout == "[] []\n"


def test_a_package_that_does_not_exist(builder: Builder) -> None:
    plan, options = builder.plan("seatrial_no_such_package_xyz")
    with pytest.raises(ImageError, match="with pip: the package index has no seatrial-no-such-package-xyz") as raised:
        builder.build(plan, options)
    assert "is a guess: " in str(raised.value.cause) and raised.value.run == NAME_THE_PACKAGE
    assert builder.tags() == []


def test_requirements_that_contradict_each_other(builder: Builder) -> None:
    (builder.project / "requirements.txt").write_text("rich==13.7.0\npygments==2.9.0\n")
    with pytest.raises(ImageError, match=r"pygments==2\.9\.0; rich 13\.7\.0 depends on pygments"):
        builder.build(*builder.plan())
    assert builder.tags() == []


def test_a_base_image_that_is_not_there(builder: Builder) -> None:
    plan, options = builder.plan("six", base="localhost:1/no-such-base:1")
    with pytest.raises(ImageError, match="the base image localhost:1/no-such-base:1 does not exist") as raised:
        builder.build(plan, options)
    assert raised.value.run is not None  # Docker's error also names the registry as unreachable
    assert any(fix in raised.value.run for fix in ("--on local", "correct the name and tag localhost:1/no-such-base:1"))


def test_an_interrupted_build_leaves_no_tag(builder: Builder) -> None:
    def interrupt(line: str) -> None:
        raise KeyboardInterrupt

    plan, options = builder.plan("six")
    with pytest.raises(KeyboardInterrupt):
        builder.build(plan, options, interrupt)
    assert plan.tag not in builder.tags()


def test_a_folder_of_wheels(builder: Builder) -> None:
    (builder.project / "wheels").mkdir()
    (builder.project / "wheels" / WHEEL_NAME).write_bytes(wheel_bytes())
    plan, options = builder.plan(find_links="wheels", requirements=(f"seatrial=={seatrial.__version__}",))
    builder.build(plan, options)
    ended = builder.python(plan.tag, "import seatrial; print(seatrial.__file__.startswith('/opt/venv'))")
    assert ended.stdout == "True\n"


@pytest.fixture
def docker_builder(docker_backend: Docker, tmp_path: Path) -> Iterator[Builder]:
    """Docker alone: Podman takes minutes to copy torch's 0.9 GB from stage to stage and to commit them."""
    yield from _builder(docker_backend, tmp_path)


@pytest.mark.slow
@pytest.mark.docker
def test_torch_on_the_cpu(docker_builder: Builder) -> None:
    plan, options = docker_builder.plan("torch", "argparse")
    docker_builder.build(plan, options)
    ended = docker_builder.python(plan.tag, "import torch; print(torch.ones(2, 2).sum().item(), torch.version.cuda)")
    assert (ended.stdout, ended.stderr) == ("4.0 None\n", "")
    packages = docker_builder.size(plan.tag, plan.python) - docker_builder.size("python:3.11-slim-bookworm", "python3")
    assert packages < 1_050_000_000  # 0.95 GB measured with torch 2.13.0+cpu and numpy


@pytest.mark.docker
@pytest.mark.slow
def test_a_recipe_is_in_its_image(docker_builder: Builder) -> None:
    plan, options = docker_builder.plan(target=Target(kind="recipe", value="mnist"))
    plan = plan.model_copy(update={"tag": f"seatrial/{docker_builder.project.name}:recipe"})
    docker_builder.build(plan, options)
    code = "import runpy; runpy.run_module('seatrial.recipes.mnist', run_name='imported')"
    assert docker_builder.python(plan.tag, code).stderr == ""


def test_an_engine_that_does_not_answer(tmp_path: Path) -> None:
    with pytest.raises(EngineUnavailableError, match="no-such-docker"):
        Docker(["no-such-docker"]).images.image("python:3.11-slim-bookworm")


# ------------------------------------------------- what was planned is what is installed


def tiny_wheel(folder: Path, name: str, version: str, files: dict[str, str]) -> None:
    """A wheel of the name and version with these files and nothing else."""
    info = f"{name}-{version}.dist-info"
    files = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(path, text)


def base_with_own_sources(builder: Builder, cuda: str) -> str:
    """A base image whose pip looks for packages in a folder alone, which has a torch of this CUDA."""
    folder = builder.project / "base"
    folder.mkdir()
    version = f"__version__ = '2.13.0'\ncuda = {cuda}\n"
    tiny_wheel(folder, "torch", "2.13.0", {"torch/__init__.py": "", "torch/version.py": version})
    tiny_wheel(folder, "numpy", "2.3.0", {"numpy/__init__.py": ""})
    (folder / "pip.conf").write_text("[global]\nno-index = true\nfind-links = /packages\n")
    (folder / "Dockerfile").write_text(
        "FROM python:3.11-slim-bookworm\nCOPY *.whl /packages/\nCOPY pip.conf /etc/pip.conf\n"
    )
    tag = f"seatrial/{builder.project.name}:base"
    built = builder._engine("build", "-q", "-t", tag, str(folder))
    assert built.returncode == 0, built.stderr
    return tag


@pytest.mark.docker
@pytest.mark.slow
def test_a_base_with_other_sources_does_not_pass_for_the_plan(docker_builder: Builder) -> None:
    base = base_with_own_sources(docker_builder, "'13.0'")
    plan, options = docker_builder.plan("torch", base=base)
    assert plan.stack["build"] == "cpu"
    with pytest.raises(ImageError, match=r"torch 2\.13\.0 for CUDA 13\.0, which is .* and the plan has the CPU build"):
        docker_builder.build(plan, options)
    assert docker_builder.tags() == [base]  # it never got its name, so that no run starts in it

    options = options.model_copy(update={"find_links": "base"})
    job = Job(project=docker_builder.project, target=Target(kind="script", value="train.py"), image=options)
    accepted, _ = plan_image(job, script=ScriptFacts(imports=("torch",)), cpu_only=True)
    docker_builder.build(accepted, options)  # the user has named the source: which build it has is theirs
    assert accepted.tag in docker_builder.tags()


@pytest.mark.docker
@pytest.mark.slow
def test_a_base_with_other_sources_that_have_what_was_planned(docker_builder: Builder) -> None:
    plan, options = docker_builder.plan("torch", base=base_with_own_sources(docker_builder, "None"))
    docker_builder.build(plan, options)
    assert plan.tag in docker_builder.tags()
