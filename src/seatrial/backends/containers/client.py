"""Clients of the engines: their differences, addresses, queries with a time limit, and errors in the engines' words."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast
from urllib.parse import quote

from seatrial import errors
from seatrial.backends.base import State, Status, confirm, this_machine, time_ns
from seatrial.errors import EngineUnavailableError, SeatrialError
from seatrial.findings.catalogue import AT_PULL, AT_START, entries, mid_sentence
from seatrial.job.plan import EngineAddress
from seatrial.system import command
from seatrial.system.command import Completed, json_object
from seatrial.system.host import Host
from seatrial.system.project_files import own_table

#: Layers whose failures keep a GPU out of a container, apart from those in ERRORS.
GPU_LAYERS = ("host", "engine")

#: Entry of the catalogue → the error it is.
ERRORS: dict[str, type[SeatrialError]] = {
    name: getattr(errors, error)
    for error, names in own_table(Path(__file__).with_name("errors.toml")).items()
    for name in names.split()
}

#: The variable of each engine's client for the engine's address.
ADDRESS_VARIABLES = {"docker": "DOCKER_HOST", "podman": "CONTAINER_HOST"}
#: Entries about the address that a variable names; other entries are about the client or its request.
OF_ADDRESS = ("engine-down", "engine-permission")
_LOGIN = re.compile(r"(?<=://)[^/@\s]*@")
#: Options of a client that choose the engine themselves: no other may be added.
#: Source: docker(1), "Options"; podman(1), "GLOBAL OPTIONS".
CHOOSING = ("-H", "--host", "-c", "--context", "--url", "--connection", "--remote", "--root", "--runroot")
#: Files in a folder of Docker's TLS certificates. Source: docs.docker.com/engine/security/protect-access.
_TLS = {"--tlscacert": "ca.pem", "--tlscert": "cert.pem", "--tlskey": "key.pem"}
#: Printed by podman-docker's script, unless it is quiet; then Podman's own answer shows it.
_IS_PODMAN = "Emulate Docker CLI using podman"
#: Engines' words for a container's state.
#: Source: moby api/types/container/state.go; podman libpod/define/containerstate.go.
STATUSES: dict[str, Status] = {
    **dict.fromkeys(("created", "configured", "initialized"), "created"),
    **dict.fromkeys(("running", "paused", "restarting", "stopping"), "running"),
    **dict.fromkeys(("stopped", "exited", "removing", "dead"), "exited"),
}

INFO_TIMEOUT_S = 5.0
#: Timeout of inspect, kill and remove, which usually take milliseconds. Podman 4.3 was seen to take more than 30 s
#: during a build that held the store's lock on a loaded machine of two cores.
ANSWER_TIMEOUT_S = 120.0
#: Variables that lead Docker's client elsewhere or change how it asks. Source: docker(1).
_LEADING = ("DOCKER_CONTEXT", "DOCKER_API_VERSION", "DOCKER_TLS", "DOCKER_TLS_VERIFY")


def start_error(engine: str, argv: Sequence[str], exit_code: int, stderr: str) -> SeatrialError:
    """Return the error for a container that could not be made or started."""
    reason, run = last_line(stderr) or f"exit code {exit_code}", f"seatrial doctor --on {engine}"
    message = f"{engine.capitalize()} could not start the container: {reason}"
    unknown = errors.CommandError(message, argv=argv, exit_code_of_command=exit_code, stderr=stderr, run=run)
    return _known(AT_START, engine, stderr) or unknown


def pull_error(engine: str, reference: str, stderr: str) -> SeatrialError:
    """Return the error for an image that could not be pulled."""
    return _known(AT_PULL, engine, stderr, reference=reference) or errors.ImageError(
        f"Image {reference} cannot be pulled: {last_line(stderr)}", run=f"{engine} pull {reference}"
    )


def unavailable_error(
    engine: str, stderr: str, host: Host | None = None, at: EngineAddress | None = None
) -> EngineUnavailableError:
    """Return the error for an engine that gave no answer to a plain question. ``at``: its client was led there."""
    found = _known(("engine",), engine, stderr)
    if not isinstance(found, EngineUnavailableError):
        words = last_line(stderr)
        message = f"{engine.capitalize()} " + (f"does not respond: {words}" if words else "gave no answer")
        cause = f"its client or its daemon failed; `{engine} info` shows all of its output"
        found = EngineUnavailableError(message, cause=cause, run=f"{engine} info")
    return as_addressed(found, engine, host, at)


def as_addressed(
    error: EngineUnavailableError, engine: str, host: Host | None = None, at: EngineAddress | None = None
) -> EngineUnavailableError:
    """Return the error of an engine that a variable leads to: it names the variable, without its login."""
    if at is not None:
        message = f"Engine at {_LOGIN.sub('', at.endpoint)} not reachable: {mid_sentence(error.message)}"
        return EngineUnavailableError(message, cause=error.cause, run=error.run, finding=error.finding)
    variable = ADDRESS_VARIABLES[engine]
    host = host or Host()
    if not host.env.get(variable) or error.finding not in OF_ADDRESS:
        return error
    if error.finding == "engine-permission":
        message, cause = error.message, "The user is not in the group that may use this socket"
    else:
        message = f"{engine.capitalize()} does not respond"
        cause = error.message.partition(": ")[2] or error.cause or error.message
    message = _LOGIN.sub("", f"{message} at {variable}={host.env[variable]}")
    run = f"unset {variable}   # or set it to where {engine} listens; then: {engine} info"
    return EngineUnavailableError(message, cause=_LOGIN.sub("", cause), run=run, finding=error.finding)


def last_line(stderr: str) -> str:
    """Return the engine's own reason: the last line that is not its pointer to ``--help``, without its prefixes."""
    pointers = ("Run '", "See '", "Usage:")
    lines = [line.strip() for line in stderr.splitlines() if line.strip() and not line.startswith(pointers)]
    if not lines:
        return ""
    return re.sub(r"^(?:\* |docker: |Error: |Error response from daemon: )+", "", lines[-1])


