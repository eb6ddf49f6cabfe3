"""Each rule of the lint: what it says and where, what --fix makes of it, and a neighbour that it leaves alone."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from seatrial.pipelines.compose.fix import fixed_path, fixed_text
from seatrial.pipelines.compose.lint import check_compose
from seatrial.pipelines.compose.reading import ComposeFile

GPU = "deploy: {resources: {reservations: {devices: [{driver: nvidia, %s, capabilities: [gpu]}]}}}"

FIRST, SECOND, BOTH = (GPU % f"device_ids: {ids}" for ids in ('["0"]', '["1"]', '["1", "0"]'))


def found(file: ComposeFile) -> set[tuple[int, str]]:
    return {(remark.place.line, remark.id) for remark in check_compose(file)}


FILES = {
    "version": ("version: '3.8'\nservices:\n  a: {image: x}\n", {(1, "version-ignored")}),
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
    "two ways": (
        f"services:\n  a:\n    image: x\n    runtime: nvidia\n    {GPU % 'count: 1'}\n",
        {(4, "gpus-twice")},
    ),
    "the old runtime": ("services:\n  a:\n    image: x\n    runtime: nvidia\n", {(4, "runtime-nvidia")}),
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
    "no count": (
        "services:\n  a:\n    image: x\n    deploy:\n      resources:\n        reservations:\n          devices:\n"
        "            - capabilities: [gpu]\n",
        {(7, "no-count")},
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
    "a port twice": (
        "services:\n  a:\n    image: x\n    ports: ['18000:80']\n  b:\n    image: x\n    ports:\n      - '18000:81'\n",
        {(8, "port-twice")},
    ),
    "a port on two addresses": (
        "services:\n  a: {image: x, ports: ['127.0.0.1:18000:80']}\n  b: {image: x, ports: ['127.0.0.2:18000:80']}\n",
        set(),
    ),
    "a port over TCP and UDP": ("services:\n  a: {image: x, ports: ['18000:80', '18000:80/udp']}\n", set()),
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
    "a training started again": (
        f"services:\n  a:\n    image: x\n    command: python train.py\n    restart: always\n    {GPU % 'count: 1'}\n",
        {(5, "trains-for-ever")},
    ),
    "a service started again": ("services:\n  a: {image: x, command: python api.py, restart: always}\n", set()),
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
    remarks = check_compose(read(text))
    assert [(remark.place.line, remark.id) for remark in remarks] == [(2, "shm-size")]
    assert "train.py:2" in remarks[0].message


def test_a_port_that_is_taken(read) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        file = read(f"services:\n  a:\n    image: x\n    ports: ['127.0.0.1:{port}:80']\n")
        assert found(file) == {(4, "port-taken")}
    assert found(file) == set()


BEFORE = """\
# what a tutorial has
version: "3.8"
services:
  prep:
    image: x            # its data
    command: python prep.py
    volumes:
      - data:/data
  train:
    image: x
    depends_on:
      - prep
      - db
    command: python train.py --num-workers 4
    volumes: [data:/data]
  db:
    image: postgres
    ports: ["15432:5432"]
volumes:
  data:
"""


def test_fix_mends_and_keeps_the_rest(read, tmp_path: Path) -> None:
    file = read(BEFORE)
    remarks = check_compose(file)
    text, answered = fixed_text(file.lines.documents[0], remarks)
    assert {remark.id for remark in answered} == {"version-ignored", "starts-too-early", "shm-size"}
    assert check_compose(read(text)) == []
    assert "# what a tutorial has" in text and "image: x            # its data" in text
    assert read(text).services["train"].depends_on == {
        "prep": "service_completed_successfully",
        "db": "service_started",
    }
    assert fixed_path(tmp_path / "docker-compose.yml").name == "docker-compose.fixed.yml"


@pytest.mark.parametrize(
    "written", ["depends_on: [prep]", "depends_on:\n    - prep", "depends_on:\n    -   prep   # first"]
)
def test_fix_mends_each_way_to_write_it(read, written: str) -> None:
    text = f"""services:
  prep: {{image: x, volumes: [data:/d]}}
  train:
    image: x
    {written}
    volumes: [data:/d]
volumes: {{data: }}
"""
    file = read(text)
    mended, answered = fixed_text(file.lines.documents[0], check_compose(file))
    assert len(answered) == 1 and check_compose(read(mended)) == []
    assert read(mended).services["train"].volumes == file.services["train"].volumes


def test_fix_with_lines_of_windows_and_a_mark_at_the_start(read, tmp_path: Path) -> None:
    file = read("\ufeffversion: '3'\r\nservices:\r\n  a: {image: x}\r\n")
    text, answered = fixed_text(file.lines.documents[0], check_compose(file))
    assert len(answered) == 1 and text.startswith("services:")


def test_a_variable_that_is_not_set_is_told_with_its_line(read: Callable[..., ComposeFile]) -> None:
    file = read(
        """\
        services:
          a:
            image: x
            command: echo $$NOT_ONE ${GIVEN} ${LACKS:-default}
            environment:
              KEY: ${LACKING}
        """,
        GIVEN="1",
    )
    found = [each for each in check_compose(file) if each.id == "variable-unset"]
    assert [(each.place.line, each.message.split()[2]) for each in found] == [(6, "LACKING")]


@pytest.mark.parametrize(
    "name", ["x", "a/b/c:1", "ghcr.io/o/n:v1.2-3", "localhost:5000/x", "h:1/x@sha256:0aF", "a__b", "a---b", "Reg.io/x"]
)
def test_names_of_images_are_taken(read: Callable[..., ComposeFile], name: str) -> None:
    assert read(f"services: {{a: {{image: '{name}'}}}}").services["a"].image == name


def test_proposed_ports_are_nobodys(read) -> None:
    ports = "ports: ['18000:80', '18001:81']"
    remarks = check_compose(read(f"services:\n  a: {{image: x, {ports}}}\n  b: {{image: x, {ports}}}\n"))
    assert [each.fix for each in remarks if each.id == "port-twice"] == ['"18002:80"', '"18003:81"']
