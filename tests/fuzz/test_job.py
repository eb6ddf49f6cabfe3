"""Read seatrial.toml and the equivalent flags."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from fakes import load_job
from fuzz.attack import attack, one_case
from fuzz.hostile import ODD_TEXTS, ODD_VALUES, as_toml, changed_values, nearly
from seatrial.backends.containers.docker_and_podman import Docker
from seatrial.backends.containers.run_options import read_env_file
from seatrial.compose.client import compose_of
from seatrial.compose.read import read_compose
from seatrial.compose.review import compose_asks
from seatrial.errors import CommandTimeoutError, SeatrialError
from seatrial.images.plan import plan_image
from seatrial.images.recipes import RECIPES
from seatrial.job.script import ScriptFacts
from seatrial.runs.launch import plan_only
from seatrial.system.host import Host

CONFIG: dict[str, Any] = {
    "name": "baseline",
    "target": "train.py",
    "args": ["--epochs", "5"],
    "on": "docker",
    "gpus": "device=0,2",
    "nodes": 2,
    "restarts": 1,
    "data": "./data",
    "models": "./models:rw",
    "mounts": ["./data:/more:ro"],
    "env_files": ["./settings.env"],
    "memory": "16GB",
    "cpus": 2.5,
    "timeout": "1h30m",
    "secrets": ["HF_TOKEN"],
    "publish": ["8080:80"],
    "devices": ["/dev/null"],
    "env": {"OMP_NUM_THREADS": 4, "A": "b"},
    "image": {"base": "python:3.11-slim-bookworm", "requirements": ["rich"], "system_packages": ["gcc"]},
    "criteria": {"mean_utilization": 70, "finished_within": "10m", "model": "models/*.pth", "accuracy": ">= 0.9"},
    "watch": {"hang_after": "10m", "command": "true"},
    "kubernetes": {"namespace": "team", "node_selector": {"a": "b"}, "tolerations": ["a=b:NoSchedule"], "ttl": "1h"},
}  # fmt: skip
TEXT = """\
target = "train.py"
gpus = 2
timeout = "2h"
[env]
A = "b"
[image]
requirements = ["rich"]
[criteria]
accuracy = ">= 0.985"
"""


@pytest.fixture
def project(project: Path) -> Path:
    (project / "data").mkdir()
    (project / "data" / "x").write_text("x")
    (project / "settings.env").write_text("A=b\n")
    return project


def load(project: Path, flags: dict[str, Any]) -> object:
    job = load_job(project, flags, recipes=RECIPES, cwd=project)
    if job.target.kind in ("script", "module"):
        plan_image(job, script=ScriptFacts(), cpu_only=True)
    return job


def load_file(project: Path, data: bytes, name: str = "seatrial.toml") -> object:
    (project / name).write_bytes(data)
    return load(project, {})


def test_file(project: Path, cases: int) -> None:
    inputs = st.one_of(nearly(TEXT), changed_values(CONFIG).map(as_toml))
    attack(lambda data: load_file(project, data), inputs, cases)


def test_table_of_pyproject(project: Path, cases: int) -> None:
    inputs = st.one_of(nearly("[tool.seatrial]\n" + TEXT), changed_values({"tool": {"seatrial": CONFIG}}).map(as_toml))
    attack(lambda data: load_file(project, data, "pyproject.toml"), inputs, cases)


def test_flags(project: Path, cases: int) -> None:
    words = st.one_of(st.sampled_from(ODD_TEXTS), st.text(max_size=20))
    image = st.fixed_dictionaries({}, optional={"ready": words, "target": words, "slim": words})
    kubernetes = st.fixed_dictionaries({}, optional={"kind": words, "namespace": words, "context": words})
    plain = dict.fromkeys(
        ("target", "module", "on", "gpus", "nodes", "restarts", "launcher", "name", "data", "models", "memory"), words
    )
    more = dict.fromkeys(("cpus", "shm_size", "gpu_memory", "timeout", "grace", "network", "workdir"), words)
    lists = {
        key: st.lists(words, max_size=2)
        for key in ("args", "mounts", "env", "env_files", "secrets", "publish", "devices", "ulimits")
    }
    optional = {**plain, **more, **lists, "image": image, "kubernetes": kubernetes}
    few = st.lists(st.sampled_from(sorted(optional)), min_size=1, max_size=3, unique=True)
    flags = few.flatmap(lambda keys: st.fixed_dictionaries({key: optional[key] for key in keys}))
    attack(lambda given: load(project, {"target": "train.py", **given}), flags, cases)


#: Option of an engine → values that are right, from which others are made.
ENGINES_OWN: dict[str, tuple[str, ...]] = {
    "network": ("none", "my-net", "container:other"),
    "device": ("/dev/null", "/dev/null:/dev/x:rw", "vendor.com/class=name"),
    "ulimit": ("nofile=1024:4096", "memlock=-1", "core=0"),
    "publish": ("8080:80", "127.0.0.1:8080:80/udp", "[::1]:80:80", "8000-8001:80-81"),
    "cpus": ("0.5", "1"),
    "memory": ("512m", "1.5GiB"),
    "image": ("python:3.11-slim-bookworm", "ghcr.io/me/a:1.0", "localhost:5000/a/b@sha256:" + "0" * 64),
}
_KEYS = {"device": "devices", "ulimit": "ulimits"}


def specs() -> st.SearchStrategy[tuple[str, str]]:
    """(option, value): a right value with a few characters changed."""
    option = st.sampled_from(sorted(ENGINES_OWN))
    few = st.text(st.sampled_from("aZ09:/-_.=,@+ \t\nrwme\u0661"), max_size=3)

    def changed(value: str) -> st.SearchStrategy[str]:
        places = st.tuples(st.integers(0, len(value)), st.integers(0, 3), few)
        return places.map(lambda cut: value[: cut[0]] + cut[2] + value[cut[0] + cut[1] :])

    return option.flatmap(lambda name: st.tuples(st.just(name), st.sampled_from(ENGINES_OWN[name]).flatmap(changed)))


def spec_flags(option: str, value: str) -> dict[str, Any]:
    if option == "image":
        return {"image": {"ready": value}}
    key = _KEYS.get(option, option)
    return {"target": "train.py", key: [value] if key in ("devices", "ulimits", "publish") else value}


@pytest.mark.docker
def test_plan(project: Path, docker_backend: Docker, cases: int) -> None:
    """The whole plan, as the verb makes it."""
    docker = {"SEATRIAL_DOCKER": shlex.join(docker_backend.call)}
    host = Host(
        docker | {"HOME": str(project), "PATH": os.environ["PATH"], "SEATRIAL_STATE": str(project.parent / "state")}
    )

    def plan(spec: tuple[str, str]) -> object:
        job = load_job(project, {"gpus": "none", "on": "docker", **spec_flags(*spec)}, recipes=RECIPES, cwd=project)
        return plan_only(job, host).model_dump_json()

    attack(plan, specs(), cases)


#: Reasons of Docker's that are of this machine and not of the value.
_OF_THE_MACHINE = re.compile(r"No such image|No such container|not found|[Rr]ange of CPUs|gathering device information")


@pytest.mark.docker
@pytest.mark.slow
def test_no_value_is_read_that_docker_takes_for_nonsense(project: Path, docker_backend: Docker) -> None:
    wrong, tried = [], 0

    def create(spec: tuple[str, str]) -> None:
        nonlocal tried
        option, value = spec
        try:
            load(project, spec_flags(option, value))
        except SeatrialError:
            return
        tried += 1
        if option == "memory":
            value = str(load_job(project, spec_flags(option, value)).memory_bytes)
        words = [] if option == "image" else [f"--{option}", value]
        image = value if option == "image" else "python:3.11-slim-bookworm"
        made = subprocess.run(
            [*docker_backend.call, "create", "--pull", "never", *words, image, "true"], capture_output=True, text=True
        )
        if made.returncode == 0:
            subprocess.run([*docker_backend.call, "rm", made.stdout.strip()], capture_output=True)
        elif not _OF_THE_MACHINE.search(made.stderr):
            wrong.append((option, value, made.stderr.strip()[:200]))

    attack(create, specs(), 1000)
    assert not wrong, "\n".join(map(str, wrong))
    assert tried >= 200


COMPOSE = """\
services:
  train:
    image: python:3.11-slim-bookworm
    volumes: [".:/app", {type: volume, source: handed, target: /handed}]
    environment: {A: "${B:-c}", D: e}
    env_file: [settings.env]
    ports: ["127.0.0.1:80:80"]
    build: {context: ., dockerfile_inline: "FROM x"}
    deploy: {resources: {reservations: {devices: [{count: 1, capabilities: [gpu]}]}}}