def _known(layers: Sequence[str], engine: str, stderr: str, **values: str) -> SeatrialError | None:
    """Return the error that the catalogue has for these words; None if it has none."""
    from seatrial.findings.match import first_in  # the engine's words match only when it fails

    if (match := first_in(stderr, layers)) is None:
        return None
    finding = match.known.finding(values={**match.values, "engine": engine, "Engine": engine.capitalize(), **values})
    usual = errors.GpuContractError if match.known in entries(GPU_LAYERS) else errors.EngineError
    error = ERRORS.get(match.known.id, usual)
    error = errors.ImageError if match.known in entries(("registry",)) else error
    error = EngineUnavailableError if error is errors.EngineError and layers == ("engine",) else error
    if issubclass(error, EngineUnavailableError):
        return error(finding.message, cause=finding.cause, run=finding.fix, finding=finding.id)
    return error(finding.message, cause=finding.cause, run=finding.fix)


def docker_address(info: Mapping[str, Any], context: Mapping[str, Any], host: Host | None = None) -> EngineAddress:
    """Read a daemon's address from ``docker info`` and the entry of ``docker context inspect``.

    The ID alone is not enough: up to Docker 23 two daemons of one machine share it.
    """
    stored = Path((context.get("Storage") or {}).get("TLSPath") or "<")
    if (context.get("TLSMaterial") or {}).get("docker") and stored.is_absolute():
        tls = str(stored / "docker")
    elif (env := (host or Host()).env).get("DOCKER_TLS_VERIFY") or env.get("DOCKER_TLS"):
        tls = env.get("DOCKER_CERT_PATH") or str(Path(env.get("HOME", "/root"), ".docker"))
    else:
        tls = None
    identity = f"{info.get('ID')} {info.get('DockerRootDir')}"
    return EngineAddress(endpoint=context["Endpoints"]["docker"]["Host"], id=identity, credentials=tls)


