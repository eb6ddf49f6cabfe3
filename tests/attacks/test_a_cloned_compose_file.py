"""Attacks by a Compose file of somebody's repository: the host reached in every form that Compose has for it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from cli_project import CONFIG, Project
from seatrial.compose.client import Compose
from seatrial.compose.read import read_compose
from seatrial.compose.review import compose_asks
from seatrial.errors import UsageError
from seatrial.system.host import Host

#: A service's keys, each of which reaches beyond the project, and a word of its line.
SERVICES = {
    "short-volume": ("volumes: ['/:/host']", "this machine's whole file system"),
    "long-volume": ("volumes: [{type: bind, source: /etc, target: /etc}]", "mounts /etc"),
    "climbing-volume": ("volumes: ['../../../../../../../../../../../etc:/x:ro']", "mounts /etc read-only"),
    "home-volume": ("volumes: ['~/.aws:/x:ro']", "/.aws read-only"),
    "socket": ("volumes: ['/var/run/docker.sock:/s']", "docker.sock"),
    "link": ("volumes: ['./innocent:/x']", "innocent is a link there"),
    "propagation": ("volumes: [{type: bind, source: ., target: /x, bind: {propagation: rshared}}]", "propagation"),
    "bound-volume": ("volumes: ['bound:/x']", "driver_opts"),
    "foreign-volume": ("volumes: ['foreign:/x']", "external"),
    "named-volume": ("volumes: ['taken:/x']", "another-project_data"),
    "volumes-of-another": ("volumes_from: ['container:other']", "container:other"),
    "merged": ("<<: *merged", "SYS_ADMIN"),
    "interpolated": ("environment: {A: '${TOKEN_OF_MINE}'}", "TOKEN_OF_MINE"),
    "interpolated-default": ("environment: {A: '${TOKEN_OF_MINE:-x}'}", "TOKEN_OF_MINE"),
    "interpolated-if-set": ("environment: {A: '${TOKEN_OF_MINE:+it is set}'}", "TOKEN_OF_MINE"),
    "passed-on": ("environment: [TOKEN_OF_MINE]", "TOKEN_OF_MINE"),
    "path-of-a-mount": ("volumes: ['./${TOKEN_OF_MINE}:/x']", "TOKEN_OF_MINE"),
    "home-variable": ("command: ['echo', '$HOME']", "HOME"),
    "env-file-outside": ("env_file: ['/etc/os-release']", "/etc/os-release"),
    "env-file-interpolates": ("env_file: [inner.env]", "TOKEN_OF_MINE"),
    "build-argument": ("build: {context: ., args: [TOKEN_OF_MINE]}", "TOKEN_OF_MINE"),
    "secret-file": ("secrets: [file]", "/etc/shadow"),
    "secret-variable": ("secrets: [variable]", "your variable"),
    "config-file": ("configs: [file]", "/etc/passwd"),
    "host-network": ("network_mode: host", "every port listening there"),
    "network-of-another": ("network_mode: 'container:other'", "container:other"),
    "macvlan": ("networks: [wide]", "macvlan"),
    "foreign-network": ("networks: [foreign]", "external"),
    "routed": ("networks: [routed]", "8.8.8.0"),
    "pid": ("pid: host", "sees and ends every process"),
    "ipc": ("ipc: host", "ipc"),
    "uts": ("uts: host", "uts"),
    "cgroup": ("cgroup: host", "cgroup"),
    "userns": ("userns_mode: host", "userns_mode"),
    "unconfined": ("security_opt: ['seccomp:unconfined', 'apparmor:unconfined']", "apparmor:unconfined"),
    "privileged": ("privileged: true", "root on this machine"),
    "capability": ("cap_add: [SYS_ADMIN]", "SYS_ADMIN"),
    "cgroup-parent": ("cgroup_parent: /system.slice", "system.slice"),
    "device": ("devices: ['/dev/mem:/dev/mem']", "/dev/mem"),
    "device-rule": ("device_cgroup_rules: ['a *:* rwm']", "a *:* rwm"),
    "cdi-device": (
        "gpus: [{driver: cdi, device_ids: [evil.com/x=y], capabilities: [x]}]",
        "evil.com/x=y",
    ),
    "build-ssh": ("build: {context: ., ssh: [default]}", "log in as you"),
    "build-secret": ("build: {context: ., secrets: [file]}", "/etc/shadow"),
    "build-context": ("build: /etc", "/etc"),
    "build-url": ("build: 'https://example.org/x.git'", "example.org"),
    "build-more-contexts": ("build: {context: ., additional_contexts: {x: /root}}", "/root"),
    "build-dockerfile": ("build: {context: ., dockerfile: ../../../../../../etc/hostname}", "etc/hostname"),
    "build-network": ("build: {context: ., network: host}", "network"),
    "build-tag": ("build: {context: ., tags: ['python:3.11-slim-bookworm']}", "python:3.11"),
    "build-image": ("build: .\n    image: python:3.11-slim-bookworm", "names the image"),
    "build-entitlements": ("build: {context: ., entitlements: [network.host]}", "network.host"),
    "build-git": ("build: github.com/evil/x", "github.com/evil"),
    "build-privileged": ("build: {context: ., privileged: true}", "build.privileged"),
    "gateway": ("extra_hosts: ['h:host-gateway']", "host-gateway"),
    "log-driver": ("logging: {driver: syslog, options: {syslog-address: 'tcp://e:1'}}", "syslog"),
    "sysctl": ("sysctls: {kernel.msgmax: 1}", "kernel.msgmax"),
    "storage": ("storage_opt: {size: 1G}", "storage_opt"),
    "runtime": ("runtime: evil", "evil"),
    "dns": ("dns: 8.8.8.8", "8.8.8.8"),
    "killer": ("oom_score_adj: -1000", "oom_score_adj"),
    "x-service": ("pid: host", "sees and ends every process"),
    "dotted.name": ("pid: host", "sees and ends every process"),
}  # fmt: skip
TOP = """\
x-merged: &merged
  cap_add: [SYS_ADMIN]
