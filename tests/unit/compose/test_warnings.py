"""Each warning, with a neighbour without it; and each way in which Compose files ask for GPUs, in one request."""

from __future__ import annotations

from pathlib import Path

import pytest

from seatrial.compose.plan import becomes_run
from seatrial.compose.read import ComposeFile
from seatrial.compose.review import check_compose, short_form
from seatrial.compose.service import Service, foreign_ask
from seatrial.errors import GpuRequestError
from tables import constant

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


def test_requests(services) -> None:
    file, found = services([f"\n    image: x\n    {lines}" for lines, _ in ASKS.values()])
    asks = dict(zip(ASKS, map(file.gpu_ask, found), strict=True))
    assert {name: str(ask.request) for name, ask in asks.items()} == {name: text for name, (_, text) in ASKS.items()}
    assert not any(ask.compute_added for ask in asks.values())


def test_services_without_a_request(services) -> None:
    file, found = services([f"\n    image: x\n    {lines}" for lines in constant(__file__, "NO_ASKS")])
    assert {each.name: file.gpu_ask(each) for each in found} == {each.name: None for each in found}


def test_the_short_key(services) -> None:
    """Read configurations as Compose prints them: before 2.30 they lack the key."""
    file, _ = services(["{image: x}"])
    for row in constant(__file__, "SHORT_KEYS"):
        service, expected = Service("a", row["config"], "x"), row.get("expected")
        ask = file.gpu_ask(service)
        assert (str(ask.request) if ask else None) == expected, row
        assert foreign_ask(service) == (("gpus",) if expected is None else None), "it is one or the other"


def test_accelerators_of_others_are_no_run_on_the_cpu(services) -> None:
    rows = constant(__file__, "ACCELERATORS")
    _, found = services([f"\n    image: x\n    {row['lines']}" for row in rows])
    assert [list(foreign_ask(each) or ()) for each in found] == [row.get("path", []) for row in rows]
    assert [becomes_run(each, None, "python3") for each in found] == ["path" not in row for row in rows]


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