def podman_address(info: Mapping[str, Any], ask: Callable[..., Completed], host: Host | None = None) -> EngineAddress:
    """Read a Podman's address: its storage on this machine, or the service that its client uses."""
    store = str(info["store"]["graphRoot"])
    if not info["host"].get("serviceIsRemote"):
        return EngineAddress(endpoint=store, id=f"{this_machine().id} {store}")
    identity = f"{info['host'].get('hostname')} {store}"
    env = (host or Host()).env
    if url := env.get("CONTAINER_HOST"):
        return EngineAddress(endpoint=url, id=identity, credentials=env.get("CONTAINER_SSHKEY") or None)
    known = json.loads(ask("system", "connection", "list", "--format", "json").stdout or "[]")
    name = env.get("CONTAINER_CONNECTION")
    for each in known:
        if each["Name"].rstrip("*") == name if name else each.get("Default"):
            return EngineAddress(endpoint=each["URI"], id=identity, credentials=each.get("Identity") or None)
    return EngineAddress(endpoint="podman-remote", id=identity)


def addressed(call: Sequence[str], at: EngineAddress, *, tls: bool) -> list[str]:
    """Add the options that lead to ``at`` to a client's call, unless its user has set one; ``tls``: Docker's."""
    if any(word.partition("=")[0] in CHOOSING for word in call[1:]):
        return list(call)
    if tls:
        folder = Path(at.credentials) if at.credentials else None
        files = [f"{flag}={folder / name}" for flag, name in _TLS.items() if folder and (folder / name).is_file()]
        return [*call, "--host", at.endpoint, *(["--tlsverify", *files] if folder else [])]
    if at.endpoint.startswith("/"):
        return [*call, "--remote=false"]
    if "://" not in at.endpoint:
        return list(call)
    return [*call, "--url", at.endpoint, *(["--identity", at.credentials] if at.credentials else [])]


def read_info(
    engine: str, key: str, ended: Completed, host: Host | None = None, at: EngineAddress | None = None
) -> dict[str, Any]:
    """Read the answer, which has the ``key`` of a working engine. Raises EngineUnavailableError.

    Without a daemon Docker's client prints its own half; older ones exit with 0 then (docker/cli#2300).
    """
    found = json_object(ended.stdout)
    if ended.exit_code == 0 and found.get(key):
        return found
    text = ended.stderr or "\n".join(found.get("ServerErrors") or [])
    if "buildahVersion" in str(found.get("host")):
        text = _IS_PODMAN
    raise unavailable_error(engine, text or ("" if found or ended.stdout.strip() == "{}" else ended.stdout), host, at)


def container_state(inspected: dict[str, Any]) -> State:
    """Read an entry of ``container inspect``. Engines print exit code 0 for a container that has not ended."""
    state = inspected["State"]
    status = STATUSES.get(state["Status"].lower(), "running")
    ended = status == "exited" and "FinishedAt" in state
    times_ns = [time_ns(state[key]) or 0 for key in ("StartedAt", "FinishedAt")] if ended else []
    return State(
        status,
        exit_code=state.get("ExitCode") if status == "exited" else None,
        oom_killed=bool(state.get("OOMKilled")),
        error=state.get("Error") or None,
        seconds=max(0.0, (times_ns[1] - times_ns[0]) / 1e9) if times_ns else None,
    )


class Dialect(NamedTuple):
    """Differences between the command lines of the engines.

    Attributes:
        install, restart: commands for a person.
        info_format, info_key: ``info --format`` for JSON, and a key that it has if the engine works.
        storage_root: ``info --format`` for the folder of the layers.
        buildkit: it builds through buildx, which has ``--progress`` and ``--load``; Podman 4 has neither.
        compose: its client has the commands ``compose`` and ``context``, and its API passes CDI names on.
        label_form: ``ps --format`` for a label's value, with ``%s`` for the label.
    """

    name: Literal["docker", "podman"]
    install: str
    restart: str
    info_format: str
    info_key: str
    storage_root: str
    buildkit: bool
    compose: bool
    label_form: str


