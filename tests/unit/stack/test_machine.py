from __future__ import annotations

import pytest

from seatrial.errors import UsageError
from seatrial.stack.facts import GpuModel, gpu_models
from seatrial.stack.machine import parse_target, this_machine
from tables import cases


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
