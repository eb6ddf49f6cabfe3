"""The resolver against a brute force over the tables, machines as they are described, and the tables themselves."""

from __future__ import annotations

import itertools
from importlib import metadata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

import tables
from seatrial.errors import UsageError
from seatrial.stack.facts import (
    Framework,
    GpuModel,
    Wheel,
    cuda_images,
    gpu_models,
    released,
    table,
    wheels,
)
from seatrial.stack.machine import TargetGpu, TargetMachine, parse_target, this_machine
from seatrial.stack.resolve import PYTHONS, Conflict, Stack, resolve
from seatrial.stack.rules import Constraints
from tables import cases

H100 = parse_target("h100")
FRAMEWORKS: tuple[Framework, ...] = ("torch", "tensorflow", "jax")


def requested(framework: Framework | None = "torch", specifier: str = "", **more: Any) -> Constraints:
    return Constraints(framework, SpecifierSet(specifier), prefer="2.13.0" if framework == "torch" else None, **more)


def stack(constraints: Constraints, target: str | TargetMachine) -> Stack:
    found = resolve(constraints, target if isinstance(target, TargetMachine) else parse_target(target))
    assert isinstance(found, Stack), found
    return found


def conflict(constraints: Constraints, target: str | TargetMachine) -> Conflict:
    found = resolve(constraints, target if isinstance(target, TargetMachine) else parse_target(target))
    assert isinstance(found, Conflict), found
    return found


@tables.cases("target", "framework", "specifier", "requirement", "build", "warns")
def test_build_for_a_machine(
    target: str,
    framework: Framework | None,
    specifier: str | None,
    requirement: str | None,
    build: str | None,
    warns: str | None,
) -> None:
    found = stack(requested(framework or "torch", specifier or ""), target)
    assert found.requirement == (requirement or found.requirement) and found.build == (build or found.build)
    if framework is None and requirement:
        assert found.index == (f"https://download.pytorch.org/whl/{found.build}" if "+" in requirement else None)
    assert warns is None or (warns in " ".join(found.warnings) and bool(warns) == bool(found.warnings))


def test_a_build_that_seatrial_never_chooses_is_there_for_a_pin() -> None:
    found = resolve(Constraints("torch", SpecifierSet("==2.12.1"), variant="cu129"), parse_target("h100"))
    assert isinstance(found, Stack) and found.requirement == "torch==2.12.1+cu129"
    assert found.index == "https://download.pytorch.org/whl/cu129"
    assert stack(requested(specifier="==2.12.1"), "driver=575.51,gpu=A100").build == "cu126"


def test_a_release_for_older_pythons_alone_gives_way_to_the_next_one() -> None:
    assert next(way for way, found in conflict(requested(specifier="<1.4"), "h100").nearest) == "the next version"


@pytest.mark.parametrize(("release", "build"), [("2.12.0", "cu129"), ("2.0.0", "cu117")])
def test_another_build_is_suggested_before_another_release(release: str, build: str) -> None:
    way, found = conflict(requested(specifier=f"=={release}", variant=build), "h100").nearest[0]
    assert way == "another build" and f"torch=={release}" in str(found.requirement)


def test_a_cpu_run_takes_the_cpu_build() -> None:
    found = stack(requested(gpu=False), TargetMachine())
    assert (found.requirement, found.index) == ("torch==2.13.0", "https://download.pytorch.org/whl/cpu")


def test_python_goes_where_the_framework_is() -> None:
    assert stack(requested(specifier="==1.13.1"), "a100").python == "3.10"
    assert stack(requested(python_specifier=SpecifierSet(">=3.12")), "h100").python == "3.12"
    assert stack(requested(None, python_specifier=SpecifierSet("<3.11")), TargetMachine()).python == "3.10"


