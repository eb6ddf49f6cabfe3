"""Each warning: its line, and a neighbour without it."""

from __future__ import annotations

from pathlib import Path

import pytest

from seatrial.compose.read import ComposeFile
from seatrial.compose.warnings import check_compose, short_form

GPU = "deploy: {resources: {reservations: {devices: [{driver: nvidia, %s, capabilities: [gpu]}]}}}"

FIRST, SECOND, BOTH = (GPU % f"device_ids: {ids}" for ids in ('["0"]', '["1"]', '["1", "0"]'))


def found(file: ComposeFile) -> set[tuple[int, str]]:
    return {(warning.place.line, warning.id) for warning in check_compose(file)}


FILES = {
    "one GPU for two": (
        f"services:\n  a:\n    image: x\n    {FIRST}\n  b:\n    image: x\n    {BOTH}\n",
        {(7, "same-gpu")},
    ),
    "one GPU for two, one after the other": (
        f"services:\n  a:\n    image: x\n    {FIRST}\n  b:\n    image: x\n"
        f"    {FIRST}\n    depends_on: {{a: {{condition: service_completed_successfully}}}}\n",
        set(),
    ),
    "every GPU beside another": (
        f"services:\n  a:\n    image: x\n    {GPU % 'count: all'}\n  b:\n    image: x\n    {GPU % 'count: 1'}\n",
        {(4, "same-gpu")},
    ),
    "counts": (
        f"services:\n  a:\n    image: x\n    {GPU % 'count: 1'}\n  b:\n    image: x\n    {GPU % 'count: 1'}\n",
        set(),
    ),
    "another maker's": ("services:\n  a:\n    image: x\n    devices: [/dev/kfd]\n", {(4, "not-nvidia")}),
    "a variable alone": (
        "services:\n  a:\n    image: x\n    environment:\n      - NVIDIA_VISIBLE_DEVICES=all\n",
        {(5, "variable-alone")},
    ),
    "for Swarm": (
        "services:\n  a:\n    image: x\n    deploy:\n      resources:\n        reservations:\n"
        "          generic_resources:\n            - discrete_resource_spec: {kind: gpu, value: 1}\n",
        {(7, "for-swarm")},
    ),
    "counted from outside": (
        f"services:\n  a:\n    image: x\n    {SECOND}\n    environment:\n      - CUDA_VISIBLE_DEVICES=1\n",
        {(6, "counted-from-outside")},
    ),
    "counted from inside": (
        f"services:\n  a:\n    image: x\n    {GPU % 'count: 2'}\n    environment: {{CUDA_VISIBLE_DEVICES: '1'}}\n",
        set(),
    ),
    "replicas": (
        f"services:\n  a:\n    image: x\n    scale: 2\n    {GPU % 'count: 1'}\n",
        {(4, "replicas-share")},
    ),
    "workers in the command": (
        "services:\n  a:\n    image: x\n    command: python train.py --num-workers 4\n",
        {(2, "shm-size")},
    ),
    "workers and room": (
        "services:\n  a:\n    image: x\n    shm_size: 2gb\n    command: python train.py --workers=4\n",
        set(),
    ),
    "workers and the host's": ("services:\n  a: {image: x, ipc: host, command: python train.py --workers 4}\n", set()),
    "a server's workers": (
        "services:\n  a: {image: x, command: mlflow server --workers 4, ports: ['18000:5000']}\n",
        set(),
    ),
    "a server of a network with workers that load data": (
        "services:\n  a: {image: x, command: python api.py --num-workers 4, ports: ['18000:5000']}\n",
        {(2, "shm-size")},
    ),
    "no workers": ("services:\n  a: {image: x, command: python train.py --num-workers 0}\n", set()),
    "a framework that has them": (
        f"services:\n  a:\n    image: x\n    command: yolo train data=coco8.yaml\n    {GPU % 'count: 1'}\n",
        {(2, "shm-size")},
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_what_is_found(read, name: str) -> None:
    text, expected = FILES[name]
    assert found(read(text)) == expected


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
