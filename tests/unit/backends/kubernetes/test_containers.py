"""Pods with more containers than ours: init containers, native sidecars, and those that a service mesh injects."""

from __future__ import annotations

from typing import Any

import pytest

from seatrial.backends.kubernetes.pending import Surroundings, explain
from seatrial.backends.kubernetes.pods import read_pod, state_of
from tables import cases

RUNNING: dict[str, Any] = {"running": {"startedAt": "2026-11-21T00:00:05Z"}}
INITIALIZING: dict[str, Any] = {"waiting": {"reason": "PodInitializing"}}
TRAIN, PROXY, INIT = "ghcr.io/me/train:1", "docker.io/istio/proxyv2:1.27.1", "alpine:3.10"


def _ended(code: int) -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": "Completed" if code == 0 else "Error"}}


def _status(name: str, image: str, state: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"name": name, "image": image, "imageID": f"{image}@sha256:{name}", "state": state, **more}


def _item(
    phase: str, containers: list[dict[str, Any]], inits: tuple[dict[str, Any], ...] = (), policy: str = "Never"
) -> dict[str, Any]:
    """Sort statuses by name as a kubelet of 1.33 does, so that a sidecar may come first."""
    spec = {
        "restartPolicy": policy,
        "nodeName": "gpu-1",
        "containers": [
            {"name": "istio-proxy", "image": PROXY, "resources": {"limits": {"cpu": "2"}}},
            {"name": "train", "image": TRAIN, "resources": {"limits": {"nvidia.com/gpu": "4"}}},
        ],
    }
    meta = {"name": "run-0-abcde", "uid": "u", "creationTimestamp": "2026-11-21T00:00:00Z", "labels": {}}
    status = {"phase": phase, "containerStatuses": containers, "initContainerStatuses": list(inits)}
    return {"metadata": meta, "spec": spec, "status": status}


def _both(proxy: dict[str, Any], train: dict[str, Any]) -> list[dict[str, Any]]:
    return [_status("istio-proxy", PROXY, proxy, restartCount=3), _status("train", TRAIN, train, restartCount=0)]


@pytest.mark.parametrize("code", [0, 7])
def test_a_sidecar_that_never_ends_does_not_hold_up_the_end(code: int) -> None:
    pod = read_pod(_item("Running", _both(RUNNING, _ended(code))))
    assert pod.ended and pod.outlived_by == ("istio-proxy",) and pod.exit_code == code
    state = state_of([pod], 1, "active")
    assert (state.status, state.exit_code) == ("exited", code)


def test_a_container_that_is_started_again_in_place_has_not_ended() -> None:
    """restartPolicy OnFailure, as a PyTorchJob has it."""
    assert not read_pod(_item("Running", _both(RUNNING, _ended(1)), policy="OnFailure")).ended
    assert read_pod(_item("Running", _both(RUNNING, _ended(0)), policy="OnFailure")).ended


@cases("reason", "message", "image")
def test_the_image_that_cannot_be_pulled_is_named(reason: str, message: str, image: str) -> None:
    waiting = {"waiting": {"reason": reason, "message": message}}
    item = _item("Pending", _both(INITIALIZING, INITIALIZING), (_status("init-pytorch", INIT, waiting),))
    finding = explain(read_pod(item), reason, message, Surroundings(item))
    assert finding is not None and finding.message.endswith(image)


def test_a_native_sidecar_that_runs_is_no_trouble() -> None:
    """An init container with restartPolicy Always (1.29 and later) runs next to ours and ends after it."""
    native = (_status("istio-proxy", PROXY, RUNNING, started=True), _status("setup", INIT, _ended(0)))
    train = [_status("train", TRAIN, RUNNING)]
    pod = read_pod(_item("Running", train, native))
    assert pod.waiting is None and pod.started and not pod.ended
    pod = read_pod(_item("Running", [_status("train", TRAIN, _ended(0))], native))
    assert not pod.outlived_by, "the kubelet ends it; the pod's own phase tells when"


def test_an_init_container_that_keeps_failing_is_reported_and_ours_is_not() -> None:
    crashing = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s restarting failed container"}}
    item = _item("Pending", _both(INITIALIZING, INITIALIZING), (_status("istio-init", INIT, crashing),), "OnFailure")
    pod, around = read_pod(item), Surroundings(item)
    assert pod.waiting is not None
    finding = explain(pod, *pod.waiting, around)
    assert finding is not None and finding.message.endswith("keeps failing: istio-init")
    assert finding.fix == "kubectl logs run-0-abcde -c istio-init"
    ours = read_pod(_item("Running", _both(RUNNING, crashing), policy="OnFailure"))
    assert ours.waiting is not None and explain(ours, *ours.waiting, around) is None