volumes:
  bound: {driver_opts: {type: none, o: bind, device: /}}
  foreign: {external: true}
  taken: {name: another-project_data}
networks:
  wide: {driver: macvlan}
  foreign: {external: true}
  routed: {ipam: {config: [{subnet: 8.8.8.0/24}]}}
secrets:
  file: {file: /etc/shadow}
  variable: {environment: TOKEN_OF_MINE}
configs:
  file: {file: /etc/passwd}
services:
"""
#: What stays inside, in the forms of ordinary projects.
ORDINARY = """\
x-any: {of: any}
services:
  prep:
    build: {context: ., args: {A: b}}
    command: python prep.py --of '$$HOME'
    volumes: ['handed:/handed', '.:/app', './data:/data:ro', {type: tmpfs, target: /t}]
    environment: {A: "${UNSET_HERE:-1}", B: c}
    env_file: [own.env]
    x-own: [1]
    mem_reservation: 1g
  train:
    image: python:3.11-slim-bookworm
    depends_on: {prep: {condition: service_completed_successfully}}
    deploy: {resources: {limits: {cpus: '2', memory: 1G}, reservations: {devices: [{count: 1, capabilities: [gpu]}]}}}
    ports: ['127.0.0.1:8080:80', '[::1]:8080:80', '8081:81']
    labels: {'traefik.enable': 'true'}
    develop: {watch: [{path: ., action: sync, target: /x}]}
    networks: [own, default]
    ipc: private
    security_opt: ['no-new-privileges:true']
    cap_add: [CHOWN, DAC_OVERRIDE, FOWNER]
    shm_size: 2g
    ulimits: {memlock: -1}
    restart: 'no'
    healthcheck: {test: ['CMD', 'true'], interval: 5s}
    logging: {driver: json-file, options: {max-size: 1m}}
    secrets: [own]
    configs: [own]
    init: true
    read_only: true
    cap_drop: [ALL]
    user: '1000'
    working_dir: /app
    pid: 'service:prep'
