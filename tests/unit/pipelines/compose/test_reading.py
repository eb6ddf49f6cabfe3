"""Files that are none: one sentence with the line. Files that are: what Compose makes of them."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from seatrial.errors import SeatrialError, UsageError
from seatrial.pipelines.compose.client import Compose
from seatrial.pipelines.compose.file_names import find_files, profiles_in, up_command, with_profiles
from seatrial.pipelines.compose.keys import SERVICE_KEYS
from seatrial.pipelines.compose.reading import read_compose
from seatrial.pipelines.compose.service import ImageSays

SCHEMA = Path(__file__).parents[5] / "shared" / "schemas" / "compose-spec.json"

BAD = {
    "a tab": ("services:\n  a:\n\timage: x\n", 3, "not YAML"),
    "cut in the middle of a word": ('services:\n  a:\n    image: "x\n', 3, "not YAML"),
    "no mapping": ("hello\n", 1, "begins with a key"),
    "a list of services": ("services:\n- a\n", 1, "services"),
    "an unknown key": ("services:\n  a:\n    image: x\n    kommand: ls\n", 4, "did you mean command?"),
    "an unknown key far down": (
        "services:\n  a:\n    image: x\n    deploy:\n      resources:\n        reservations:\n          gpu: 1\n",
        7,
        "knows no key gpu",
    ),
    "a key twice": ("services:\n  a:\n    image: x\n    image: y\n", 4, "image is written twice"),
    "a cycle": (
        "services:\n  a:\n    image: x\n    depends_on: [b]\n  b:\n    image: x\n    depends_on: [a]\n",
        4,
        "circle: a → b → a",
    ),
    "an unknown service": (
        "services:\n  a:\n    image: x\n    depends_on:\n      - zoo\n",
        5,
        "zoo, which is no service",
    ),
    "an undeclared volume": (
        "services:\n  a:\n    image: x\n    volumes:\n      - ./here:/h\n      - data:/data\n",
        6,
        "volume data, which the file does not declare",
    ),
    "a missing Dockerfile": ("services:\n  a:\n    build: .\n", 3, "no Dockerfile"),
    "a missing folder": ("services:\n  a:\n    build: ./nowhere\n", 3, "nowhere, which is not there"),
    "a missing env file": (
        "services:\n  a:\n    image: x\n    env_file: prod.env\n",
        4,
        "prod.env, which is not there",
    ),
    "a missing secret": (
        "services:\n  a:\n    image: x\n    secrets: [key]\nsecrets:\n  key:\n    file: ./key.txt\n",
        6,
        "key.txt",
    ),
    "a secret of an unset variable": (
        "services:\n  a:\n    image: x\n    secrets: [key]\nsecrets:\n  key:\n    environment: KEY_\n",
        6,
        "the secret key is the variable KEY_, which is not set",
    ),
    "an unset variable": ("services:\n  a:\n    image: ${WHICH:?say which}\n", 3, "WHICH is not set: say which"),
    "an image of variables that are not set": ("services:\n  a:\n    image: ${REPO_}:${TAG_}\n", 3, "no image's name"),
    "an extended service that is not there": (
        "services:\n  a:\n    extends: {service: zz}\n",
        3,
        "a extends zz, and the file has no such service",
    ),
    "count and device_ids": (
        "services:\n  a:\n    image: x\n    deploy:\n      resources:\n        reservations:\n          devices:\n"
        '            - {driver: nvidia, count: 1, device_ids: ["0"], capabilities: [gpu]}\n',
        7,
        "exclusive",
    ),
    "a short form that came out wrong": (
        "services:\n  a:\n    image: x\n    volumes:\n      - ${NOWHERE}:/data\n",
        5,
        "cannot be read",
    ),
    "a wrong type": ("services:\n  a:\n    image: 5\n", 3, "must be a string"),
    "a folder without ./": (
        "services:\n  a:\n    image: x\n    volumes:\n      - data/raw:/data\n",
        5,
        "takes that for the name of a volume",
    ),
    "a size that is none": ("services:\n  a:\n    image: x\n    shm_size: 16 gigs\n", 4, "invalid s"),
    "a dollar that is the shell's": (
        "services:\n  a:\n    image: x\n    command: sh -c 'echo ${A-b'\n",
        4,
        "has a dollar that Compose cannot read",
    ),
    "a pair in a list": (
        "services:\n  a:\n    image: x\n    environment:\n      - A=1\n      - B: true\n",
        6,
        "this entry of it is NAME: VALUE",
    ),
    "a port of too many parts": (
        "services:\n  a:\n    image: x\n    ports:\n      - 8888:8888:8888:tcp\n",
        5,
        "cannot be read as a port",
    ),
    "a condition that is none": (
        "services:\n  a:\n    image: x\n    depends_on: {b: {condition: done}}\n  b: {image: x}\n",
        4,
        "condition: must be one of the following",
    ),
    "a file of version 1": ("train:\n  image: x\n", 1, "stands outside of services:"),
    "neither image nor build": ("services:\n  a:\n    command: ls\n", 2, "neither an image nor a build"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_one_sentence_with_its_line(read, name: str) -> None:
    text, line, words = BAD[name]
    with pytest.raises(UsageError) as caught:
        read(text)
    assert f"compose.yaml:{line}: " in caught.value.message and words in caught.value.message
    assert caught.value.run and "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("services:\n  a:\n    image: x\n    volumes: ['data/raw:/data']\n", "write ./data/raw"),
        ("services:\n  a:\n    image: x\n    resources: {}\n", "resources belongs under deploy:"),
        ("services:\n  a:\n    image: x\n    command: [a, 0.5]\n", 'write it in quotes, "0.5"'),
        ("services:\n  a:\n    image: x\n    command: [a, [b]]\n", None),
        ("services:\n  a:\n    image: x\n    gpus_: 1\n", None),
        (
            "services:\n  a:\n    image: x\n    deploy: {resources: {reservations: {devices: [{count: 1}]}}}\n",
            "capabilities: [gpu]",
        ),
        (
            "services:\n  a:\n    image: x\n    deploy: {resources: {limits: {devices: []}}}\n",
            "devices belongs under deploy: resources: reservations:",
        ),
    ],
)
def test_the_cause_says_what_to_write(read, text: str, cause: str | None) -> None:
    with pytest.raises(UsageError) as caught:
        read(text)
    assert caught.value.cause is None if cause is None else cause in str(caught.value.cause)


def test_a_kubernetes_manifest_is_called_one(read) -> None:
    with pytest.raises(UsageError, match="is a Kubernetes manifest") as caught:
        read("apiVersion: batch/v1\nkind: Job\nmetadata: {name: a}\n")
    assert "kubectl apply -f " in str(caught.value.run)


def test_a_file_that_adds_to_another_is_given_with_it(read, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "compose.yaml").write_text("services:\n  a: {image: x}\n")
    (tmp_path / "gpu.yaml").write_text("services:\n  a:\n    runtime: nvidia\n")
    with pytest.raises(UsageError) as caught:
        read_compose([tmp_path / "gpu.yaml"], Compose(("docker", "compose"), (), dict(os.environ)))
    assert caught.value.run == "seatrial up -f compose.yaml -f gpu.yaml"


def test_advice_names_the_files_that_were_given(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "compose.yaml").touch()
    own, gpu = tmp_path / "compose.yaml", tmp_path / "gpu.yaml"
    assert up_command([own], {}) == "seatrial up"
    assert up_command([own, gpu], {}) == "seatrial up -f compose.yaml -f gpu.yaml"
    assert up_command([tmp_path / "sub" / "compose.yaml"], {}) == "seatrial up -f sub/compose.yaml"
    assert (
        up_command([own], {"COMPOSE_PROFILES": "a,b c"}, ["train"]) == "seatrial up --profile a --profile 'b c' train"
    )


def test_a_service_that_is_not_there_is_answered_with_the_one_that_is_meant(read, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = "services:\n  prepare: {image: x}\n  train: {image: x, profiles: [gpu]}\n"
    for name, run in (("traim", "train"), ("zzzzzz", "prepare")):
        with pytest.raises(UsageError, match=f'compose.yaml has no service "{name}"') as caught:
            read(text, name)
        assert caught.value.run == f"seatrial up {run}"
    with pytest.raises(UsageError) as caught:
        read(text, "traim", COMPOSE_PROFILES="gpu")
    assert caught.value.run == "seatrial up --profile gpu train"


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("services:\n\ta:\n", 2, "a tab at the beginning of a line"),
        ("services:\n  a:\n    command: [a,\n", 3, "ends inside of a bracket or a quote"),
        ("services:\n  a:\n    <<: *gpu\n", 3, "undefined alias"),
    ],
)
def test_yaml_that_is_none_is_told_in_plain_words(read, text: str, line: int, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(text)
    assert f"compose.yaml:{line}: this is not YAML: " in caught.value.message and words in caught.value.message


def test_a_secret_of_a_variable_that_is_set(read, tmp_path: Path) -> None:
    text = "services:\n  a: {image: x, secrets: [key]}\n  b: {image: x}\nsecrets:\n  key: {environment: KEY_}\n"
    assert set(read(text, KEY_="1").services) == {"a", "b"}
    assert set(read(text, "b").services) == {"b"}  # which has none
    (tmp_path / ".env").write_text("export KEY_=1\n")
    assert set(read(text).services) == {"a", "b"}
    for odd in ("KEY_(", ".*"):  # the file's words are no pattern
        with pytest.raises(UsageError, match="which is not set"):
            read(text.replace("KEY_", f"'{odd}'"))


def test_what_another_waits_for_is_a_task(read) -> None:
    text = """
        services:
          pull: {image: x, tty: true}
          train: {image: x, depends_on: {pull: {condition: service_completed_successfully}}}
          shell: {image: x, tty: true}
        """
    services = read(text).services
    assert services["pull"].is_task and not services["shell"].is_task


def test_the_user_of_a_service(read) -> None:
    service = read("services:\n  a: {image: x, user: '1000:1000'}\n").services["a"]
    assert service.user == "1000"
    assert replace(service, config={}).user == "root"
    assert replace(service, config={}, says=ImageSays(user="jovyan")).user == "jovyan"


def test_variables_that_are_not_set_are_named_as_the_cause(read) -> None:
    with pytest.raises(UsageError) as caught:
        read("services:\n  a:\n    image: x\n    volumes: ['${NOWHERE}:/data']\n")
    assert caught.value.cause == "not set, and so empty: NOWHERE"


def test_profiles_are_named_where_none_is_active(read) -> None:
    with pytest.raises(UsageError) as caught:
        read("services:\n  a: {image: x, profiles: [gpu]}\n  b: {image: x, profiles: [cpu]}\n")
    assert caught.value.cause is not None and "gpu" in caught.value.cause and "cpu" in caught.value.cause

    assert caught.value.run is not None and caught.value.run.endswith("compose.yaml --profile cpu")


def test_profiles_are_added_to_those_of_the_environment(read) -> None:
    text = "services:\n  a: {image: x, profiles: [gpu]}\n  b: {image: x, profiles: [cpu]}\n  c: {image: x}\n"
    environ = with_profiles({"COMPOSE_PROFILES": "cpu"}, ["gpu", "cpu"])
    assert environ == {"COMPOSE_PROFILES": "cpu,gpu"} and with_profiles({}, []) == {}
    assert set(read(text, **environ).services) == {"a", "b", "c"}
    assert profiles_in({}) == []
    assert read(text, "a", **environ).command.endswith("compose.yaml --profile cpu --profile gpu a")


def test_an_env_file_with_an_example_beside_it(read, tmp_path: Path) -> None:
    (tmp_path / ".env.train.example").write_text("A=1\n")
    with pytest.raises(UsageError) as caught:
        read("services:\n  a:\n    image: x:${TAG_}\n    env_file:\n      - .env.train\n")
    assert caught.value.run is not None and caught.value.run.startswith("cp ")
    assert caught.value.cause == "One that may be missing says required: false"  # not what else is unset


@pytest.mark.parametrize(
    "text", ["", "# nothing\n", "services: {}\n", "services:\n  a:\n    image: x\n    profiles: [p]\n"]
)
def test_nothing_to_bring_up(read, text: str) -> None:
    with pytest.raises(SeatrialError):
        read(text)


def test_deep_nesting_is_refused_before_it_is_built(read) -> None:
    with pytest.raises(UsageError, match="nested too deep"):
        read("x: " + "[" * 5000 + "]" * 5000)


def test_anchors_merges_and_dollars_are_what_compose_makes_of_them(read) -> None:
    file = read(
        """
        x-common: &common
          image: busy
          environment: {A: "1"}
        services:
          one:
            <<: *common
            command: sh -c 'echo $$HOME ${WORD:-none}'
          two:
            <<: *common
            profiles: [extra]
        """,
        WORD="here",
    )
    assert list(file.services) == ["one"]
    assert file.services["one"].config["command"] == ["sh", "-c", "echo $HOME here"]
    assert file.place("one", "image").line == 3 and file.place("one", "command").line == 8


def test_a_service_and_what_it_needs(read) -> None:
    text = "services:\n  a: {image: x}\n  b:\n    image: x\n    depends_on: [a]\n  c: {image: x}\n"
    assert list(read(text, "b").services) == ["a", "b"]


def test_files_as_compose_finds_them(tmp_path: Path) -> None:
    for name in ("docker-compose.yml", "docker-compose.override.yml", "other.yaml"):
        (tmp_path / name).write_text("services: {}\n")
    assert [path.name for path in find_files(tmp_path, {})] == ["docker-compose.yml", "docker-compose.override.yml"]
    (tmp_path / "docker-compose.override.yaml").write_text("services: {}\n")  # Compose takes the first, with a warning
    assert [path.name for path in find_files(tmp_path, {})] == ["docker-compose.yml", "docker-compose.override.yml"]
    assert [path.name for path in find_files(tmp_path, {"COMPOSE_FILE": "other.yaml"})] == ["other.yaml"]
    assert find_files(tmp_path / "nowhere", {}) == ()


@pytest.mark.skipif(not SCHEMA.exists(), reason="the specification's schema is not beside the repository")
def test_the_keys_are_those_of_the_specification() -> None:
    schema = json.loads(SCHEMA.read_text())
    assert set(schema["definitions"]["service"]["properties"]) == SERVICE_KEYS