def test_cuda_compat_is_for_data_centre_gpus() -> None:
    constraints = requested(specifier="==2.13.0", variant="cu130")
    assert stack(constraints, "driver=535.129,gpu=H100").forward_compat
    assert not stack(requested(), "driver=535.129,gpu=H100").forward_compat  # cu126 needs no stop-gap
    found = conflict(constraints, "driver=535.129,gpu=A4000")
    assert "needs driver 580.65.06 or later" in found.sentence
    assert "driver 535.129" in found.sentence
    assert [way for way, _ in found.nearest][:2] == ["another build", "driver 580.65.06 or later"]


@pytest.mark.parametrize(
    ("constraints", "target", "sides"),
    [
        (requested(specifier="==1.13.1"), "h100", ("has code for sm_37", "H100 is sm_90")),
        (
            requested("tensorflow", specifier="==2.11.0"),
            "h100",
            ("and PTX, for CUDA 11.2", "sm_90, which cuBLAS and cuDNN support since CUDA 11.8"),
        ),
        (requested("tensorflow", specifier="==2.3.0"), "rtx-3090", ("and PTX, for CUDA 10.1", "since CUDA 11.1")),
        (requested(specifier="==2.0.1", python="3.12"), "a100", ("Python 3.8 to 3.11", "base image has Python 3.12")),
        (requested(variant="cpu", source="torch==2.13.0+cpu"), "h100", ("has no CUDA", "GPUs are requested")),
        (
            requested(specifier="==2.13.0", partners={"torchvision": SpecifierSet("==0.20.0")}),
            "h100",
            ("torchvision 0.28.0", "==0.20"),
        ),
        (requested(None, python_specifier=SpecifierSet("<3")), "h100", ("Python 3.11", "requires Python <3")),
    ],
)
def test_a_conflict_names_both_sides(constraints: Constraints, target: str, sides: tuple[str, str]) -> None:
    sentence = conflict(constraints, target).sentence
    assert sides[0] in sentence.split(", but ")[0]
    assert sides[1] in sentence.split(", but ")[1]


@pytest.mark.parametrize(("release", "fits"), [("0.8.0", True), ("0.8.1", True), ("0.8.2", False), ("0.7.0", False)])
def test_every_torchvision_that_requires_a_torch_goes_with_it(release: str, fits: bool) -> None:
    wanted = requested(specifier="==1.7.0", partners={"torchvision": SpecifierSet(f"=={release}")})
    assert isinstance(resolve(wanted, parse_target("v100")), Stack) is fits


def fits(wheel: Wheel, python: str, cpu: bool, forward: bool, constraints: Constraints, machine: TargetMachine) -> bool:
    ok = wheel.version in constraints.specifier and constraints.variant in (None, "cpu" if cpu else wheel.variant)
    ok &= Version(wheel.python[0]) <= Version(python) <= Version(wheel.python[1])
    ok &= constraints.python in (None, python) and f"{python}.99" in constraints.python_specifier
    if cpu:
        return bool(ok and not constraints.gpu and not forward)
    major = int(wheel.cuda.split(".")[0])
    floor = {11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}
    if machine.driver is not None:
        driver = Version(machine.driver)
        if forward:
            branches = next((row["branches"] for row in table("cuda")["forward"] if row["major"] == major), [])
            ok &= bool(machine.gpus) and all(gpu.datacenter for gpu in machine.gpus) and driver.major in branches
        elif major >= 11:
            ok &= driver >= Version(floor[major])
        else:
            ok &= driver >= Version(next(r["driver"] for r in table("cuda")["toolkits"] if r["cuda"] == wheel.cuda))
    else:
        ok &= not forward
    for gpu in machine.gpus if constraints.gpu else ():
        cc = tuple(map(int, gpu.cc.split(".")))
        if wheel.jit_from:
            ok &= cc >= tuple(map(int, wheel.jit_from.split(".")))
            continue
        code = [tuple(map(int, sm.split("."))) for sm in wheel.sm]
        native = any(sm[0] == cc[0] and sm[1] <= cc[1] for sm in code)
        newest = [row["cuda"] for row in table("cuda")["toolkits"] if machine.driver and native_to(machine.driver, row)]
        jit = any(tuple(map(int, ptx.split("."))) <= cc for ptx in wheel.ptx) and (
            machine.driver is None or forward or any(Version(cuda) >= Version(wheel.cuda) for cuda in newest)
        )
        ok &= native or jit
    return bool(ok)