volumes: {handed: {}}
networks: {own: {internal: true}}
secrets: {own: {file: ./own.env}}
configs: {own: {content: x}}
"""
MINE = {"TOKEN_OF_MINE": "token-of-mine-7f3a"}

Lines = Callable[..., list[str]]


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a cloned repository, with files next to its Compose file."""
    if (
        shutil.which("docker") is None
        or subprocess.run(["docker", "compose", "version"], capture_output=True).returncode
    ):
        pytest.skip("docker has no Compose")
    folder = tmp_path_factory.mktemp("around") / "clone"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner.env").write_text("A=${TOKEN_OF_MINE}\n")
    (folder / "own.env").write_text("A=b\n# comment\n")
    (folder / "innocent").symlink_to("/etc")
    (folder / "Dockerfile").write_text("FROM x\nRUN --mount=type=cache,target=/root/.cache pip install x\n")
    return folder


@pytest.fixture(scope="module")
def lines(clone: Path) -> Lines:
    """``lines(text, **environ)``: the questions about a Compose file in the clone."""

    def ask(text: str, *names: str, **environ: str) -> list[str]:
        (clone / "compose.yaml").write_text(text)
        host = Host({**os.environ, **MINE, **environ})
        found = compose_asks(read_compose([clone / "compose.yaml"], Compose(("docker", "compose"), (), host), names))
        assert all(line.words.isprintable() for line in found)
        return [line.words for line in found]

    return ask


@pytest.fixture(scope="module")
def hostile(lines: Lines) -> Mapping[str, str]:
    """Form → the lines of its service, and those of the top-level keys, for one file of all forms."""
    services = "".join(f"  {name}:\n    image: a\n    {keys}\n" for name, (keys, _) in SERVICES.items())
    services = re.sub(r"    image: a\n(?=    build: [^\n]*\n    image)", "", services)
    requested = lines(TOP + services)
    own = {
        name: "\n".join(line for line in requested if re.search(rf"(^|\.){re.escape(name)}[.:]", line))
        for name in SERVICES
    }
    top = "\n".join(
        line
        for line in requested
        if line.startswith(("sets volumes", "sets networks", "sets secrets", "sets configs", "reads"))
    )
    return {name: own[name] + "\n" + top for name in SERVICES}


@pytest.mark.parametrize("form", SERVICES)
def test_each_form_of_reaching_out_is_a_line_of_the_question(hostile: Mapping[str, str], form: str) -> None:
    assert SERVICES[form][1] in hostile[form]


def test_an_ordinary_file_asks_for_nothing(lines: Lines) -> None:
    assert lines(ORDINARY, PWD="/") == []


def test_a_path_in_the_path_of_a_mount_is_the_line_of_the_mount(lines: Lines) -> None:
    asked = lines("services: {a: {image: a, volumes: ['$HOME/run1:/x:ro']}}", HOME="/srv", SHLVL="1")
    assert len(asked) == 1 and "mounts /srv/run1 read-only" in asked[0]