class EngineClient:
    """The engine's program with its global options.

    ``at``: the engine it uses; None: the one that the environment chooses. ``call``: its command line with the options
    for ``at``. ``typed``: without them.
    """

    def __init__(self, dialect: Dialect, call: Sequence[str] = (), at: EngineAddress | None = None) -> None:
        """Set up a client that is called by ``call``; default is the engine's name."""
        self.dialect, self.at = dialect, at
        self.typed = list(call) or [dialect.name]
        self.call = self.typed if at is None else addressed(self.typed, at, tls=dialect.compose)
        self._endpoint = ""  # the socket that has answered without the program

    def ask(self, *words: str, timeout_s: float = ANSWER_TIMEOUT_S) -> command.Completed:
        """Run a command of the engine. Raises EngineUnavailableError if it does not end in time."""
        try:
            with command.doing(f"asking {self.dialect.name.capitalize()}"):
                return command.run([*self.call, *words], timeout_s=timeout_s)
        except errors.CommandTimeoutError as error:
            message = f"{self.dialect.name.capitalize()} did not respond within {timeout_s:g} s"
            cause = "it is busy with a build or pull, it hangs, or the machine is out of memory"
            silent = EngineUnavailableError(message, cause=cause, run=self.dialect.restart)
            raise as_addressed(silent, self.dialect.name, at=self.at) from error

    def info(self) -> dict[str, Any]:
        """Return the engine's own report. Raises EngineUnavailableError."""
        if self.call == ["docker"] and (answer := _docker_answer("/info")) and answer[1].get("ServerVersion"):
            self._endpoint, info = answer
            return info
        ended = self.ask("info", "--format", self.dialect.info_format, timeout_s=INFO_TIMEOUT_S)
        return read_info(self.dialect.name, self.dialect.info_key, ended, at=self.at)

    def address(self, info: dict[str, Any] | None = None) -> EngineAddress:
        """Return the address of the engine that answers, whose ``info`` this is. Raises EngineUnavailableError."""
        info = info or self.info()
        if not self.dialect.compose:
            return podman_address(info, self.ask)
        if self._endpoint:
            return docker_address(info, {"Endpoints": {"docker": {"Host": self._endpoint}}})
        ended = self.ask("context", "inspect", "--format", "{{json .}}", timeout_s=INFO_TIMEOUT_S)
        if ended.exit_code != 0:
            raise self.unavailable(ended.stderr)
        return docker_address(info, json.loads(ended.stdout))

    def confirm(self, engine: EngineAddress | None) -> None:
        """Check that "no such container" is the answer of the run's own engine. Raises EngineUnavailableError."""
        confirm("Engine", engine, self.address, shlex.join([*self.call, "info"]))

    def unavailable(self, stderr: str) -> EngineUnavailableError:
        return unavailable_error(self.dialect.name, stderr, at=self.at)

    def inspect(self, kind: Literal["image", "container"], id: str) -> dict[str, Any] | None:
        """Return what the engine has on an image or container; None if it has none. Raises EngineUnavailableError."""
        if self.call == ["docker"] and (answer := _docker_answer(f"/{kind}s/{quote(id, safe='/:@')}/json")):
            if "Id" in answer[1]:
                return answer[1]
            if is_unknown(str(answer[1].get("message")), kind):
                return None
        ended = self.ask(kind, "inspect", id)
        if ended.exit_code == 0:
            return cast("dict[str, Any]", json.loads(ended.stdout)[0])
        if is_unknown(ended.stderr, kind):
            return None
        raise self.unavailable(ended.stderr)


def _docker_answer(path: str) -> tuple[str, dict[str, Any]] | None:
    """Ask Docker's socket what ``docker`` would ask, without its start and plug-ins; return the socket and the answer.

    None: a context or variable leads elsewhere, ``docker`` is a script (podman-docker), or the client has to explain.
    """
    env, program = Host().env, Path(shutil.which("docker") or "/")
    endpoint = env.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    settings = Path(env.get("DOCKER_CONFIG") or Path(env.get("HOME", "/root"), ".docker"), "config.json")
    with suppress(OSError, ValueError, AttributeError), program.open("rb") as file, socket.socket(socket.AF_UNIX) as at:
        known = json.loads(settings.read_text()) if settings.is_file() and not env.get("DOCKER_HOST") else {}
        if file.read(2) == b"#!" or known.get("currentContext") or any(map(env.get, _LEADING)):
            return None
        at.settimeout(1.0)
        at.connect(endpoint.removeprefix("unix://"))
        at.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        head, _, body = b"".join(iter(lambda: at.recv(1 << 16), b"")).partition(b"\r\n\r\n")
        if b"Server: Docker/" in head and isinstance(answer := json.loads(body), dict):
            return endpoint, answer
    return None


def is_unknown(stderr: str, kind: Literal["image", "container"]) -> bool:
    text = stderr.lower()
    return f"no such {kind}" in text or "no such object" in text or f"{kind} not known" in text