volumes: {handed: {driver_opts: {type: none}}}
"""


@pytest.mark.docker
def test_compose_file(project: Path, docker_backend: Docker, cases: int) -> None:
    """Each is resolved by Compose itself, and its wishes are listed."""
    path = project / "compose.yaml"

    def asks(data: bytes) -> object:
        path.write_bytes(data)
        try:
            return compose_asks(read_compose([path], compose_of(docker_backend, Host())))
        except CommandTimeoutError:
            pytest.fail(f"Compose hangs: {data!r}")

    attack(asks, nearly(COMPOSE), cases)


def test_keys_of_any_value(project: Path, cases: int) -> None:
    inputs = st.dictionaries(st.sampled_from(list(CONFIG)), st.sampled_from(ODD_VALUES), max_size=4)
    attack(lambda flags: load(project, flags), inputs, cases)


def test_env_file(project: Path, cases: int) -> None:
    def read(data: bytes) -> object:
        (project / "settings.env").write_bytes(data)
        return read_env_file(project / "settings.env", Host({"HOME": "/"}))

    attack(read, nearly("# comment\nA=b\nHOME\nB='c d'\n"), cases)


KNOWN = {
    "deep": "a = " + "[" * 100_000,
    "deep in a table": "[env]\nA = " + "[" * 200 + "]" * 200,
    "a key of many parts": ".".join("a" * 60_000) + " = 1",
    "many tables": "".join(f"[a{n}]\n" for n in range(20_000)),
    "a long number": "gpus = " + "9" * 5000,
    "a number without end": "cpus = 0x" + "f" * 50_000,
    "a long text": 'name = "' + "a" * 200_000 + '"',
    "an escape": 'name = "\\u001b[2J"',
    "packages that run": '[image]\nsystem_packages = ["gcc; touch /x"]',
    "a base with a line more": '[image]\nbase = "python:3.11\\nRUN touch /x"',
    "not UTF-8": b"name = '\xff'",
    "a null byte in a variable": 'env = {A = "\\u0000"}',
    "a null byte in an argument": 'args = ["\\u0000"]',
    "a null byte in a command": '[watch]\ncommand = "\\u0000"',
    "a home that is nobody's": 'data = "~nobody-at-all/x"',
    "an option in a requirement": '[image]\nrequirements = ["a\\n--index-url http://example.org"]',
}


@pytest.mark.parametrize("known", KNOWN)
def test_known(project: Path, known: str) -> None:
    text = KNOWN[known]
    data = text if isinstance(text, bytes) else text.encode()
    assert one_case(lambda data: load_file(project, data), data) is not None


def test_what_is_right_is_read(project: Path) -> None:
    (project / "seatrial.toml").write_bytes(as_toml(CONFIG))
    load(project, {})


def test_an_env_file_that_is_a_pipe_holds_nobody_up(project: Path) -> None:
    (project / "settings.env").unlink()
    os.mkfifo(project / "settings.env")
    with pytest.raises(SeatrialError, match=r"settings\.env is a FIFO, not a file"):
        read_env_file(project / "settings.env", Host({"HOME": "/"}))
