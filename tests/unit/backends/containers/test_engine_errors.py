"""Engine messages → our errors. Messages of Docker 20.10.24 and Podman 4.3.1 are recordings (a resolver's address
is replaced); those of later versions are from the bug reports named in the catalogue."""

import json
from pathlib import Path

import pytest

from seatrial import errors
from seatrial.backends.containers.errors import ERRORS, pull_error, start_error, unavailable_error
from seatrial.errors import CommandError, EngineUnavailableError
from seatrial.findings.catalogue import LAYERS, by_id
from seatrial.findings.match import match_text
from seatrial.system.host import Host
from tables import cases, constant

RECORDED = json.loads((Path(__file__).parents[3] / "recorded" / "engine-errors.json").read_text())

START = constant(__file__, "START")


@pytest.mark.parametrize("key", START)
def test_recorded_start_errors(key):
    name, message, fix = START[key]
    kind = getattr(errors, name)
    recorded = RECORDED[key]
    error = start_error(key.split("-")[0], ["x"], recorded["exit_code"], recorded["stderr"])
    assert type(error) is kind
    assert message in error.message
    assert fix in error.run


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
