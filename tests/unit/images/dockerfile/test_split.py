"""Which requirement goes into which layer, and what two projects have in common."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from image_plans import planned
from seatrial.images.dockerfile.layers import split
from seatrial.images.requirements.pip_format import Requirements
from seatrial.images.resolve.lock import Locked
from seatrial.job.plan import ImagePlan
from tables import cases

HASH = " --hash=sha256:" + "0" * 64


def requested(*lines: str, constraints: tuple[str, ...] = ()) -> Requirements:
    return Requirements(lines, constraints)


def plan_of(folder: Path, requirements: str, **image: object) -> ImagePlan:
    return planned(folder, {"train.py": "import torch\n", "requirements.txt": requirements}, **image).image


def steps(plan: ImagePlan, stage: str) -> str:
    """The text of a stage, from its FROM to the next."""
    found = re.search(rf"^FROM \S+ AS {stage}$.*?(?=^FROM )", str(plan.dockerfile), re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[0]


def folder(plan: ImagePlan, name: str) -> dict[str, str]:
    return {path: text for path, text in plan.context_texts.items() if path.startswith(f"{name}/")}


LOCKED = Locked(
    framework=(f"torch==2.13.0{HASH}", f"triton==3.5.0{HASH}"),
    required=(f"numpy==2.4.6{HASH}",),
    packages=(f"pandas==2.2.2{HASH}", f"tqdm==4.67.1{HASH}"),
)


def test_projects_with_one_stack_have_its_layers_in_common(tmp_path: Path) -> None:
    one = plan_of(tmp_path / "one", "torch==2.13.0\nnumpy\npandas\ntqdm\n")
    two = plan_of(tmp_path / "two", "einops\ntorch==2.13.0\nnumpy\n", system_packages=("ffmpeg",))
    assert folder(one, "framework") == folder(two, "framework") != {}
    assert steps(one, "base") == steps(two, "base")
    assert steps(one, "framework") == steps(two, "framework")
    assert "ffmpeg" in str(two.dockerfile)
    assert one.tag != two.tag


BY_HASH = {
    "framework": LOCKED.framework,
    "required": LOCKED.required,
    "large": LOCKED.packages[:1],
    "locked": LOCKED.packages[1:],
}
GIT = "git+https://e.org/x.git"


@pytest.mark.parametrize(
    ("lines", "locked", "by_pip"),
    [
        (("torch==2.13.0", "numpy", "pandas==2.2.2", "tqdm"), LOCKED, {}),
        (("torch==2.13.0", GIT), LOCKED._replace(rest=(GIT,)), {"packages": ("torch==2.13.0", GIT)}),
        (("torch==2.13.0", "tqdm"), LOCKED._replace(framework=()), {"framework": ("torch==2.13.0",)}),
    ],
    ids=["nothing is left to pip", "a line without a hash comes last", "a framework without a hash is pip's"],
)
def test_locked_packages_are_divided(
    lines: tuple[str, ...], locked: Locked, by_pip: dict[str, tuple[str, ...]]
) -> None:
    layers = split(requested(*lines), locked)
    assert {name: each.lines for name, each in layers.folders.items()} == {**BY_HASH, **by_pip}
    assert layers.by_hash == BY_HASH.keys() - by_pip.keys()


def test_a_small_package_changes_the_last_layer_alone() -> None:
    more = LOCKED._replace(packages=(*LOCKED.packages, f"einops==0.8{HASH}"))
    before, after = (split(requested("torch"), each).texts() for each in (LOCKED, more))
    assert [name for name, text in after.items() if before[name] != text] == ["locked/requirements.txt"]


@cases("lines", "constraints", "framework", "pinned", "others")
def test_framework_of_a_list_is_its_own_layer(
    lines: tuple[str, ...],
    constraints: tuple[str, ...] | None,
    framework: tuple[str, ...] | None,
    pinned: tuple[str, ...] | None,
    others: bool,
) -> None:
    layers = split(requested(*lines, constraints=constraints or ()))
    expected = None if framework is None else requested(*framework, constraints=pinned or ())
    assert layers.folders.get("framework") == expected and ("packages" in layers.folders) is others


def test_hashes_hold_in_every_layer() -> None:
    """pip's hash mode is all or nothing: the framework's lines as they stand, without what they do not list."""
    lines = [f"{name}{HASH}" for name in ("torch==2.13.0", "triton==3.5.0", "nvidia-nccl-cu12==2.27", "tqdm==4.67.1")]
    layers = split(requested(*lines))
    assert layers.hashed
    assert sorted(layers.folders["framework"].lines) == sorted(lines[:3])
    assert layers.folders["packages"] == requested(*lines)
    assert len(layers.folders) == 2


def test_options_hold_in_every_layer() -> None:
    found = Requirements(("torch==2.13.0", "pandas", "six"), options=("--extra-index-url https://e.org/simple",))
    texts = split(found).texts() | split(found, LOCKED).texts()
    for name in ("framework", "required", "large", "locked", "packages"):
        assert texts[f"{name}/requirements.txt"].startswith("--extra-index-url https://e.org/simple\n")


def test_what_the_base_python_needs_is_there_before_the_environment(tmp_path: Path) -> None:
    plan = plan_of(tmp_path / "one", "torch\n", base="debian:bookworm", system_packages=("python3-venv", "libgl1"))
    assert "python3-venv" in steps(plan, "base")
    assert "libgl1" not in steps(plan, "framework") + steps(plan, "base")
    assert "libgl1" in str(plan.dockerfile)


def test_git_is_in_a_stage_of_its_own_and_the_layers_below_are_shared(tmp_path: Path) -> None:
    one = plan_of(tmp_path / "one", "torch==2.13.0\nnumpy\ngit+https://e.org/x.git\n")
    two = plan_of(tmp_path / "two", "torch==2.13.0\nnumpy\ntqdm\n")
    assert steps(one, "framework") == steps(two, "framework")
    assert "install -y --no-install-recommends git" in steps(one, "builder")
    assert "layer.py mirror" in str(one.dockerfile).rpartition("\nFROM ")[2]


def test_hash_mode_in_the_dockerfile(tmp_path: Path) -> None:
    plan = plan_of(tmp_path / "one", f"torch==2.13.0+cpu{HASH}\nnumpy==2.3.0{HASH}\n")
    assert "-r /media/requirements.txt --no-deps" in steps(plan, "framework")
    assert "framework.txt" not in str(plan.dockerfile).rpartition("\nFROM ")[2]  # a constraint without a hash