def native_to(driver: str, row: dict[str, Any]) -> bool:
    return int(driver.split(".")[0]) >= int(row["driver"].split(".")[0])


GPUS = [TargetGpu(row.gpu, row.cc, row.kind == "datacenter") for row in gpu_models()]
DRIVERS = [None, *sorted({row["driver"] for row in table("cuda")["toolkits"]} | {"418.39", "450.80.02"})]
VERSIONS = {name: sorted({wheel.version for wheel in wheels(name)}) for name in FRAMEWORKS}


@st.composite
def requests(draw: st.DrawFn) -> tuple[Constraints, TargetMachine]:
    framework = draw(st.sampled_from(FRAMEWORKS))
    version = draw(st.sampled_from(VERSIONS[framework]))
    specifier = draw(st.sampled_from(["", f"=={version}", f">={version}", f"<={version}", f"~={version}"]))
    variant = draw(st.none() | st.sampled_from(sorted({"cpu", *(wheel.variant for wheel in wheels(framework))})))
    constraints = Constraints(
        framework,
        SpecifierSet(specifier),
        variant=variant,
        gpu=draw(st.booleans()),
        python=draw(st.none() | st.sampled_from(PYTHONS)),
        python_specifier=SpecifierSet(draw(st.sampled_from(["", ">=3.10", "<3.11", ">=3.13", "==3.9.*"]))),
        prefer=draw(st.none() | st.just(version)),
    )
    gpus = tuple(draw(st.lists(st.sampled_from(GPUS), max_size=2)))
    return constraints, TargetMachine(draw(st.sampled_from(DRIVERS)), gpus)


@given(requests())
def test_every_stack_satisfies_every_rule_and_every_conflict_is_real(case: tuple[Constraints, TargetMachine]) -> None:
    constraints, machine = case
    assert constraints.framework is not None
    found = resolve(constraints, machine)
    pythons = (constraints.python,) if constraints.python else PYTHONS
    space = itertools.product(wheels(constraints.framework), pythons, (False, True), (False, True))
    possible = [each for each in space if fits(*each, constraints, machine)]
    if isinstance(found, Conflict):
        assert not possible
        assert found.broken
        for _, close_by in found.nearest:  # "nearest stacks that work": each is one for some way of asking
            assert close_by.wheel in wheels(constraints.framework)
    else:
        assert found.wheel is not None
        assert (found.wheel, found.python, found.cpu, found.forward_compat) in possible
        assert all(choice.reason for choice in found.choices)


def test_the_nearest_work() -> None:
    """Each alternative that a conflict names resolves for the machine."""
    for constraints, target in (
        (requested(specifier="==1.13.1"), "h100"),
        (requested(specifier="==2.13.0", variant="cu130"), "driver=535.129,gpu=A4000"),
    ):
        for way, close_by in conflict(constraints, target).nearest:
            assert close_by.wheel is not None
            if way != "the CPU" and not way.startswith("driver"):
                pinned = SpecifierSet(f"=={close_by.wheel.version}")
                again = Constraints("torch", pinned, variant=close_by.build, python=close_by.python)
                assert isinstance(resolve(again, parse_target(target)), Stack)


@cases("name", "cc", "datacenter")
def test_nvmls_names_are_known(name: str, cc: str, datacenter: bool) -> None:
    (gpu,) = this_machine("535.129", [(name, None)]).gpus
    assert (gpu.cc, gpu.datacenter) == (cc, datacenter)


def test_nvmls_capability_wins_over_the_table() -> None:
    (gpu,) = this_machine(None, [("NVIDIA H100 80GB HBM3", "9.1")]).gpus
    assert gpu.cc == "9.1"


