"""Which framework release and build a project gets on a machine."""

from __future__ import annotations

import pytest
from packaging.specifiers import SpecifierSet

from seatrial.errors import ConfigError, GpuContractError
from seatrial.images.requirements.pip_format import Needs, Requirements
from seatrial.images.resolve.framework import TORCH_VERSION, Resolved, resolve_frameworks
from seatrial.stack.machine import TargetMachine, parse_target
from tables import cases

#: Source: https://pytorch.org/get-started/locally/ (pip, Linux, CPU).
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
TORCH = f"torch=={TORCH_VERSION}"
ANY = TargetMachine()
A4000 = parse_target("driver=535.129,gpu=A4000")


def resolved(
    *lines: str,
    imports: tuple[str, ...] = ("torch",),
    constraints: tuple[str, ...] = (),
    options: tuple[str, ...] = (),
    machine: TargetMachine | None = ANY,
    own_sources: bool = False,
    python: str | None = None,
    requires: str = "",
    mirror: str | None = None,
) -> Resolved:
    needs = Needs(Requirements(lines, constraints, options), "requirements.txt", "it is there", SpecifierSet(requires))
    return resolve_frameworks(
        needs, frozenset(imports), machine=machine, own_sources=own_sources, python=python, mirror=mirror
    )


@cases("lines", "expected")
def test_torch_is_fixed_where_it_is_open(lines: tuple[str, ...], expected: tuple[str, ...]) -> None:
    assert resolved(*lines).requirements.lines == expected


def test_a_constraint_decides_on_torch() -> None:
    assert resolved("torch", "numpy", constraints=("torch==2.9.0",)).requirements.lines == ("torch==2.9.0", "numpy")


@cases("lines", "expected", "constraints")
def test_numpy_1_for_a_torch_that_was_built_for_it(
    lines: tuple[str, ...], expected: tuple[str, ...], constraints: tuple[str, ...]
) -> None:
    found = resolved(*lines, machine=None).requirements
    assert (tuple(line.partition("+")[0] for line in found.lines), found.constraints) == (expected, constraints)


def test_the_build_that_the_driver_can_run() -> None:
    found = resolved("torch", machine=A4000)
    assert found.requirements.lines[0] == f"{TORCH}+cu126"
    assert (found.index, found.index_needed) == ("https://download.pytorch.org/whl/cu126", True)
    assert "minor-version compatibility" in " ".join(choice.reason for choice in found.choices)
    mirrored = resolved("torch", machine=A4000, mirror="https://mirror.example/pytorch/")
    assert mirrored.index == "https://mirror.example/pytorch/cu126"


def test_release_outside_the_tables_is_left_to_pip_with_a_warning() -> None:
    found = resolved("torch==2.99")
    assert "not in seatrial's tables" in found.warnings[0]


def test_no_framework_where_nothing_imports_one() -> None:
    found = resolved("numpy", imports=("numpy",), requires=">=3.12")
    assert (found.requirements.lines, found.index, found.stack.python) == (("numpy",), None, "3.12")


@pytest.mark.parametrize(
    ("machine", "own_sources", "options", "index", "build"),
    [
        (None, False, (), CPU_INDEX, f"cpu, from {CPU_INDEX}"),
        (None, True, (), None, "as your index provides it"),
        (None, False, ("--index-url https://e.org/simple",), None, "as your index provides it"),
        (ANY, False, (), None, "cu130"),
        (A4000, True, (), None, "as your index provides it"),
    ],
)
def test_which_build_of_torch(
    machine: TargetMachine | None, own_sources: bool, options: tuple[str, ...], index: str | None, build: str
) -> None:
    found = resolved("torch", machine=machine, own_sources=own_sources, options=options)
    assert found.index == index
    assert "+" not in found.requirements.lines[0]
    assert build in [choice.value for choice in found.choices]


def test_other_frameworks() -> None:
    gpu = parse_target("driver=535.129,gpu=T4")
    assert resolved(imports=("tensorflow",), machine=gpu).requirements.lines == ("tensorflow[and-cuda]==2.21.0",)
    assert resolved("tensorflow==2.20.0", machine=gpu).requirements.lines[0] == "tensorflow[and-cuda]==2.20.0"
    assert resolved(imports=("keras",), machine=None).requirements.lines == ("tensorflow-cpu==2.21.0",)
    assert resolved("tensorflow", imports=(), machine=None).requirements.lines == ("tensorflow==2.21.0",)
    assert resolved(imports=("flax", "jax"), machine=gpu).requirements.lines == ("jax[cuda12]==0.11.2",)
    assert resolved(imports=("jax",), machine=None).requirements.lines == ("jax==0.11.2",)


def test_transformers_alone_runs_on_torch() -> None:
    assert resolved("transformers", imports=("transformers",)).requirements.lines == ("transformers", TORCH, "numpy")


def test_two_frameworks_share_a_python() -> None:
    found = resolved(imports=("torch", "tensorflow"), requires=">=3.12")
    assert found.requirements.lines == (TORCH, "numpy", "tensorflow[and-cuda]==2.21.0")
    assert found.stack.python == "3.12"


