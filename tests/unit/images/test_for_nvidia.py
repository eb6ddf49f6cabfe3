"""A plan with a GPU has something that computes on NVIDIA's."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from image_plans import planned
from package_indexes import Index, serving
from seatrial.errors import ConfigError, StackError
from seatrial.images.base import DEFAULT_BASE
from seatrial.images.plan import plan_image
from seatrial.images.resolve.uv import UvResolver
from seatrial.job.model import Job, Target
from seatrial.job.script import script_facts
from seatrial.system.host import Host


def plan(
    project: Path,
    text: str,
    listed: str,
    *,
    cpu_only: bool = False,
    gpus: str = "auto",
    index: Index | None = None,
    machine: str | None = None,
    base: str = DEFAULT_BASE,
) -> str:
    (project / "train.py").write_text(text)
    (project / "requirements.txt").write_text(listed)
    target = Target(kind="script", value="train.py")
    job = Job(project=project, target=target, gpus=gpus)  # type: ignore[arg-type]
    job = job.changed(image=job.image.changed(target=machine, base=base))
    resolver = None
    if index is not None:
        environ = {"PIP_INDEX_URL": index.url, "PIP_CONFIG_FILE": os.devnull}
        resolver = UvResolver(project / "cache", Host(environ), limit_s=30)
    made, choices = plan_image(job, script=script_facts(target, project), cpu_only=cpu_only, resolver=resolver)
    [packages] = [choice for choice in choices if choice.what == "packages"]
    return f"{made.stack.get('torch')} {packages.reason} {' '.join(made.warnings)}"


LATER = "import sys\nif sys.argv[1:]:\n    import torch\n"


def test_a_framework_that_is_imported_later_is_added_for_a_gpu(tmp_path: Path) -> None:
    shown = plan(tmp_path, LATER, "numpy\n")
    assert shown.startswith("2.") and "torch, which train.py:3 imports and the list leaves out" in shown
    assert plan(tmp_path, LATER, "numpy\n", cpu_only=True).startswith("None ")
    listed = "torch==1.12.1\n"  # without code for an H100, which this run does not use
    assert plan(tmp_path, "import torch\n", listed, cpu_only=True, gpus="none", machine="h100").startswith("1.12.1 ")


@pytest.mark.parametrize(
    ("text", "listed", "message"),
    [
        ("import mlx.core\n", "mlx\n", "train.py:1 imports mlx, which computes on Apple's GPUs"),
        (
            "import torch\n",
            "--extra-index-url https://download.pytorch.org/whl/rocm6.2\ntorch\n",
            "requirements.txt names packages for AMD's GPUs",
        ),
        ("import torch\n", "torch==2.4.0+rocm6.1\n", "AMD's GPUs, torch==2.4.0\\+rocm6.1; seatrial runs on NVIDIA's"),
        (
            "import torch, torch_directml\n",
            "torch\ntorch-directml\n",
            "imports torch_directml, which computes on DirectX",
        ),
    ],
    ids=["Apple", "AMD", "AMD's build", "DirectX"],
)
def test_other_makers_get_one_clear_sentence(tmp_path: Path, text: str, listed: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan(tmp_path, text, listed)


def test_the_mmlab_packages_bring_the_torch_that_their_lists_leave_out(tmp_path: Path) -> None:
    assert plan(tmp_path, "import mmpretrain\n", "mmpretrain\nmmengine\n").startswith("2.")


@pytest.fixture
def numpy_alone() -> Iterator[Index]:
    with serving() as index:
        index.has("numpy", "numpy-2.0-py3-none-any.whl")
        yield index


@pytest.mark.parametrize(
    ("text", "listed", "reason"),
    [
        ("import chainer\n", "chainer\n", "train.py:1 imports chainer, which does so only with cupy"),
        ("import coremltools\n", "coremltools\n", "imports coremltools, which never does"),
    ],
    ids=["its half for GPUs is missing", "never"],
)
def test_a_requested_gpu_that_no_package_uses_is_refused_and_one_of_auto_is_warned_of(
    tmp_path: Path, text: str, listed: str, reason: str
) -> None:
    with pytest.raises(ConfigError, match=f"--gpus 1: nothing that requirements.txt .*{reason}") as refused:
        plan(tmp_path, text, listed, gpus="1")
    assert refused.value.run == "seatrial run … --gpus none   # on the CPU"
    assert reason in plan(tmp_path, text, listed)
    assert reason not in plan(tmp_path, text, listed, cpu_only=True)
    assert reason in plan(tmp_path, text, listed, cpu_only=True, machine="h100")  # from a laptop, for a GPU elsewhere


def test_a_lock_shows_that_nothing_computes_on_a_gpu(tmp_path: Path, numpy_alone: Index) -> None:
    with pytest.raises(ConfigError, match="lists or the target imports computes on a GPU"):
        plan(tmp_path, "import numpy\n", "numpy\n", gpus="1", index=numpy_alone)
    opened = plan(tmp_path, "import importlib, numpy\n", "numpy\n", gpus="1", index=numpy_alone)
    assert "on a GPU, unless importlib (train.py:1) loads another: list it in requirements.txt" in opened


def test_a_dependency_may_use_the_gpu(tmp_path: Path, numpy_alone: Index) -> None:
    numpy_alone.has("ultralytics", "ultralytics-8.0-py3-none-any.whl")
    numpy_alone.has("torch", "torch-2.0-py3-none-any.whl")
    numpy_alone.needs["ultralytics-8.0"] = ("torch",)
    assert "computes" not in plan(tmp_path, "import ultralytics\n", "ultralytics\n", gpus="1", index=numpy_alone)


def test_an_unknown_package_may_import_a_framework_that_it_does_not_require(tmp_path: Path, numpy_alone: Index) -> None:
    numpy_alone.has("optflow", "optflow-0.2-py3-none-any.whl")
    text = "import numpy, optflow\n"
    assert "computes" not in plan(tmp_path, text, "numpy\noptflow\n", gpus="1", index=numpy_alone)


def test_a_base_that_brings_its_framework_uses_the_gpu(tmp_path: Path, numpy_alone: Index) -> None:
    base = "nvcr.io/nvidia/pytorch:24.01-py3"
    assert "computes on" not in plan(tmp_path, "import sklearn, torch\n", "scikit-learn\n", gpus="1", base=base)
    assert "computes on" not in plan(tmp_path, "import numpy, torch\n", "numpy\n", index=numpy_alone, base=base)


@pytest.mark.parametrize(
    ("text", "listed"),
    [
        ("import chainer\n", "chainer\ncupy-cuda12x\n"),
        ("import chainer\nimport cupy\n", "chainer\n"),
        ("import numpy\n", "numpy\n"),
    ],
    ids=["its half for GPUs", "its half is imported", "no lock"],
)
def test_a_gpu_is_planned_where_nothing_speaks_against_it(tmp_path: Path, text: str, listed: str) -> None:
    assert "computes on a GPU" not in plan(tmp_path, text, listed, gpus="1")


def test_programs_of_the_system_may_use_the_gpu(tmp_path: Path, numpy_alone: Index) -> None:
    assert "computes on" not in plan(tmp_path, "import os\n", "numpy\n", gpus="1", index=numpy_alone)


@pytest.mark.parametrize("door", ["subprocess", "importlib"])
def test_a_script_that_starts_programs_or_names_modules_is_warned_alone(
    tmp_path: Path, numpy_alone: Index, door: str
) -> None:
    text = f"import numpy, {door}\n"
    assert "computes on a GPU" in plan(tmp_path, text, "numpy\n", gpus="1", index=numpy_alone)


@pytest.mark.parametrize(
    ("release", "gpu", "warns"), [("0.35.0", "h100", True), ("0.37.0", "h100", False), ("0.35.0", "a100", False)]
)
@pytest.mark.parametrize(("base", "listed"), [(DEFAULT_BASE, "torch\n"), ("nvcr.io/nvidia/pytorch:24.01-py3", "")])
def test_a_release_without_code_for_the_gpu_is_named(
    tmp_path: Path, release: str, gpu: str, warns: bool, base: str, listed: str
) -> None:
    listed += f"bitsandbytes=={release}\n"
    with serving() as index:
        for name, version in (("bitsandbytes", release), ("torch", "2.13.0"), ("numpy", "2.3.0")):
            index.has(name, f"{name}-{version}-py3-none-any.whl")
        shown = plan(tmp_path, "import torch\n", listed, index=index, machine=gpu, base=base)
    note = "bitsandbytes 0.35.0 has code only for GPUs before sm_90: require bitsandbytes>=0.37.0"
    assert (note in shown) is warns


@pytest.mark.parametrize(
    ("listed", "message"),
    [
        ("mxnet-cu112==1.9.1\n", "mxnet-cu112 has no code for H100 .sm_90.: it is built for CUDA 11.2, and .* 11.8"),
        ("cupy-cuda101\n", "cupy-cuda101 has no code for H100"),
        ("paddlepaddle-gpu==2.6.2\n", "paddlepaddle-gpu has no code for H100 .sm_90.: its releases .* up to sm_86"),
        ("mindspore\n", "mindspore has no code for H100"),
        ("torch==0.4.1\n", "torch==0.4.1 .requirements.txt. is older than torch 1.0.0"),
        ("jax==0.2.10\n", "jax==0.2.10 .requirements.txt. is older than jax"),
    ],
)
def test_a_framework_without_code_for_the_gpu_is_refused(tmp_path: Path, listed: str, message: str) -> None:
    text = f"import {listed.partition('=')[0].strip().partition('-')[0]}\n"
    with pytest.raises(StackError, match=message):
        plan(tmp_path, text, listed, machine="h100")
    assert "has no code for" not in plan(tmp_path, text, listed, cpu_only=True)


@pytest.mark.parametrize(
    ("source", "release", "warns"),
    [
        ("import gymnasium as gym\ngym.make('ALE/Pong-v5')\n", "1.0.0", True),
        ("import gymnasium as gym\nenv_id = 'BreakoutNoFrameskip-v4'\n", "1.2.0", True),
        ("import gymnasium as gym\ngym.make('ALE/Pong-v5')\n", "0.29.1", False),
        ("import gymnasium as gym\nimport ale_py\ngym.make('ALE/Pong-v5')\n", "1.0.0", False),
        ("import gymnasium as gym\ngym.make('CartPole-v1')\n", "1.0.0", False),
    ],
)
def test_atari_games_that_no_import_registers_are_named(tmp_path: Path, source: str, release: str, warns: bool) -> None:
    with serving() as index:
        index.has("gymnasium", f"gymnasium-{release}-py3-none-any.whl")
        index.has("ale-py", "ale_py-0.11.0-py3-none-any.whl")
        index.has("shimmy", "shimmy-1.3.0-py3-none-any.whl")
        shown = plan(tmp_path, source, f"gymnasium=={release}\nale-py\n", index=index, cpu_only=True)
    assert (f"train.py:2 {source.split(chr(39))[1]}: gymnasium {release} has this game" in shown) is warns


@pytest.mark.parametrize(("machine", "warns"), [("h100", True), ("a100", False)])
def test_a_dgl_without_code_for_the_gpu_is_named(tmp_path: Path, machine: str, warns: bool) -> None:
    shown = plan(tmp_path, "import torch, dgl\n", "torch==2.0.1\ndgl-cu111==0.6.1\n", machine=machine)
    assert ("package dgl-cu111 has no code for H100 (sm_90): it is built for CUDA 11.1" in shown) is warns


@pytest.mark.parametrize(
    ("listed", "machine"),
    [
        ("--extra-index-url https://www.paddlepaddle.org.cn/packages/stable/cu126/\npaddlepaddle-gpu\n", "h100"),
        ("mxnet-cu112\n", "a100"),
        ("cupy-cuda12x\n", "h100"),
        ("cupy-cuda118\n", "h100"),
    ],
)
def test_a_framework_with_code_for_the_gpu_is_planned(tmp_path: Path, listed: str, machine: str) -> None:
    assert "has no code for" not in plan(tmp_path, "import numpy\n", listed, machine=machine)


@pytest.mark.parametrize(
    ("listed", "packages"),
    [
        ("cupy==14.0.1\n", "cupy-cuda12x[ctk]==14.0.1"),
        ("cupy-cuda13x\n", "cupy-cuda13x[ctk]"),
        ("cupy==13.6.0\ntorch==2.5.1\n", "cupy-cuda12x==13.6.0"),
        ("cupy==14.0.1\ntorch==2.13.0\n", "cupy-cuda13x==14.0.1"),
        ("torch==2.13.0\n", "cupy-cuda13x"),
    ],
)
def test_the_source_of_cupy_is_replaced_by_a_wheel_for_the_frameworks_cuda(
    tmp_path: Path, listed: str, packages: str
) -> None:
    files = {"train.py": "import cupy\n", "requirements.txt": listed}
    [chosen] = planned(tmp_path, files, cpu_only=False, target="h100").chosen("packages")
    assert [each for each in chosen.split(", ") if "cupy" in each] == [packages]


@pytest.mark.parametrize(
    ("code", "named"), [("import torch\n", "petsc, libcurl"), ("import six\n", "petsc, libcurl, cudatoolkit")]
)
def test_the_cuda_of_conda_is_not_named_where_a_frameworks_wheels_have_it(
    tmp_path: Path, code: str, named: str
) -> None:
    listed = "dependencies:\n- six\n- petsc\n- libcurl\n- cudatoolkit=11.3\n" + "- pytorch\n" * ("torch" in code)
    reason = planned(tmp_path, {"train.py": code, "environment.yml": listed}).reason("packages")
    assert reason.endswith(f"not installed, as the target imports none: conda's {named}")


def test_an_old_package_next_to_a_framework_is_warned_of(tmp_path: Path) -> None:
    shown = plan(tmp_path, "import torch\n", "torch\ncupy-cuda101==9.6.0\n", machine="h100")
    assert "package cupy-cuda101 has no code for H100" in shown
    assert "the GPU needs 11.8 or newer; require cupy-cuda13x" in " ".join(shown.split())
