"""Golden Dockerfiles, and what changes a tag."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from seatrial.errors import ConfigError, GpuContractError, TargetError, UsageError
from seatrial.images.plan import plan_image, plan_packages
from seatrial.images.recipes import RECIPES, TOOLS
from seatrial.images.resolve.framework import Resolved
from seatrial.images.slim import options
from seatrial.images.sources import pip_conf
from seatrial.job.model import ImageOptions, Job, Target
from seatrial.job.plan import Choice, ImagePlan
from seatrial.job.script import ScriptFacts
from seatrial.stack.machine import TargetMachine, parse_target
from tables import cases, constant

TORCH = frozenset({"torch", "argparse"})
SCRIPT = Target(kind="script", value="train.py")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "My Project"
    folder.mkdir()
    (folder / "train.py").write_text("import torch\n")
    return folder


def planned(
    project: Path,
    *,
    target: Target = SCRIPT,
    imports: frozenset[str] = TORCH,
    compiles: bool = False,
    cpu_only: bool = False,
    machine: TargetMachine | None = None,
    built_for: str | None = None,
    multi_gpu: bool = False,
    **image: Any,
) -> tuple[ImagePlan, tuple[Choice, ...]]:
    job = Job(project=project, target=target, image=ImageOptions(target=built_for, **image))
    script = ScriptFacts(
        imports=tuple(sorted(imports - {"seatrial"})),
        modules=dict.fromkeys(imports, "train.py:1"),
        compiler_evidence="train.py:1" if compiles else None,
    )
    return plan_image(job, script=script, cpu_only=cpu_only, machine=machine, multi_gpu=multi_gpu)


def text_of(plan: ImagePlan) -> str:
    """All that a build sees of the plan, as one text; digests of our own programs left out."""
    parts = [re.sub("(FILES|PACKAGE_SOURCES)=[0-9a-f]{32}", r"\1=…", str(plan.dockerfile))]
    parts += [f"=== {name}\n{text}" for name, text in plan.context_texts.items()]
    parts += [f"=== secrets {sorted(plan.secrets)} wheel {plan.own_wheel} network {plan.network}"]
    return "\n".join(parts)


def test_script_with_torch_on_a_gpu(project: Path, snapshot: SnapshotAssertion) -> None:
    assert text_of(planned(project)[0]) == snapshot


def test_script_with_torch_on_the_cpu(project: Path, snapshot: SnapshotAssertion) -> None:
    assert text_of(planned(project, cpu_only=True)[0]) == snapshot


def test_script_that_compiles(project: Path, snapshot: SnapshotAssertion) -> None:
    assert text_of(planned(project, compiles=True, system_packages=("libgl1",))[0]) == snapshot


def test_requirements_txt(project: Path, snapshot: SnapshotAssertion) -> None:
    (project / "requirements.txt").write_text("-c pins.txt\ntransformers[torch]  # models\ngit+https://e.org/x.git\n")
    (project / "pins.txt").write_text("numpy==2.0.0\n")
    assert text_of(planned(project)[0]) == snapshot


def test_pyproject(project: Path, snapshot: SnapshotAssertion) -> None:
    (project / "pyproject.toml").write_text('[project]\nname = "x"\ndependencies = ["torch>=2.6", "numpy"]\n')
    assert text_of(planned(project, target=Target(kind="module", value="x.train"))[0]) == snapshot


def test_recipe(project: Path, snapshot: SnapshotAssertion) -> None:
    plan, _ = planned(project, target=Target(kind="recipe", value="mnist"), imports=frozenset())
    assert plan.tag.startswith("seatrial/mnist:")
    assert text_of(plan) == snapshot


def requested(plan: ImagePlan) -> set[str]:
    """Lines of all layers."""
    return {line for text in plan.context_texts.values() for line in text.splitlines()}


def test_libraries_that_packages_load(project: Path) -> None:
    (project / "requirements.txt").write_text("torch\nopencv-python==4.12.0.88\nmpi4py\n")
    plan, choices = planned(project)
    assert "--no-install-recommends libgl1 libglib2.0-0 &&" in (plan.dockerfile or "")
    assert [each.reason for each in choices if each.what == "system packages"] == [
        "opencv-python: the wheels do not bring them"
    ]
    assert {"mpi4py", "mpich", "numpy"} <= requested(plan)
    own, choices = planned(project, base="docker.io/mine/with-everything:1")
    assert "apt-get" not in (own.dockerfile or "")
    (project / "requirements.txt").write_text("torch\nopencv-python-headless\nmpi4py\nopenmpi\n")
    plan, choices = planned(project)
    assert "apt-get" not in (plan.dockerfile or "") and "mpich" not in requested(plan)


def test_tensorflow_without_cuda_where_only_imports_name_it(project: Path) -> None:
    plan, _ = planned(project, imports=frozenset({"tensorflow"}), cpu_only=True)
    assert requested(plan) == {"tensorflow-cpu==2.21.0"}
    (project / "requirements.txt").write_text("tensorflow\n")
    plan, _ = planned(project, imports=frozenset({"tensorflow"}), cpu_only=True)
    assert requested(plan) == {"tensorflow==2.21.0"}


def test_certificate_and_index(project: Path, snapshot: SnapshotAssertion) -> None:
    (project / "ca.pem").write_text("-----BEGIN CERTIFICATE-----\n")
    plan, _ = planned(
        project,
        compiles=True,
        cpu_only=True,
        ca_bundle=Path("ca.pem"),
        index_url="https://me:hunter2@packages.example/simple",
        build_network="host",
    )
    assert text_of(plan) == snapshot
    assert "hunter2" not in plan.model_dump_json()
    assert "packages.example" not in plan.model_dump_json()


def test_a_folder_of_wheels_goes_into_the_build(project: Path, snapshot: SnapshotAssertion) -> None:
    wheel = project / "wheels" / "thing-1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    wheel.write_bytes(b"x")
    plan, _ = planned(project, find_links=str(wheel.parent))
    assert plan.context_files == {"wheels/thing-1.0-py3-none-any.whl": str(wheel)}
    assert text_of(plan) == snapshot


def test_a_recipe_keeps_nccl_for_several_gpus_alone(project: Path) -> None:
    def unused(*, multi_gpu: bool, nodes: int) -> str:
        options = ImageOptions(target="h100", slim="unused")
        job = Job(project=project, target=Target(kind="recipe", value="mnist"), image=options, nodes=nodes)
        plan, _ = plan_image(job, script=ScriptFacts(), cpu_only=False, multi_gpu=multi_gpu)
        return str(plan.dockerfile)

    assert "linalg,nccl,nvshmem" in unused(multi_gpu=False, nodes=1)
    assert "linalg,nvshmem" in unused(multi_gpu=True, nodes=1)
    assert "linalg,nvshmem" in unused(multi_gpu=False, nodes=2)


def test_image_requirements_replace_a_bare_import(project: Path) -> None:
    plan, _ = planned(project, built_for="driver=580.95,gpu=h100", requirements=("torch==2.12.0",))
    assert plan.stack["torch"] == "2.12.0"
    assert plan.context_texts["framework/requirements.txt"].count("torch") == 1
    with pytest.raises(GpuContractError, match=r"535\.129"):
        planned(project, built_for="driver=535.129,gpu=A4000", requirements=("torch==2.13.0+cu130",))


def test_a_folder_of_too_many_wheels_is_not_sent(project: Path) -> None:
    (project / "wheels").mkdir()
    with (project / "wheels" / "big-1.0-py3-none-any.whl").open("wb") as file:
        file.truncate(50_000_000_000)  # takes no room
    with pytest.raises(ConfigError, match="are 50 GB") as raised:
        planned(project, find_links="wheels")
    assert raised.value.cause == "the largest: big-1.0-py3-none-any.whl 50.0 GB"


#: Framework → what the target imports.
FRAMEWORKS = constant(__file__, "FRAMEWORKS")


@pytest.mark.parametrize("flavour", ["cpu", "slim", "base", "runtime", "cudnn-runtime", "devel"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_framework_on_every_flavour(
    project: Path, framework: str, flavour: str, snapshot: SnapshotAssertion
) -> None:
    options = {} if flavour in ("cpu", "slim") else {"flavour": flavour}
    machine = parse_target("driver=580.65.06,gpu=H100")
    plan, choices = planned(
        project, imports=set(FRAMEWORKS[framework]), cpu_only=flavour == "cpu", machine=machine, **options
    )
    reasons = "\n".join(f"{choice.what}: {choice.value}: {choice.reason}" for choice in choices)
    assert f"{text_of(plan)}\n{reasons}" == snapshot


def test_the_base_follows_the_stack(project: Path) -> None:
    bases = {
        "torch==1.13.1": "python:3.10-slim-bookworm",
        "torch==2.9.0": "python:3.11-slim-bookworm",
        "tensorflow==2.13.0": "nvidia/cuda:11.8.0-cudnn8-runtime-ubuntu22.04",  # brings no CUDA of its own
    }
    machine = parse_target("driver=535.129,gpu=T4")
    for line, base in bases.items():
        (project / "requirements.txt").write_text(f"{line}\n")
        assert planned(project, imports=frozenset(), machine=machine)[0].base == base
    (project / "requirements.txt").write_text("torch==2.13.0+cu130\n")
    plan, choices = planned(project, machine=parse_target("driver=535.129,gpu=H100"))
    assert plan.base == "nvidia/cuda:13.0.3-base-ubuntu24.04"
    assert "cuda-compat" in choices[0].reason


def test_cuda_code_is_compiled_in_a_stage_of_its_own(project: Path) -> None:
    (project / "requirements.txt").write_text("torch==2.13.0\nflash-attn\n")
    plan, choices = planned(project)
    assert plan.dockerfile is not None
    assert "FROM nvidia/cuda:13.0.3-devel-ubuntu24.04 AS builder" in plan.dockerfile
    assert plan.base == "nvidia/cuda:13.0.3-base-ubuntu24.04"
    assert "flash-attn" in choices[0].reason


def test_a_target_is_built_for_without_a_gpu_here(project: Path) -> None:
    plan, _ = planned(project, cpu_only=True, built_for="driver=535.129,gpu=A4000")
    assert "torch==2.13.0+cu126" in plan.context_texts["framework/requirements.txt"]
    assert plan.stack == {"python": "3.11", "torch": "2.13.0", "build": "cu126", "cuda": "12.6"} | {
        "cudnn": "9.10.2.21",
        "nccl": "2.29.3",
    }


def test_slimming_follows_what_the_source_shows(project: Path, snapshot: SnapshotAssertion) -> None:
    (project / "train.py").write_text("import torch\ntorch.fft.fft(x)\nmodel = DataParallel(model)\n")
    plan, _ = planned(project, slim="arch", built_for="h100")
    assert plan.architectures == ("9.0",)
    assert "--unused compile,linalg,nvshmem,random,sparse,sparselt --arch 90" in str(plan.dockerfile)
    assert text_of(plan) == snapshot
    assert planned(project, slim="unused", built_for="h100", compiles=True)[0].tag != plan.tag


@cases("line", "packages", "options", "stubbed")
def test_auto_leaves_out_what_the_job_cannot_call(
    project: Path, line: str, packages: str, options: dict[str, Any], stubbed: str
) -> None:
    (project / "train.py").write_text(f"import torch\n{line}\n")
    (project / "requirements.txt").write_text(packages.replace(" ", "\n") + "\n")
    dockerfile = str(planned(project, built_for="h100", **options)[0].dockerfile)
    slimmer = f"slim.pyz --root /opt/venv --level unused --keep-headers --unused {stubbed} "
    layers = len(re.findall("pip install --no-compile .*-r /media", dockerfile))
    # Above the framework what others are linked to comes back, and nothing else goes.
    assert dockerfile.count(slimmer) == layers
    assert (dockerfile.count(f"{slimmer}--keep-metadata"), dockerfile.count(f"{slimmer}--wanted")) == (1, layers - 1)


def test_auto_proves_nothing_of_more_source_than_is_read(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "more.py").write_text("")
    monkeypatch.setattr(options, "_MOST_FILES", 1)
    assert "--unused none " in str(planned(project, built_for="h100")[0].dockerfile)


def test_auto_slims_no_image_without_cuda(project: Path) -> None:
    assert planned(project, cpu_only=True)[0].tag == planned(project, cpu_only=True, slim="none")[0].tag


EVERYTHING = "compile fft libclang linalg nccl nvcc nvshmem random rnn sparse sparselt"


@pytest.mark.parametrize("framework", ["tensorflow", "jax"])
@cases("line", "kept")
def test_slimming_tensorflow_and_jax(project: Path, framework: str, line: str, kept: str) -> None:
    (project / "train.py").write_text(f"import {framework}\n{line}\n")
    plan, _ = planned(project, imports=frozenset({framework}), slim="unused", built_for="h100")
    [unused] = set(re.findall(r"--unused (\S+)", str(plan.dockerfile)))
    assert set(unused.split(",")) == set(EVERYTHING.split()) - set(kept.split())


@pytest.mark.parametrize("name", sorted({**RECIPES, **TOOLS}))
def test_slimming_reads_the_source_of_every_recipe(project: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []
    monkeypatch.setattr(
        options, "read_sources", lambda paths, *_: [read.append(path) or path.read_text() for path in paths]
    )
    plan, _ = planned(project, target=Target(kind="recipe", value=name), slim="unused", built_for="h100")
    assert "--level unused" in str(plan.dockerfile) and [path.is_file() for path in read] == [True]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"slim": "arch"}, "needs to know the GPUs"),
        ({"slim": "unused", "imports": frozenset({"numpy"})}, "supports only libraries of torch, TensorFlow and JAX"),
        ({"base": "python:3.12-alpine"}, "uses musl as its C library"),
        ({"built_for": "h1000"}, "unknown GPU 'h1000'"),
    ],
)
def test_what_cannot_be_built_is_named(project: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        planned(project, **options)


def test_a_ready_image_is_not_built(project: Path) -> None:
    plan, choices = planned(project, ready="nvcr.io/nvidia/pytorch:26.01-py3")
    assert (plan.tag, plan.build, plan.dockerfile) == ("nvcr.io/nvidia/pytorch:26.01-py3", False, None)
    assert [choice.what for choice in choices] == ["image"]


def test_the_tag_is_that_of_the_contents(project: Path) -> None:
    tag = planned(project)[0].tag
    assert re.fullmatch(r"seatrial/my-project:[0-9a-f]{20}", tag)
    (project / "train.py").write_text("import torch\nprint('edited')\n")
    assert planned(project)[0].tag == tag


@pytest.mark.parametrize(
    "change",
    [
        {"cpu_only": True},
        {"compiles": True},
        {"imports": TORCH | {"yaml"}},
        {"imports": TORCH | {"seatrial"}},
        {"base": "debian:bookworm-slim"},
        {"requirements": ("six",)},
        {"system_packages": ("git",)},
        {"index_url": "https://packages.example/simple"},
        {"find_links": "https://packages.example/wheels"},
    ],
)
def test_what_goes_in_changes_the_tag(project: Path, change: dict[str, Any]) -> None:
    assert planned(project, **change)[0].tag != planned(project)[0].tag


def test_a_new_password_is_no_new_image(project: Path) -> None:
    first, second = (planned(project, index_url=f"https://me:{word}@e.org/simple")[0] for word in ("one", "two"))
    assert first.tag == second.tag


def test_comments_are_no_new_image(project: Path) -> None:
    (project / "requirements.txt").write_text("torch\n")
    tag = planned(project)[0].tag
    (project / "requirements.txt").write_text("# the framework\ntorch  # here\n")
    assert planned(project)[0].tag == tag


def test_pip_conf() -> None:
    assert pip_conf(ImageOptions(find_links="/wheels")) is None
    options = ImageOptions(index_url="https://e.org/simple", find_links="https://e.org/wheels")
    assert pip_conf(options) == "[global]\nindex-url = https://e.org/simple\nfind-links = https://e.org/wheels\n"


@pytest.mark.parametrize(
    ("image", "message"),
    [
        ({"requirements": ("torch=2",)}, "seatrial.toml: image.requirements: 'torch=2'"),
        ({"ca_bundle": Path("gone.pem")}, "seatrial.toml: image.ca_bundle"),
        ({"find_links": "/no/such/folder"}, "seatrial.toml: image.find_links: no wheels in /no/such/folder"),
    ],
)
def test_bad_options_are_named(project: Path, image: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        planned(project, **image)


def test_an_unknown_recipe_is_named(project: Path) -> None:
    with pytest.raises(TargetError, match="Unknown recipe 'minst'; available: bench, cifar10, digits"):
        planned(project, target=Target(kind="recipe", value="minst"))


def test_image_without_packages_has_no_disk_line(project: Path) -> None:
    def shown(imports: str) -> list[str]:
        return [each.what for each in planned(project, imports=frozenset({imports}))[1]]

    assert "disk" not in shown("argparse")
    assert "disk" in shown("numpy")


def test_environment_of_another_python_gets_a_warning(project: Path) -> None:
    (project / "pyproject.toml").write_text(
        '[project]\nname = "x"\nrequires-python = ">=3.12"\ndependencies = ["tqdm"]\n'
    )
    job = Job(project=project, target=SCRIPT)

    def on(python: str) -> Resolved:
        return plan_packages(job, script=ScriptFacts(imports=("tqdm",)), cpu_only=True, python=python)

    assert on("3.11").warnings == ("the project asks for Python >=3.12, and this is Python 3.11",)
    assert on("3.12").warnings == ()
    assert "python" not in [choice.what for choice in on("3.12").choices]
