"""Each warning: its line, and a neighbour without it."""

from __future__ import annotations

from pathlib import Path

import pytest

from seatrial.compose.read import ComposeFile
from seatrial.compose.warnings import check_compose, short_form
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
