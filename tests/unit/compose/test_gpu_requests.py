"""Each way in which Compose files ask for GPUs, in one request."""

from __future__ import annotations

import textwrap

import pytest

from seatrial.compose.gpu_requests import foreign_ask, gpu_ask
from seatrial.compose.plan import becomes_run
from seatrial.compose.service import Service
from seatrial.errors import GpuRequestError
from tables import cases, constant

DEVICES = "deploy: {resources: {reservations: {devices: [%s]}}}"

ASKS = constant(__file__, "ASKS")


@pytest.mark.parametrize("name", ASKS)
def test_a_request(read, name: str) -> None:
    lines, expected = ASKS[name]
    file = read(f"services:\n  a:\n    image: x\n    {lines}\n")
    ask = gpu_ask(file, file.services["a"])
    assert ask is not None and str(ask.request) == expected and not ask.compute_added


@cases("lines")
def test_none(read, lines: str) -> None:
    file = read(f"services:\n  a:\n    image: x\n    {lines}\n")
    assert gpu_ask(file, file.services["a"]) is None


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"gpus": [{"count": -1}]}, "all"),  # what Compose makes of ``gpus: all``
        ({"gpus": [{"count": 2}]}, "2"),
        ({"gpus": [{"driver": "nvidia", "device_ids": ["1"]}]}, "device=1"),
        ({"gpus": [{"count": 1, "capabilities": ["compute", "utility"]}]}, "1,capabilities=compute,utility"),
        ({"gpus": [{"driver": "amd", "count": 1}]}, None),
        ({"gpus": [{"driver": "cdi", "device_ids": ["nvidia.com/gpu=1"]}]}, "device=1"),
        ({"gpus": [{"driver": "cdi", "device_ids": ["nvidia.com/gpu=all"]}]}, "all"),
        ({"gpus": [{"driver": "cdi", "device_ids": ["amd.com/gpu=0"]}]}, None),
    ],
)
def test_the_short_key(read, config: dict[str, object], expected: str | None) -> None:
    """Return the output of ``docker compose config``; Compose before 2.30 lacks the key."""
    file = read("services:\n  a:\n    image: x\n")
    service = Service("a", config, "x")
    ask = gpu_ask(file, service)
    assert (str(ask.request) if ask else None) == expected
    assert foreign_ask(service) == (("gpus",) if expected is None else None), "it is one or the other"


@cases("lines", "path")
def test_accelerators_of_others_are_no_run_on_the_cpu(read, lines: str, path: tuple[str, ...] | None) -> None:
    file = read(f"services:\n  a:\n    image: x\n    {lines}\n")
    service = file.services["a"]
    assert foreign_ask(service) == path
    assert becomes_run(service, None, "python3") == (path is None)


def test_a_name_of_a_variable_that_is_not_set(read) -> None:
    lines = DEVICES % '{device_ids: ["${WHICH_}"], capabilities: [gpu]}'
    file = read(f"services:\n  a:\n    image: x\n    {lines}\n")
    with pytest.raises(GpuRequestError) as caught:
        gpu_ask(file, file.services["a"])
    assert caught.value.cause == "not set, and so empty: WHICH_" and caught.value.run == "export WHICH_=…"


def test_capabilities_without_cuda_get_it(read) -> None:
    file = read(f"services:\n  a:\n    image: x\n    {DEVICES % '{count: 1, capabilities: [gpu, utility]}'}\n")
    ask = gpu_ask(file, file.services["a"])
    assert ask is not None and ask.compute_added and ask.request.capabilities == ("compute", "utility")


def test_a_name_that_is_none_is_reported_with_its_line(read) -> None:
    text = """
        services:
          a:
            image: x
            deploy:
              resources:
                reservations:
                  devices:
                    - driver: nvidia
                      device_ids: ["first"]
                      capabilities: [gpu]
        """
    file = read(textwrap.dedent(text))
    with pytest.raises(GpuRequestError, match=r"compose.yaml:8: a: .*'first' does not name a GPU"):
        gpu_ask(file, file.services["a"])
