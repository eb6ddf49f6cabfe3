"""Each warning, with a neighbour without it; and each way in which Compose files ask for GPUs, in one request."""

from __future__ import annotations

from pathlib import Path

import pytest

from seatrial.compose.plan import becomes_run
from seatrial.compose.read import ComposeFile
from seatrial.compose.review import check_compose, short_form
from seatrial.compose.service import Service, foreign_ask
from seatrial.errors import GpuRequestError
from tables import cases, constant

GPU = "deploy: {resources: {reservations: {devices: [{driver: nvidia, %s, capabilities: [gpu]}]}}}"
FIRST, SECOND, BOTH = (GPU % f"device_ids: {ids}" for ids in ('["0"]', '["1"]', '["1", "0"]'))


def found(file: ComposeFile) -> set[tuple[int, str]]:
    return {(warning.place.line, warning.id) for warning in check_compose(file)}


FILES = constant(__file__, "FILES")


@pytest.mark.parametrize("name", FILES)
def test_what_is_found(read, name: str) -> None:
    text, expected = FILES[name]
    assert found(read(text)) == set(expected)


def test_workers_in_the_script_that_is_built_in(read, tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "Dockerfile").write_text("FROM x\n")
    (tmp_path / "app" / "train.py").write_text("import torch\nload = DataLoader(data, num_workers=4)\n")
    (tmp_path / "app" / "other.py").write_text("load = DataLoader(data, num_workers=0)\n")
    text = "services:\n  a: {build: ./app, command: python train.py}\n  b: {build: ./app, command: python other.py}\n"
    warnings = check_compose(read(text))
    assert [(warning.place.line, warning.id) for warning in warnings] == [(2, "shm-size")]
    assert "train.py:2" in warnings[0].message


def test_readers_that_wait_are_one_warning_with_the_long_form(read) -> None:
    text = """services:
  prep: {image: x, volumes: [data:/d]}
  train:
    image: x
    depends_on: [prep]
    volumes: [data:/d]
  evaluate: {image: x, depends_on: [prep], volumes: [data:/d]}
volumes: {data: }
"""
    warning = short_form(read(text))
    assert warning is not None and warning.place.line == 5
    assert "train waits until prep has ended well, evaluate waits until prep" in warning.message
    assert warning.fix == "depends_on: {prep: {condition: service_completed_successfully}}"
    assert short_form(read(text.replace("[prep]", warning.fix.removeprefix("depends_on: ")))) is None


DEVICES = "deploy: {resources: {reservations: {devices: [%s]}}}"
ASKS = constant(__file__, "ASKS")


@pytest.mark.parametrize("name", ASKS)
def test_a_request(read, name: str) -> None:
    lines, expected = ASKS[name]
    file = read(f"services:\n  a:\n    image: x\n    {lines}\n")
    ask = file.gpu_ask(file.services["a"])
    assert ask is not None and str(ask.request) == expected and not ask.compute_added


@cases("lines")
def test_none(read, lines: str) -> None:
    file = read(f"services:\n  a:\n    image: x\n    {lines}\n")
    assert file.gpu_ask(file.services["a"]) is None


@cases("config", "expected")
def test_the_short_key(read, config: dict[str, object], expected: str | None) -> None:
    """Return the output of ``docker compose config``; Compose before 2.30 lacks the key."""
    file, service = read("services:\n  a:\n    image: x\n"), Service("a", config, "x")
    ask = file.gpu_ask(service)
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
        file.gpu_ask(file.services["a"])
    assert caught.value.cause == "not set, and so empty: WHICH_" and caught.value.run == "export WHICH_=…"


def test_capabilities_without_cuda_get_it(read) -> None:
    file = read(f"services:\n  a:\n    image: x\n    {DEVICES % '{count: 1, capabilities: [gpu, utility]}'}\n")
    ask = file.gpu_ask(file.services["a"])
    assert ask is not None and ask.compute_added and ask.request.capabilities == ("compute", "utility")


def test_a_name_that_is_none_is_reported_with_its_line(read) -> None:
    device = '{driver: nvidia, device_ids: ["first"], capabilities: [gpu]}'
    file = read(f"services:\n  a:\n    image: x\n    {DEVICES % device}\n")
    with pytest.raises(GpuRequestError, match=r"compose.yaml:4: a: .*'first' does not name a GPU"):
        file.gpu_ask(file.services["a"])
