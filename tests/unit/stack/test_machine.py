from __future__ import annotations

import pytest

from seatrial.errors import UsageError
from seatrial.stack.facts import GpuModel, gpu_models
from seatrial.stack.machine import parse_target, this_machine


@pytest.mark.parametrize(
    ("name", "cc", "datacenter"),
    [
        ("NVIDIA H100 80GB HBM3", "9.0", True),
        ("NVIDIA H200", "9.0", True),
        ("NVIDIA A100-SXM4-40GB", "8.0", True),
        ("Tesla V100-SXM2-16GB", "7.0", True),
        ("NVIDIA RTX 6000 Ada Generation", "8.9", False),
        ("Quadro RTX 6000", "7.5", False),
        ("NVIDIA RTX A4000", "8.6", False),
        ("NVIDIA GeForce RTX 4090", "8.9", False),
    ],
)
def test_nvmls_names_are_known(name: str, cc: str, datacenter: bool) -> None:
    (gpu,) = this_machine("535.129", [(name, None)]).gpus
    assert (gpu.cc, gpu.datacenter) == (cc, datacenter)


def test_nvmls_capability_wins_over_the_table() -> None:
    (gpu,) = this_machine(None, [("NVIDIA H100 80GB HBM3", "9.1")]).gpus
    assert gpu.cc == "9.1"


@pytest.mark.parametrize(
    ("text", "driver", "capabilities"),
    [
        ("h100", None, ("9.0",)),
        ("4090", None, ("8.9",)),
        ("sm_90", None, ("9.0",)),
        ("12.0", None, ("12.0",)),
        ("driver=535.129,gpu=A4000", "535.129", ("8.6",)),
        ("driver=580.65.06,gpu=V100,gpu=A100", "580.65.06", ("7.0", "8.0")),
    ],
)
def test_a_described_target(text: str, driver: str | None, capabilities: tuple[str, ...]) -> None:
    machine = parse_target(text)
    assert (machine.driver, machine.capabilities) == (driver, capabilities)


@pytest.mark.parametrize(
    ("text", "message", "cause"),
    [
        ("h1000", "unknown GPU 'h1000'", "H100"),
        ("driver=12.4,gpu=A100", "'12.4' is not a valid driver version", "535"),
        ("driver=535.129", "does not name a GPU", None),
        ("cuda=12", "'cuda=12' is neither driver=VERSION nor gpu=NAME", None),
        ("", "neither|does not name a GPU", None),
    ],
)
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
