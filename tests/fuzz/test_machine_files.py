"""Files of the machine: CDI specs and kubeconfigs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import strategies as st

from fuzz.attack import attack, one_case
from fuzz.hostile import BOMB, as_json, changed_values, nearly
from seatrial.backends.containers.cdi import CdiSpecs, read_specs
from seatrial.backends.kubernetes.client import Cluster
from seatrial.system.host import Host

SPEC: dict[str, Any] = {
    "cdiVersion": "0.5.0",
    "kind": "nvidia.com/gpu",
    "devices": [
        {"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0", "hostPath": "/dev/null"}]}},
        {"name": "all", "containerEdits": {"deviceNodes": [{"path": "/dev/null"}]}},
    ],
    "containerEdits": {
        "env": ["NVIDIA_VISIBLE_DEVICES=void"],
        "mounts": [{"hostPath": "/bin/sh", "containerPath": "/bin/x", "options": ["ro"]}],
        "hooks": [{"hookName": "createContainer", "path": "/usr/bin/nvidia-cdi-hook"}],
    },
}
KUBECONFIG: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "here",
    "clusters": [{"name": "here", "cluster": {"server": "https://127.0.0.1:1", "insecure-skip-tls-verify": True}}],
    "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me", "namespace": "default"}}],
    "users": [{"name": "me", "user": {"token": "x"}}],
}


def read_spec(folder: Path, name: str, data: bytes) -> CdiSpecs:
    """Findings are what refuses here: nothing is raised at all."""
    (folder / name).write_bytes(data)
    found = read_specs([folder])
    for finding in found.findings:
        for text in (finding.message, finding.cause or "", finding.fix or "", *finding.evidence):
            text.encode()
        assert len(finding.message) < 3000
    for device in found.names:
        assert device.isprintable()
    return found


class _Nothing(Exception):
    """Raised by nobody."""


def test_cdi_json(tmp_path: Path, cases: int) -> None:
    inputs = st.one_of(nearly(json.dumps(SPEC, indent=1)), changed_values(SPEC).map(as_json))
    attack(lambda data: read_spec(tmp_path, "a.json", data), inputs, cases, refuses=_Nothing)


def test_cdi_yaml(tmp_path: Path, cases: int) -> None:
    inputs = st.one_of(nearly(yaml.safe_dump(SPEC)), changed_values(SPEC).map(as_json))
    attack(lambda data: read_spec(tmp_path, "a.yaml", data), inputs, cases, refuses=_Nothing)


CDI_KNOWN = {
    "alias bomb": ("a.yaml", BOMB + "kind: n.com/gpu\ndevices: [{name: *i}]\n"),
    "deep": ("a.yaml", "[" * 100_000),
    "deep json": ("a.json", "[" * 100_000),
    "deep names": ("a.json", '{"kind": "a/b", "devices": [{"name": ' + "[" * 5000 + "]" * 5000 + "}]}"),
    "half a surrogate": ("a.json", '{"kind": "a/b", "devices": [{"name": "\\ud800"}]}'),
    "half a surrogate in a path": (
        "a.json",
        '{"kind": "a/b", "devices": [{"name": "x", "containerEdits": {"mounts": [{"hostPath": "\\ud800"}]}}]}',
    ),
    "a null byte in a path": (
        "a.json",
        '{"kind": "a/b", "devices": [{"name": "x", "containerEdits": {"mounts": [{"hostPath": "/\\u0000"}]}}]}',
    ),
    "a long number": ("a.json", "9" * 100_000),
    "a name of many digits": ("a.yaml", "kind: a/b\ndevices: [{name: 0x" + "f" * 50_000 + "}]"),
    "an escape": ("a.json", '{"kind": "a/b", "devices": [{"name": "\\u001b[2J"}]}'),
    "many devices": ("a.json", '{"kind": "a/b", "devices": [' + ",".join(['{"name": "a"}'] * 100_000) + "]}"),
    "not UTF-8": ("a.json", b"\xff\xfe{"),
}


@pytest.mark.parametrize("known", CDI_KNOWN)
def test_known_cdi(tmp_path: Path, known: str) -> None:
    name, text = CDI_KNOWN[known]
    data = text if isinstance(text, bytes) else text.encode()
    assert one_case(lambda data: read_spec(tmp_path, name, data), data, _Nothing) is None
    assert read_spec(tmp_path, name, data).findings


def test_cdi_odd_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.json")
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "device.json").symlink_to("/dev/zero")
    (tmp_path / "itself.json").symlink_to("itself.json")
    with (tmp_path / "large.json").open("wb") as file:
        file.truncate(2**31)
    one_case(lambda folder: read_specs([folder]), tmp_path)
    assert len(read_specs([tmp_path]).findings) == 5


def ask(path: Path, data: bytes) -> object:
    """Sign in with it. Nothing listens on the port, so that this ends in an error of ours at the latest."""
    path.write_bytes(data)
    environ = {"KUBECONFIG": str(path), "HOME": str(path.parent)}
    cluster = Cluster(Host(environ))
    return cluster.namespace, cluster.server  # which doctor prints


def test_kubeconfig(tmp_path: Path, cases: int) -> None:
    pytest.importorskip("kr8s")
    inputs = st.one_of(nearly(yaml.safe_dump(KUBECONFIG)), changed_values(KUBECONFIG).map(as_json))
    attack(lambda data: ask(tmp_path / "config", data), inputs, cases)


KUBE_KNOWN = {
    "alias bomb": BOMB + "clusters: *i\n",
    "deep": "[" * 100_000,
    "nothing": "",
    "a list": "- a\n",
    "no clusters": "{}",
    "a long number": "clusters: " + "9" * 5000,
    "half a surrogate": 'clusters: "\\ud800"',
    "a merge": "a: &a {k: 1}\nb: {<<: *a}\n",
}


@pytest.mark.parametrize("known", KUBE_KNOWN)
def test_known_kubeconfig(tmp_path: Path, known: str) -> None:
    pytest.importorskip("kr8s")
    assert one_case(lambda data: ask(tmp_path / "config", data), KUBE_KNOWN[known].encode()) is not None