#: Whole files, with their neighbours: path → text. A word of the line.
FILES = {
    "extends a file outside": ("services: {a: {extends: {file: /etc/hostname, service: a}}}", {}, None),
    "extends a file that reads outside": (
        "services: {a: {extends: {file: inner/b.txt, service: b}}}",
        {"inner/b.txt": "services: {b: {image: x, env_file: [/etc/os-release]}}"},
        "reads /etc/os-release",
    ),
    "includes a file that mounts": (
        "include: [inner/c.yaml]",
        {"inner/c.yaml": "services: {b: {image: x, volumes: ['/:/x']}}"},
        "mounts / read-write",
    ),
    "includes by an alias": (
        "x-a: &a [{path: inner/c.yaml, env_file: /etc/os-release}]\ninclude: *a",
        {"inner/c.yaml": "services: {b: {image: x}}"},
        "reads /etc/os-release",
    ),
    "includes a folder that reads": (
        "include: [{path: inner/c.yaml, project_directory: /etc}]",
        {"inner/c.yaml": "services: {b: {image: x, env_file: [os-release]}}"},
        "reads /etc for",
    ),
    "a link to a file outside": (
        "services: {a: {image: x, env_file: [inner/link.env]}}",
        {"inner/link.env": "/etc/os-release"},
        "inner/link.env",
    ),
    "an .env that interpolates": (
        "services: {a: {image: x, environment: {A: '${INNER}'}}}",
        {".env": "INNER=${TOKEN_OF_MINE}\n"},
        "TOKEN_OF_MINE",
    ),
    "another project's name": ("name: victim\nservices: {a: {image: x}}", {}, "Compose project victim"),
    "another project's name in .env": (
        "services: {a: {image: x}}", {".env": "COMPOSE_PROJECT_NAME=victim\n"}, "Compose project victim",
    ),
    "a required variable": ("services: {a: {image: 'x${TOKEN_OF_MINE:?}'}}", {}, "TOKEN_OF_MINE"),
    "an escape": ('services: {a: {image: x, annotations: {"\\e[2J": "\\e]0;x\\a"}}}', {}, "annotations"),
}  # fmt: skip


@pytest.mark.parametrize("case", FILES)
def test_what_the_file_brings_along_counts_as_the_file(lines: Lines, clone: Path, case: str) -> None:
    text, others, word = FILES[case]
    for path, content in others.items():
        if "link" in path:
            (clone / path).symlink_to(content)
        else:
            (clone / path).write_text(content)
    try:
        if word is None:
            with pytest.raises(UsageError):  # Compose refuses it, since it is not a Compose file
                lines(text)
        else:
            assert word in "\n".join(lines(text))
    finally:
        for path in others:
            (clone / path).unlink()


#: A second document, names that variables hold, and whole paths: each reads a file that the question must have.
UNSEEN = {
    "a second document": ("services: {a: {image: x}}\n---\nservices: {a: {env_file: [/etc/os-release]}}", {}),
    "a variable of .env": (
        "services: {a: {image: x, env_file: ['$WHERE']}}", {".env": "WHERE=/etc/os-release\n"},
    ),
    "a service with a key's name": ("services: {environment: {image: x, env_file: [/etc/os-release]}}", {}),
    "a merged one": ("services: {<<: {labels: {image: x, env_file: [/etc/os-release]}}}", {}),
    "a Compose file that is an env file as well": (
        "services: {a: {extends: {file: inner/m.yaml, service: a}}}",
        {
            "inner/m.yaml": "services: {a: {extends: {file: n.yaml, service: a}}}",
            "inner/n.yaml": "services: {a: {image: x, env_file: [n.yaml, '${NO:-/etc/os-release}']}}",
        },
    ),
    "a default": ("services: {a: {image: x, env_file: ['${WHERE:-/etc/os-release}']}}", {}),
}  # fmt: skip


@pytest.mark.parametrize("case", UNSEEN)
def test_each_file_outside_that_is_read_is_in_the_question(lines: Lines, clone: Path, case: str) -> None:
    text, others = UNSEEN[case]
    for path, content in others.items():
        (clone / path).parent.mkdir(exist_ok=True)
        (clone / path).symlink_to(content) if "out" in path else (clone / path).write_text(content)
    try:
        assert "/etc/os-release" in "\n".join(lines(text))
    finally:
        for path in others:
            (clone / path).unlink()


def test_a_name_that_only_compose_could_resolve_is_refused(lines: Lines, clone: Path) -> None:
    (clone / ".env").write_text("A=$B\nB=/etc/os-release\n")
    try:
        for name in ("$A", "${B:+/etc/os-release}", "${NO:-${B}}"):
            with pytest.raises(UsageError, match="depends on variables of the project"):
                lines(f"services: {{a: {{image: x, env_file: ['{name}']}}}}")
    finally:
        (clone / ".env").unlink()