@cases("text", "driver", "capabilities")
def test_a_described_target(text: str, driver: str | None, capabilities: tuple[str, ...]) -> None:
    machine = parse_target(text)
    assert (machine.driver, machine.capabilities) == (driver, capabilities)


@cases("text", "message", "cause")
def test_a_bad_target_is_named(text: str, message: str, cause: str | None) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        parse_target(text)
    assert cause is None or cause in (caught.value.cause or "")
    assert caught.value.run


@pytest.mark.parametrize("name", ["h1000", "rtx40901", "RTX A60000", "l40sx"])
def test_a_name_that_is_nearly_right_is_answered_with_one_that_is(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_target(name)
    command = caught.value.run or ""
    assert parse_target(command.rpartition(" ")[2]).gpus[0].name in (caught.value.cause or "")


@pytest.mark.parametrize("model", gpu_models(), ids=lambda model: model.gpu)
def test_every_gpu_has_a_name_without_spaces(model: GpuModel) -> None:
    assert parse_target("-".join(model.gpu.lower().split())).gpus[0].name == model.gpu


@pytest.mark.parametrize("name", ["cuda", "torch", "tensorflow", "jax", "gpus", "nvidia_images"])
def test_every_row_names_its_source_and_confidence(name: str) -> None:
    data = table(name)
    rows = [row for value in data.values() if isinstance(value, list) for row in value if isinstance(row, dict)]
    assert rows
    for row in rows:
        assert row["source"] in data["sources"], row
        assert row["confidence"] in ("high", "medium", "low"), row


@pytest.mark.parametrize(("cuda", "cudnn"), [("11.8.0", "cudnn8"), ("12.3.2", "cudnn9"), ("12.6.3", "cudnn")])
def test_a_tag_names_cudnn_as_its_release_does(cuda: str, cudnn: str) -> None:
    [image] = [image for image in cuda_images() if image.cuda == cuda]
    assert image.tag("cudnn-runtime", "22.04") == f"nvidia/cuda:{cuda}-{cudnn}-runtime-ubuntu22.04"


@pytest.mark.torch
def test_the_table_agrees_with_the_wheel_that_is_installed() -> None:
    """Live facts: Requires-Dist of an installed CUDA build. A CPU build pins none, and proves nothing."""
    try:
        installed = metadata.distribution("torch")
    except metadata.PackageNotFoundError:
        pytest.skip("torch is not installed")
    pins = [Requirement(line) for line in installed.requires or ()]
    cudnn = [pin for pin in pins if pin.name.startswith("nvidia-cudnn-cu")]
    if not cudnn:
        pytest.skip(f"torch {installed.version} is a build without CUDA")
    major = cudnn[0].name.removeprefix("nvidia-cudnn-cu")
    rows = [row for row in wheels("torch") if Version(row.version).public == Version(installed.version).public]
    assert any(row.cudnn in str(cudnn[0].specifier) for row in rows if row.cudnn and row.cuda.startswith(major))


@pytest.mark.parametrize(
    ("framework", "target", "as_of", "release"),
    [
        ("torch", "h100", "2021-09-03", "2.0.0 3.9"),
        ("torch", "T4", "2019-09-03", "2.0.0 3.8"),
        ("torch", "h100", "2023-06-01", "2.0.1 3.11"),
        ("torch", "h100", "", "2.13.0 3.11"),
        ("tensorflow", "T4", "2021-09-03", "2.6.0 3.9"),
        ("tensorflow", "h100", "2021-09-03", "2.12.0 3.9"),
        ("jax", "h100", "2022-09-03", "0.4.30 3.10"),
    ],
)
def test_release_is_the_nearest_to_the_day_of_the_code(
    framework: Framework, target: str, as_of: str, release: str
) -> None:
    found = stack(requested(framework, as_of=as_of), target)
    assert found.wheel is not None and f"{found.wheel.version} {found.python}" == release


def test_each_release_has_its_day() -> None:
    for framework in FRAMEWORKS:
        assert all(released(framework, wheel.version) for wheel in wheels(framework, pinned=True))
