"""Wheels at addresses of their own, and what a table has about sources without an index."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from image_plans import SCRIPT, Planned, planned
from seatrial.images.plan import plan_packages
from seatrial.images.requirements.pip_format import Requirements
from seatrial.images.requirements.source_builds import companions
from seatrial.job.model import Job
from seatrial.job.script import ScriptFacts
from seatrial.stack.machine import TargetMachine, parse_target


def on_gpu(project: Path, requirements: str, gpu: str = "H100") -> Planned:
    machine = parse_target(f"driver=580.65.06,gpu={gpu}")
    return planned(project, {"requirements.txt": requirements}, ScriptFacts(), cpu_only=False, machine=machine)


@pytest.mark.parametrize(
    ("requirements", "gpu", "address"),
    [
        ("torch==2.8.0\ntorch-scatter", "H100", "data.pyg.org/whl/torch-2.8.0+cu128.html"),
        ("torch\ntorch-scatter==2.1.2+pt113cu117\ntorch-cluster", "H100", "torch-2.9.0+cu"),
        ("torch==2.8.0\ntorch-scatter==2.0.9", "H100", None),
        ("torch==2.4.1\nmmcv==2.2.0", "A100", "mmcv/dist/cu121/torch2.4/"),
        ("torch==2.4.1\nmmcv==2.2.0", "H100", None),
        ("torch==2.2.0\ndgl", "H100", "data.dgl.ai/wheels/torch-2.2/cu121/"),
    ],
)
def test_wheels_follow_the_torch_of_the_plan(tmp_path: Path, requirements: str, gpu: str, address: str | None) -> None:
    made = on_gpu(tmp_path, requirements, gpu)
    assert bool(made.chosen("wheels")) == (address is not None)
    listed = made.image.context_texts["packages/requirements.txt"]
    assert (address or "wheel") in listed or address is None
    if address is None:
        dockerfile = made.image.dockerfile or ""
        assert "-devel-" in dockerfile and "TORCH_CUDA_ARCH_LIST='9.0'" in dockerfile


def test_address_in_a_list_gives_way_to_that_of_the_plan(tmp_path: Path) -> None:
    made = on_gpu(tmp_path, "-f https://data.pyg.org/whl/torch-1.10.0+cu113.html\ntorch==2.0.1\ntorch-scatter\n")
    listed = made.image.context_texts["packages/requirements.txt"]
    assert "torch-1.10.0" not in listed and "torch-2.0.0+cu118" in listed
    assert made.chosen("torch") == ["torch==2.0.1+cu118"]


@pytest.mark.parametrize(
    ("line", "torch"), [("mmcv-full", "2.0.1"), ("mmcv", "2.4.1"), ("mmcv<2", "2.0.1"), ("torch-sparse", "2.12")]
)
def test_torch_is_the_newest_that_a_package_is_known_to_fit(tmp_path: Path, line: str, torch: str) -> None:
    assert on_gpu(tmp_path, f"torch\n{line}\n").chosen("torch")[0].startswith(f"torch=={torch}")


@pytest.mark.parametrize(
    "line",
    [
        "git+https://github.com/facebookresearch/detectron2.git",
        "detectron2 @ git+https://github.com/facebookresearch/detectron2@v0.6",
        "git+https://github.com/NVlabs/tiny-cuda-nn/#subdirectory=bindings/torch",
        "flash-attn==2.8.3",
    ],
)
def test_known_source_is_compiled_with_torch_in_sight(tmp_path: Path, line: str) -> None:
    dockerfile = on_gpu(tmp_path, f"torch\n{line}\n").image.dockerfile or ""
    assert "-devel-" in dockerfile and "FORCE_CUDA=1" in dockerfile
    assert "--no-build-isolation -w /tmp/built" in dockerfile


def test_list_with_hashes_leaves_its_sources_to_pip(tmp_path: Path) -> None:
    lines = [f"{each} --hash=sha256:{'a' * 64}" for each in ("torch==2.8.0", "flash-attn==2.8.3", "kenlm==0.3.0")]
    dockerfile = on_gpu(tmp_path, "\n".join(lines)).image.dockerfile or ""
    assert "pip wheel" not in dockerfile and "-devel-" in dockerfile and " cmake" in dockerfile


def test_source_is_compiled_for_all_gpus_of_its_torch_where_the_machine_is_unknown(tmp_path: Path) -> None:
    files = {"requirements.txt": "torch==2.8.0\nflash-attn==2.8.3\n"}
    made = planned(tmp_path, files, ScriptFacts(), cpu_only=False, machine=TargetMachine())
    [gpus] = re.findall("TORCH_CUDA_ARCH_LIST='(.*?)'", made.image.dockerfile or "")
    assert {"8.0", "9.0"} < set(gpus.split(";"))


def test_index_of_a_list_serves_its_sources_too(tmp_path: Path) -> None:
    lines = "--extra-index-url https://index.example/simple\ntorch==2.8.0\nflash-attn==2.8.3\n"
    [wheel] = re.findall("pip wheel .*", on_gpu(tmp_path, lines).image.dockerfile or "")
    assert "--extra-index-url https://index.example/simple" in wheel


def test_own_base_and_a_virtual_environment_get_the_wheels_of_their_torch(tmp_path: Path) -> None:
    page = "https://data.pyg.org/whl/torch-2.8.0"
    files = {"requirements.txt": f"-f {page}+cu126.html\ntorch==2.8.0\ntorch-scatter\n"}
    made = planned(tmp_path, files, ScriptFacts(), base="python:3.12-slim-bookworm")
    assert page in made.image.context_texts["packages/requirements.txt"]
    job = Job(project=tmp_path, target=SCRIPT)
    options = plan_packages(job, script=ScriptFacts(), cpu_only=True, python="3.12").requirements.options
    assert any(page in each for each in options)


def test_git_repository_in_cxx_gets_a_compiler_and_cmake(tmp_path: Path) -> None:
    made = planned(tmp_path, {"requirements.txt": "git+https://github.com/kpu/kenlm.git\n"}, ScriptFacts())
    assert "build-essential cmake" in (made.image.dockerfile or "")


@pytest.mark.parametrize(
    ("line", "held"),
    [
        ("git+https://git.example/old.git", True),
        ("git+https://git.example/old.git\nsetuptools>=60", True),
        ("git+https://git.example/old.git\nsetuptools>=82", False),
        ("torch-scatter", False),
    ],
)
def test_an_unread_source_is_built_by_a_setuptools_with_pkg_resources(tmp_path: Path, line: str, held: bool) -> None:
    made = planned(tmp_path, {"requirements.txt": f"torch==2.8.0\n{line}\n"}, ScriptFacts())
    assert ("export PIP_CONSTRAINT=" in (made.image.dockerfile or "")) == held


def test_what_a_package_needs_undeclared_keeps_the_release_that_a_lock_pins() -> None:
    assert [*companions(Requirements(lines=("dgl",)))] == ["torchdata<0.10"]
    assert [*companions(Requirements(lines=("dgl",), constraints=("torchdata==0.10.1",)))] == ["torchdata"]


@pytest.mark.parametrize(
    ("line", "held"),
    [
        ("diffusers==0.28.2", ["huggingface-hub<0.26"]),
        ("diffusers==0.29.0", []),
        ("diffusers", []),
        ("sentence-transformers==2.2.2", ["huggingface-hub<0.26"]),
        ("gensim==4.3.2", ["scipy<1.13"]),
        ("tensorflow_hub==0.8.0", ["protobuf<3.21"]),  # its generated code is older than protobuf 3.19's
        ("tensorflow_hub==0.13.0", []),
        ("gensim>=4.3.2", []),
    ],
)
def test_what_an_old_release_imports_is_of_its_time_although_its_metadata_admits_newer(
    line: str, held: list[str]
) -> None:
    assert [*companions(Requirements(lines=(line,)))] == held


@pytest.mark.parametrize(
    ("lines", "locked", "held"),
    [
        ("bitsandbytes", "bitsandbytes==0.39.1 torch==2.0.1 cuda==11.8", "scipy torch>=2.1"),
        ("bitsandbytes", "bitsandbytes==0.40.2 torch==2.7.0 triton==3.3.0 scipy==1.11 cuda==12.6", "triton<3.2"),
        ("bitsandbytes", "bitsandbytes==0.40.2 torch==2.7.0 scipy==1.11", ""),  # on the CPU, without Triton
        ("bitsandbytes", "bitsandbytes==0.46.0 torch==2.7.0 triton==3.3.0 cuda==12.6", ""),
        ("albumentations", "imgaug==0.4.0 numpy==2.1.0", "numpy<2"),
        ("albumentations numpy>=2", "imgaug==0.4.0 numpy==2.1.0", "numpy<2"),
        ("albumentations", "imgaug==0.4.0 numpy==1.26.4", ""),
        ("pandas", "pandas==2.2.3 numpy==2.1.0", ""),
        ("d", "pandas==2.1.4 numpy==2.1.0", "numpy<2"),
        ("pandas==1.0.4", "pandas==1.0.4 numpy==1.24.4", "numpy<1.20"),  # DataFrame(columns=…)
        ("pandas==1.0.5", "pandas==1.0.5 numpy==1.24.4", ""),
        ("wandb numpy<3", "wandb==0.16.0 numpy==2.1.0", "numpy<2"),
        ("keras", "keras==3.4.1 numpy==2.1.0", "numpy<2"),
        ("keras", "keras==3.5.0 numpy==2.1.0", ""),
        ("lightly mlxtend", "lightly==1.5.7 mlxtend==0.23.4 numpy==2.1.0", "numpy<2"),
        ("torch onnx", "torch==2.9.0 onnx==1.19.0", "onnxscript"),  # torch.onnx.export's default since
        ("torch onnx", "torch==2.8.0 onnx==1.19.0", ""),
        ("torch onnx", "", ""),
        ("torch", "torch==2.9.0 onnx==1.19.0", ""),  # another package's onnx
    ],
)
def test_what_a_locked_release_needs_and_does_not_declare(lines: str, locked: str, held: str) -> None:
    at = dict(each.split("==") for each in locked.split())
    assert [*companions(Requirements(lines=tuple(lines.split())), at)] == held.split()