#: Runs Compose, but first puts a link to a file of the host in the place of one that was looked at.
SWAPS = """\
#!/bin/sh
rm -rf {path}; ln -s {secret} {path}
exec {docker} "$@"
"""
#: File that is swapped → the Compose file, and what the file has before. Every file has the secret afterwards.
READ_AGAIN = {
    "own.env": ("services: {a: {image: x, env_file: [own.env]}}", "A=b\n"),
    "labels": ("services: {a: {image: x, label_file: [labels]}}", "A=b\n"),
    ".env": ("services: {a: {image: x, environment: {A: '${A}'}}}", "A=b\n"),
    "compose.yaml": ("services: {a: {image: x}}", None),
    "inner/more.yaml": ("services: {a: {extends: {file: inner/more.yaml, service: a}}}", "services: {a: {image: x}}\n"),
    "inner/c.yaml": ("include: [inner/c.yaml]", "services: {a: {image: x}}\n"),
    "inner/.env": ("include: [inner/b.yaml]", "A=b\n"),
    "whole.env": ("services: {a: {image: x, env_file: ['%(clone)s/whole.env']}}", "A=b\n"),
    "of-home.env": ("services: {a: {image: x, env_file: ['${PWD}/of-home.env']}}", "A=b\n"),
}  # fmt: skip


@pytest.mark.parametrize("swapped", READ_AGAIN)
def test_what_a_link_puts_in_place_of_a_file_after_the_look_is_not_read(
    clone: Path, tmp_path: Path, swapped: str
) -> None:
    text, before = READ_AGAIN[swapped]
    folder, secret, program = tmp_path / "swapped", tmp_path / "secret", tmp_path / "docker"
    secret.write_text("A=SECRET\n" if swapped.endswith((".env", "labels")) else "services: {a: {image: SECRET}}\n")
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "b.yaml").write_text("services: {a: {image: x, environment: {A: '${A}'}}}\n")
    (folder / "compose.yaml").write_text(text % {"clone": folder} if "%" in text else text)
    if before is not None:
        (folder / swapped).write_text(before)
    docker = shutil.which("docker")
    program.write_text(SWAPS.format(path=folder / swapped, secret=secret, docker=docker))
    program.chmod(0o755)
    host = Host({**os.environ, "PWD": str(folder)})
    file = read_compose([folder / "compose.yaml"], Compose((str(program), "compose"), (), host))
    assert (folder / swapped).is_symlink() and "SECRET" not in file.rendered and "seatrial-compose" not in file.rendered
    assert re.search(r'"(x|b)"', file.rendered) and not [each for each in compose_asks(file) if "SECRET" in each.words]


@pytest.mark.parametrize("where", ["env_file: [pipe]", "extends: {file: pipe, service: a}", "env_file: [/dev/zero]"])
def test_what_would_hang_compose_is_refused_before_it_starts(lines: Lines, clone: Path, where: str) -> None:
    if not (clone / "pipe").exists():
        os.mkfifo(clone / "pipe")
    with pytest.raises(UsageError, match=r"is a (FIFO|device), not a file"):
        lines(f"services: {{a: {{image: x, {where}}}}}")


def test_nothing_is_fetched_that_a_file_includes(lines: Lines, clone: Path, tmp_path: Path) -> None:
    (tmp_path / "git").write_text(f"#!/bin/sh\necho $@ >> {tmp_path}/ran\nexit 1\n")
    (tmp_path / "git").chmod(0o755)
    (clone / ".env").write_text("COMPOSE_EXPERIMENTAL_GIT_REMOTE=1\n")
    try:
        with pytest.raises(UsageError, match="git remote resource is disabled"):
            lines("include: ['https://example.org/x.git']", PATH=f"{tmp_path}:{os.environ['PATH']}")
    finally:
        (clone / ".env").unlink()
    assert not (tmp_path / "ran").exists()