def test_conflicts_name_both_sides_and_what_works() -> None:
    with pytest.raises(GpuContractError, match=r"needs driver 580.65.06 or later.*has driver 535.129") as gpu:
        resolved("torch==2.13.0+cu130", machine=A4000)
    assert "torch 2.13.0+cu126 on Python 3.11 (another build)" in (gpu.value.cause or "")
    assert gpu.value.run == "write torch==2.13.0+cu126 in requirements.txt"
    with pytest.raises(GpuContractError, match="has no CUDA, but GPUs are requested"):
        resolved("torch==2.13.0+cpu")
    with pytest.raises(ConfigError, match=r"Python 3.8 to 3.11, but the base image has Python 3.12"):
        resolved("torch==2.0.1", python="3.12")
    with pytest.raises(ConfigError, match=r"needs cuDNN 9.20.0.48, but the requirements pin cuDNN 8.9.2.26"):
        resolved("torch==2.13.0", "nvidia-cudnn-cu12==8.9.2.26")


def test_tensorflows_cpu_package_is_no_build_for_gpus() -> None:
    h100 = parse_target("driver=580.65.06,gpu=h100")
    for line in ("tensorflow-cpu==2.20.0", "Tensorflow_CPU<2.21"):
        with pytest.raises(
            GpuContractError, match=r"tensorflow 2.20.0\+cpu has no CUDA, but GPUs are requested"
        ) as shown:
            resolved(line, imports=("tensorflow",), machine=h100)
        assert shown.value.run is not None and shown.value.run.startswith("write tensorflow[and-cuda]==2.2")
        alone = resolved(line, imports=("tensorflow",), machine=None)
        assert alone.requirements.lines == ("tensorflow-cpu==2.20.0",)


def test_a_gpu_without_code_is_the_reason_and_not_the_build_for_cpus() -> None:
    with pytest.raises(GpuContractError, match=r"has code for capability 7.5 and later, but K80 is sm_37"):
        resolved(imports=("jax",), machine=parse_target("driver=450.80,gpu=k80"))


def test_tensorflows_cpu_package_feeds_the_framework_that_computes() -> None:
    h100 = parse_target("driver=580.65.06,gpu=h100")
    found = resolved("jax", "tensorflow-cpu", imports=("jax", "tensorflow"), machine=h100)
    assert found.requirements.lines == ("jax[cuda13]==0.11.2", "tensorflow-cpu==2.21.0")
    assert found.stack.wheel is not None and found.stack.wheel.framework == "jax"
    shown = {choice.what: choice.reason for choice in found.choices}
    assert shown["tensorflow build"] == "the list names the CPU build, and jax computes"
    for imports in (("tensorflow", "lightning"), ("yaml",)):
        found = resolved("torch", "numpy", "tensorflow-cpu", imports=imports, machine=h100)
        assert found.stack.wheel is not None and found.stack.wheel.framework == "torch"
        assert "tensorflow-cpu==2.21.0" in found.requirements.lines


@pytest.mark.parametrize("imports", [("tensorflow",), ("tensorflow", "transformers")])
def test_a_framework_that_is_listed_and_not_imported_does_not_compute(imports: tuple[str, ...]) -> None:
    h100 = parse_target("driver=580.65.06,gpu=h100")
    with pytest.raises(GpuContractError, match=r"tensorflow 2.21.0\+cpu has no CUDA, but GPUs are requested"):
        resolved("torch", "tensorflow-cpu", imports=imports, machine=h100)
    assert resolved("torch", "numpy", "tensorflow-cpu", imports=imports, machine=None).requirements.lines[2:] == (
        "tensorflow-cpu==2.21.0",
    )


@cases("line", "imported", "chosen")
def test_a_run_without_gpus_leaves_the_libraries_of_cuda_out(line: str, imported: str, chosen: str) -> None:
    assert resolved(line, imports=(imported,), machine=None).requirements.lines == (chosen,)


def test_extras_of_jax_name_a_build() -> None:
    h100 = parse_target("driver=580.65.06,gpu=h100")
    for extra in ("tpu", "rocm", "cuda12_local"):
        with pytest.raises(ConfigError, match=rf"jax\[{extra}\] \(requirements.txt\) names {extra}") as shown:
            resolved(f"jax[{extra}]", imports=("jax",), machine=h100)
        assert shown.value.run == "write jax[cuda13]==0.11.2 in requirements.txt"
    assert resolved("jax[cuda12_pip]", imports=("jax",), machine=h100).requirements.lines == ("jax[cuda12]==0.11.2",)


@pytest.mark.parametrize("line", ["tf-nightly", "tf-nightly[and-cuda]", "intel-tensorflow==2.15.0"])
def test_another_tensorflow_stays_alone(line: str) -> None:
    found = resolved(line, imports=("tensorflow",))
    assert found.requirements.lines == (line,)
    assert [warning for warning in found.warnings if warning.startswith(f"{line} is not in seatrial's tables")]


@cases("keras", "tensorflow")
def test_tensorflow_goes_with_the_keras_that_is_required(keras: str, tensorflow: str) -> None:
    found = resolved(keras, "tensorflow", imports=("keras",), machine=None)
    assert found.requirements.lines == (keras, f"tensorflow=={tensorflow}")


def test_a_keras_of_another_tensorflow_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"tensorflow 2.10.0 goes with keras 2.10, but keras==3.3 is required"
    ) as shown:
        resolved("keras==3.3", "tensorflow==2.10", imports=("keras",))
    assert shown.value.run == "write keras==2.10.* in requirements.txt"
