"""The resolver against a brute force over the tables, written down a second time without its code."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from seatrial.stack.facts import Framework, Wheel, gpu_models, table, wheels
from seatrial.stack.machine import TargetGpu, TargetMachine, parse_target
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


@cases("target", "requirement")
def test_torch_for_a_machine(target: str, requirement: str) -> None:
    found = stack(requested(), target)
    assert found.requirement == requirement
    assert found.index == (f"https://download.pytorch.org/whl/{found.build}" if "+" in requirement else None)


def test_other_frameworks() -> None:
    assert stack(requested("tensorflow"), "driver=535.129,gpu=T4").requirement == "tensorflow[and-cuda]==2.21.0"
    assert stack(requested("jax"), "driver=535.129,gpu=T4").build == "cuda12"
    assert stack(requested("jax"), "driver=580.95.05,gpu=B200").build == "cuda13"
    assert stack(requested("tensorflow", "==2.13.0"), "driver=535.129,gpu=T4").wheel.system_cuda  # type: ignore[union-attr]


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
        (requested(specifier="==2.0.1", python="3.12"), "a100", ("Python 3.8 to 3.11", "base image has Python 3.12")),
        (requested(variant="cpu", source="torch==2.13.0+cpu"), "h100", ("has no CUDA", "GPUs are requested")),
        (requested(specifier="==2.13.0", cudnn="8.9.2.26"), "h100", ("needs cuDNN 9", "pin cuDNN 8.9.2.26")),
        (
            requested(specifier="==2.13.0", torchvision=SpecifierSet("==0.20.0")),
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


def test_unknown_driver_gives_a_warning() -> None:
    assert "has no driver version" in stack(requested(), "h100").warnings[0]
    assert stack(requested(), "driver=580.65.06,gpu=H100").warnings == ()
    unsure = stack(requested("tensorflow", "==2.12.0"), "driver=570.124,gpu=V100")
    assert "are unknown" in unsure.warnings[0]


# The brute force: (build, cpu, forward) → fits, from the raw rows.


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
DRIVERS = [
    None,
    "418.39",
    "450.80.02",
    "470.82",
    "515.43",
    "525.60.13",
    "535.129",
    "550.54",
    "570.124",
    "580.65.06",
    "595.45",
]
VERSIONS = {name: sorted({wheel.version for wheel in wheels(name)}) for name in FRAMEWORKS}


@st.composite
def cases(draw: st.DrawFn) -> tuple[Constraints, TargetMachine]:
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


@given(cases())
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
        machine = parse_target(target)
        for way, close_by in conflict(constraints, target).nearest:
            assert close_by.wheel is not None
            if way != "the CPU" and not way.startswith("driver"):
                again = Constraints(
                    "torch", SpecifierSet(f"=={close_by.wheel.version}"), variant=close_by.build, python=close_by.python
                )
                assert isinstance(resolve(again, machine), Stack)


@pytest.mark.parametrize("version", ["2.15.1", "2.16.2", "2.17.1", "2.18.1", "2.19.1", "2.20.0", "2.21.0"])
def test_every_tensorflow_from_2_15_on_is_known(version: str) -> None:
    found = stack(requested("tensorflow", f"=={version}"), "driver=535.129,gpu=A100")
    assert found.requirement == f"tensorflow[and-cuda]=={version}" and not found.warnings


@pytest.mark.parametrize("minor", ["0.4", "0.5", "0.6", "0.7", "0.8", "0.9", "0.10", "0.11"])
def test_every_jax_from_0_4_on_is_known(minor: str) -> None:
    found = stack(requested("jax", f"=={minor}.*"), "driver=535.129,gpu=A100")
    assert found.requirement is not None and found.requirement.startswith(f"jax[cuda12]=={minor}.")
    if Version(minor) >= Version("0.8"):
        assert stack(requested("jax", f"=={minor}.*"), "driver=580.95,gpu=H100").build == "cuda13"


def test_tensorflow_with_only_ptx_gives_a_warning() -> None:
    found = stack(requested("tensorflow"), "driver=580.95,gpu=B200")
    assert any("no machine code for" in warning for warning in found.warnings)