#: A task that prints when it starts.
STARTED = """\
services:
  task:
    image: python:3.11-slim-bookworm
    command: ["python", "-c", "open('/app/started', 'w')"]
    network_mode: none
    volumes: ['.:/app']
"""


@pytest.fixture
def cloned(docker_project: Project) -> Iterator[Project]:
    """A cloned project, on which nothing was allowed yet."""
    made = docker_project
    made.trusted = False
    (made.folder / "seatrial.toml").unlink(missing_ok=True)
    yield made
    subprocess.run(
        [
            "docker",
            "compose",
            "-p",
            made.folder.name,
            "-f",
            str(made.folder / "compose.yaml"),
            "down",
            "-v",
            "--rmi",
            "local",
        ],
        capture_output=True,
    )


@pytest.mark.docker
def test_up_starts_nothing_without_consent_and_asks_again_when_the_file_changes(cloned: Project) -> None:
    cloned.write("compose.yaml", STARTED + "    profiles: [own]\n")
    cloned.write(".env", "COMPOSE_PROFILES=own\n")  # changes the questions, and no more
    cloned.cli("up", "--gpus", "none")
    started = cloned.folder / "started"
    assert started.exists()
    started.unlink()
    runs = len(cloned.runs)

    cloned.write("compose.yaml", STARTED + "    pid: host\n")
    assert "sets services.task.pid" in cloned.cli("up", "--plan", "--gpus", "none").stdout
    refused = cloned.cli("up", "--gpus", "none", exit_code=2).stderr
    assert "sees and ends every process there" in refused and "seatrial up --gpus none --trust" in refused
    cloned.cli("up", "--gpus", "none", "--detach", exit_code=2)
    assert not started.exists() and len(cloned.runs) == runs

    cloned.cli("up", "--gpus", "none", "--trust")
    assert started.exists()
    started.unlink()
    cloned.cli("up", "--gpus", "none")  # allowed once, and the same
    assert started.exists()
    cloned.write("compose.yaml", STARTED + "    pid: host\n    ipc: host\n")
    cloned.cli("up", "--gpus", "none", exit_code=2)


@pytest.mark.docker
def test_a_file_that_is_rewritten_during_its_build_starts_what_was_confirmed(cloned: Project) -> None:
    requested = STARTED.replace("image: python:3.11-slim-bookworm", "build: .")
    cloned.write("compose.yaml", requested)
    cloned.write("Dockerfile", f"FROM python:3.11-slim-bookworm\nRUN sleep 2  # {cloned.folder}\n")
    cloned.write("seatrial.toml", CONFIG)
    rewritten, before = False, set(cloned.state.rglob("rendered.json"))
    words = cloned.argv("up", "--gpus", "none", "--trust")
    command = subprocess.Popen(words, cwd=cloned.folder, env=cloned.environ, stdin=subprocess.DEVNULL)
    while command.poll() is None and not rewritten:
        if rewritten := set(cloned.state.rglob("rendered.json")) != before:
            more = STARTED.removeprefix("services:\n").replace("task:", "more:").replace("started", "hostile")
            cloned.write("compose.yaml", requested + more)
            cloned.write(".env", "COMPOSE_PROJECT_NAME=hostile\n")
        time.sleep(0.05)
    assert command.wait(120) == 0 and rewritten
    assert (cloned.folder / "started").exists() and not (cloned.folder / "hostile").exists()


#: A service that prints what its build saw: of its folder, of a second one, of a Dockerfile elsewhere and of a secret.
BUILT = """\
services:
  task:
    build:
      context: ./context
      dockerfile: ../files/Dockerfile
      additional_contexts: {more: ./more}
      secrets: [own]
    command: ["sh", "-c", "cat /seen"]
    network_mode: none
secrets: {own: {file: ./files/secret}}
"""
DOCKERFILE = """\
# syntax-free
FROM python:3.11-slim-bookworm
RUN --mount=type=bind,target=/c --mount=type=bind,from=more,target=/m --mount=type=secret,id=own,target=/s \\
    find /c/ /m/ /s -name '[a-z]*' -type f | sort | xargs tail -n +1 > /seen  # FOLDER
"""


