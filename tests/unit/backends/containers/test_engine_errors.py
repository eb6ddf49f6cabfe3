"""Engine messages → our errors. Messages of Docker 20.10.24 and Podman 4.3.1 are recordings (a resolver's address
is replaced); those of later versions are from the bug reports named in the catalogue."""

import json
from pathlib import Path

import pytest

from seatrial.backends.containers.errors import ERRORS, pull_error, start_error, unavailable_error
from seatrial.errors import (
    CommandError,
    EngineError,
    EngineUnavailableError,
    GpuContractError,
    ImageError,
    NameInUseError,
    UsageError,
)
from seatrial.findings.catalogue import LAYERS, by_id
from seatrial.findings.match import match_text
from seatrial.system.host import Host
from tables import cases

RECORDED = json.loads((Path(__file__).parents[3] / "recorded" / "engine-errors.json").read_text())

START = {
    "docker-gpus": (GpuContractError, "Docker cannot pass GPUs", "nvidia-ctk runtime configure"),
    "docker-runtime": (GpuContractError, "no runtime named nvidia", "nvidia-ctk runtime configure"),
    "docker-cdi": (GpuContractError, "by CDI name", "--cdi.enabled"),
    "docker-device": (GpuContractError, "/dev/nvidia0 does not exist", "nvidia-modprobe"),
    "docker-image": (ImageError, "nosuch/image:1 is not in Docker's store", "docker pull nosuch/image:1"),
    "docker-name": (NameInUseError, "A container named er2", "docker ps --all --filter name=er2"),
    "docker-mount": (UsageError, "does not exist: /nonexistent", "ls -ld /nonexistent"),
    "docker-program": (ImageError, "cannot run nosuch", "docker run --rm -it --entrypoint sh"),
    "docker-network": (UsageError, "no network named nosuchnet", "docker network ls"),
    "docker-port": (EngineError, "Port 8123", "ss -ltnp 'sport = :8123'"),
    "docker-workdir": (CommandError, "Cannot mkdir: /etc/passwd is not a directory", "seatrial doctor --on docker"),
    "docker-bridge": (EngineError, "lost its bridge br-er", "systemctl restart docker"),
    "docker-28.5-cdi": (GpuContractError, "no CDI device nvidia.com/gpu=0", "nvidia-ctk cdi generate"),
    "docker-28.5-no-daemon": (EngineUnavailableError, "does not respond", "sudo systemctl start docker"),
    "docker-no-daemon": (EngineUnavailableError, "does not respond", "sudo systemctl start docker"),
    "docker-permission": (EngineUnavailableError, "no access to", "usermod -aG docker"),
    "podman-runtime": (GpuContractError, "no runtime named nvidia", "nvidia-ctk"),
    "podman-cdi": (GpuContractError, "no CDI device nvidia.com/gpu=0", "nvidia-ctk cdi generate"),
    "podman-device": (GpuContractError, "/dev/nvidia0 does not exist", "nvidia-modprobe"),
    "podman-image": (ImageError, "nosuch/image:1 is not in Podman's store", "podman pull nosuch/image:1"),
    "podman-name": (NameInUseError, "A container named er2", "podman ps"),
    "podman-mount": (UsageError, "does not exist: /nonexistent", "ls -ld"),
    "podman-program": (ImageError, "cannot run nosuch", "podman run --rm -it --entrypoint sh"),
    "podman-network": (UsageError, "no network named nosuchnet", "podman network ls"),
    "podman-keep-id": (EngineUnavailableError, "too few subordinate user IDs to map", "usermod --add-subuids"),
    "podman-limits": (EngineError, "limits of open files", "--ulimit nofile=4096:4096"),
    "podman-workdir": (CommandError, 'workdir "/workspace" does not exist', "seatrial doctor --on podman"),
}


@pytest.mark.parametrize("key", START)
def test_recorded_start_errors(key):
    kind, message, fix = START[key]
    recorded = RECORDED[key]
    error = start_error(key.split("-")[0], ["x"], recorded["exit_code"], recorded["stderr"])
    assert type(error) is kind
    assert message in error.message
    assert (fix is None) == (error.run is None)
    assert fix is None or fix in error.run


def test_what_nobody_knows_keeps_the_engines_own_words():
    error = start_error("docker", ["docker", "run"], 125, "docker: Error response from daemon: the moon is full\n\n")
    assert type(error) is CommandError
    assert error.message == "Docker could not start the container: the moon is full"
    assert error.exit_code_of_command == 125
    assert type(unavailable_error("podman", "Error: strange")) is EngineUnavailableError


def test_every_error_names_an_entry_of_the_catalogue():
    assert all(by_id(id) for id in ERRORS)


@pytest.mark.parametrize("key", RECORDED)
def test_explain_gives_the_same_advice(key):
    """Check an engine's refusal, and the cause and fix that explain gives for the same text."""
    recorded, engine = RECORDED[key], key.split("-")[0]
    is_pull = "-pull" in key
    reported = (
        pull_error(engine, "<reference>", recorded["stderr"])
        if is_pull
        else start_error(engine, ["x"], recorded["exit_code"], recorded["stderr"])
    )
    found = match_text(recorded["stderr"], LAYERS)
    found = [finding for finding in found if finding.id != "container-not-there"]  # it ended: no failure of a run
    assert bool(found) == (type(reported) is not CommandError)
    if found and key != "podman-pull-short-name":  # explain reads the image's name there, the caller knows it
        assert (reported.cause, reported.run) == (found[0].cause, found[0].fix)


@pytest.mark.parametrize(("engine", "variable"), [("docker", "DOCKER_HOST"), ("podman", "CONTAINER_HOST")])
@pytest.mark.parametrize(
    "stderr", [RECORDED["docker-no-daemon"]["stderr"], "Get tcp://me:pa55word@box:1/info: EOF", ""]
)
def test_an_address_that_is_wrong_is_what_to_look_at(engine, variable, stderr):
    error = unavailable_error(engine, stderr, Host({variable: "tcp://me:pa55word@box:1"}))
    assert error.message == f"{engine.capitalize()} does not respond at {variable}=tcp://box:1"
    assert error.run.startswith(f"unset {variable} ") and "pa55word" not in f"{error.cause}"
    assert variable not in unavailable_error(engine, stderr, Host({})).message


@cases("engine", "printed", "finding")
@pytest.mark.parametrize("addressed", [False, True])
def test_why_an_engine_gave_no_answer_is_the_catalogues_entry(engine, printed, finding, addressed):
    environ = {"DOCKER_HOST": "tcp://box:1", "CONTAINER_HOST": "tcp://box:1"} if addressed else {}
    assert unavailable_error(engine, printed, Host(environ)).finding == finding
