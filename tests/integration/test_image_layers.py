"""Layers of real builds: what two projects share, what a small package adds, what slimming leaves shared."""

from __future__ import annotations

import json
import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from seatrial.backends.containers.docker_and_podman import Docker, Podman
from seatrial.errors import ConfigError, ImageError
from seatrial.images.build.build import build
from seatrial.images.build.size import image_bytes
from seatrial.images.plan import plan_image, slug
from seatrial.images.resolve.uv import UvResolver
from seatrial.job.model import ImageOptions, Job, Target
from seatrial.job.plan import ImagePlan
from seatrial.job.script import ScriptFacts
from seatrial.system.host import Host

#: Above the base, for the framework and what it requires.
STACK_BYTES = 500_000_000


class Projects:
    """Projects of names nobody else has, built on one engine; what was tagged is removed in the end."""

    def __init__(self, engine: Docker | Podman, folder: Path) -> None:
        self.engine, self.folder, self.lines = engine, folder, list[str]()
        self.built: list[str] = []

    def plan(self, name: str, requirements: str, *, uv: bool = True, **image: object) -> ImagePlan:
        project = self.folder / name
        project.mkdir(exist_ok=True)
        imports = ("torch",) if "torch" in requirements else ()
        (project / "requirements.txt").write_text(requirements)
        options = ImageOptions.model_validate({"build_network": "host", **image})
        job = Job(project=project, target=Target(kind="script", value="train.py"), image=options)
        resolver = UvResolver(self.folder / "locks", Host({**os.environ, "PIP_CONFIG_FILE": os.devnull}))
        return plan_image(job, script=ScriptFacts(imports=imports), cpu_only=True, resolver=resolver if uv else None)[0]

    def build(self, name: str, requirements: str, *, uv: bool = True, **image: object) -> str:
        plan = self.plan(name, requirements, uv=uv, **image)
        self.built.append(plan.tag)
        build(plan, store=self.engine.images, progress=self.lines.append)
        return plan.tag

    def ask(self, *words: str) -> str:
        return subprocess.run([*self.engine.call, *words], capture_output=True, text=True, timeout=300).stdout

    def layers(self, tag: str) -> list[str]:
        found: list[str] = json.loads(self.ask("image", "inspect", tag, "--format", "{{json .RootFS.Layers}}"))
        return found

    def size(self, tag: str) -> int:
        facts = self.engine.images.image(tag)
        assert facts is not None
        state = {"SEATRIAL_STATE": str(self.folder)}
        return image_bytes(self.engine.images, facts, "/opt/venv/bin/python", Host(state)) or 0

    def python(self, tag: str, code: str) -> str:
        return self.ask("run", "--rm", "--network", "none", "--pull", "never", tag, "python", "-c", code).strip()


@pytest.fixture
def projects(engine: Docker | Podman, tmp_path: Path) -> Iterator[Projects]:
    made = Projects(engine, tmp_path)
    yield made
    for tag in made.built:
        made.ask("image", "rm", tag)


@pytest.fixture
def name() -> str:
    return f"test-layers-{uuid.uuid4().hex[:8]}"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_projects_share_the_stack_and_a_small_package_is_small(projects: Projects, name: str) -> None:
    one = projects.build(f"{name}-1", "torch==2.13.0\nnumpy\ntqdm\n")
    more = projects.build(f"{name}-1", "torch==2.13.0\nnumpy\ntqdm\neinops\n")
    two = projects.build(f"{name}-2", "numpy\ntorch==2.13.0\nidna\n")
    common = [a for a, b, c in zip(*map(projects.layers, (one, more, two)), strict=False) if a == b == c]
    assert len(common) == len(projects.layers(one)) - 1
    assert projects.size(one) > STACK_BYTES
    assert abs(projects.size(more) - projects.size(one)) < 3_000_000
    assert abs(projects.size(two) - projects.size(one)) < 3_000_000
    assert projects.python(more, "import einops, torch; print(torch.ones(2).sum())") == "tensor(2.)"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_another_numpy_shares_the_framework(projects: Projects, name: str) -> None:
    plain, pinned = (projects.build(f"{name}-{at}", f"torch==2.13.0\nnumpy{at}\n") for at in ("", "<2.4"))
    one, two = projects.layers(plain), projects.layers(pinned)
    assert one[:-1] == two[:-1]
    assert one[-1] != two[-1]
    code = "import glob, numpy; print(numpy.__version__ < '2.4', len(glob.glob('/opt/venv/lib/*/*/numpy-*')))"
    assert projects.python(pinned, code) == "True 1"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_slimmed_projects_share_the_slimmed_stack(projects: Projects, name: str) -> None:
    whole = projects.build(f"{name}-1", "torch==2.13.0\nnumpy\ntqdm\n")
    one = projects.build(f"{name}-1", "torch==2.13.0\nnumpy\ntqdm\n", slim="files")
    two = projects.build(f"{name}-2", "torch==2.13.0\nnumpy\nidna\n", slim="files")
    assert projects.layers(one)[:-1] == projects.layers(two)[:-1]
    assert projects.size(whole) - projects.size(one) > 150_000_000
    assert abs(projects.size(one) - projects.size(two)) < 3_000_000
    code = (
        "import torch; torch.manual_seed(0); print(torch.nn.Linear(64, 64)(torch.randn(8, 64)).double().sum().item())"
    )
    assert projects.python(one, code) == projects.python(whole, code)
    report = json.loads(projects.python(one, "print(open('/opt/venv/slim.json').read())"))
    assert report["saved_bytes"]["headers"] > 1_000_000


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_package_that_wants_another_torch_is_one_sentence(projects: Projects, name: str) -> None:
    list_of_both = "torch==2.13.0\nnumpy\nfastai==2.7.19\n"
    with pytest.raises(ConfigError, match="contradict each other") as refused:
        projects.plan(f"{name}-1", list_of_both)
    assert "fastai==2.7.19 depends on torch>=1.10,<2.7" in str(refused.value.cause)
    with pytest.raises(ImageError, match=r"fastai 2\.7\.19 depends on torch<2\.7") as raised:
        projects.build(f"{name}-1", list_of_both, uv=False)
    assert "constraint" not in raised.value.message


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_prune_frees_what_a_newer_image_replaced(projects: Projects, name: str) -> None:
    """On an engine that others use: only this project's images are looked at, and steps that nobody has."""
    old = projects.build(name, "tqdm\n")
    new = projects.build(name, "tqdm\nidna\n")
    repository = f"seatrial/{slug(name)}"
    store = projects.engine.images
    assert store.free_unused(repository=repository, idle_s=1e9, dry_run=True).images == 1
    assert store.image(old) is not None
    freed = store.free_unused(repository=repository, idle_s=1e9, dry_run=False)
    assert freed.images == 1
    assert store.image(old) is None
    assert store.image(new) is not None
    if projects.engine.name == "docker":
        assert freed.steps >= 1
        assert freed.bytes > 100_000
    assert store.free_unused(repository=repository, idle_s=1e9, dry_run=False).images == 0