@pytest.mark.docker
def test_what_is_swapped_before_the_engine_reads_it_gets_into_no_image(cloned: Project, tmp_path: Path) -> None:
    secret = tmp_path / "victim"
    secret.mkdir()
    for name in ("id", "Dockerfile", "secret", "Dockerfile.dockerignore"):
        (secret / name).write_text("FROM SECRET\n")
    for name in ("context/inner/id", "context/.git/x", "more/id", "files/secret"):
        cloned.write(name, "mine\n")
    cloned.write("context/.dockerignore", "/.git/\n")
    cloned.write("context/link", "")
    (cloned.folder / "context" / "link").unlink()
    (cloned.folder / "context" / "link").symlink_to(secret)
    cloned.write("files/Dockerfile", DOCKERFILE.replace("FOLDER", str(cloned.folder)))
    version = subprocess.run(["docker", "version", "--format", "{{.Server.Version}}"], capture_output=True, text=True)
    is_old = int(version.stdout.partition(".")[0]) < 23  # its builder knows one folder
    if is_old:
        (cloned.folder / "files" / "Dockerfile").write_text(
            DOCKERFILE.replace("FOLDER", str(cloned.folder))
            .replace(" --mount=type=bind,from=more,target=/m", "")
            .replace(" /m/", "")
        )
    more = "      additional_contexts: {more: ./more}\n"
    cloned.write("compose.yaml", BUILT.replace(more, "") if is_old else BUILT)
    cloned.write("seatrial.toml", CONFIG)
    docker, program, log = shutil.which("docker"), tmp_path / "docker", tmp_path / "swapped"
    swaps = "; ".join(f"rm -rf {path}; ln -s {secret} {path}" for path in ("context/inner", "more", "files"))
    program.write_text(f'#!/bin/sh\ncase "$*" in *plain*build*) cd {cloned.folder}; {swaps}; touch {log};; esac\n')
    with program.open("a") as file:
        file.write(f'exec {docker} "$@"\n')
    program.chmod(0o755)
    ended = cloned.cli("up", "--gpus", "none", "--trust", exit_code=None, SEATRIAL_DOCKER=str(program))
    assert log.exists() and "SECRET" not in ended.stdout + ended.stderr
    assert ended.returncode == 0 and ended.stdout.count("mine") == (2 if is_old else 3)
    assert not list(cloned.state.rglob("copies"))
    cloned.cli("up", "--plan", "--gpus", "none", TMPDIR=str(secret))
    assert not list(secret.glob("seatrial-compose-*"))


@pytest.mark.docker
def test_a_build_that_a_link_leads_out_of_the_project_is_refused(cloned: Project, tmp_path: Path) -> None:
    (tmp_path / "victim").mkdir()
    (cloned.folder / "context").symlink_to(tmp_path / "victim")
    cloned.write("compose.yaml", "services: {task: {build: ./context}}")
    refused = cloned.cli("up", "--gpus", "none", "--trust", exit_code=2).stderr
    assert "Build ./context points outside the project" in refused


@pytest.mark.docker
def test_modules_of_the_project_are_not_those_of_the_command_line_that_stays(cloned: Project) -> None:
    """``up --detach`` starts its own Python in the project's folder, and imports nothing from there."""
    for name in ("seatrial/__init__.py", "click.py", "json.py", "runpy.py", "random.py"):
        cloned.write(name, f"open({str(cloned.folder / 'imported')!r}, 'w')\n")
    cloned.write("compose.yaml", STARTED)
    words = [str(Path(sys.executable).with_name("seatrial")), "up", "--gpus", "none", "--detach"]
    subprocess.run(words, cwd=cloned.folder, env=cloned.environ, check=True, capture_output=True)
    cloned.wait_for(lambda: (cloned.last / "receipt.json").exists())
    assert (cloned.folder / "started").exists() and not (cloned.folder / "imported").exists()
