"""Asks: what a project's file wants beyond its own folder and a container, each as a line that a person can judge.

A cloned project is somebody else's. Only its file is looked at: what was typed is the user's own wish.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from seatrial.errors import ConfigError, fallback
from seatrial.job.tables import Notify, program_of
from seatrial.job.value import Value
from seatrial.system.host import logins
from seatrial.system.project_files import own_table, read_bytes

#: Networks of a container that reach neither the host's own ports nor other containers by name.
_OWN_NETWORKS = ("none", "bridge", "default", "private", "slirp4netns", "pasta")

#: Sockets of engines, links resolved. A program that may connect to one is root on the machine.
_ENGINE_SOCKETS = ("docker.sock", "podman.sock", "containerd.sock", "crio.sock")
_SOCKET_FOLDERS = ("/run", "/run/podman", "/run/containerd", "/run/crio")

#: An env file is a page; a larger one is reported as unreadable.
_MAX_ENV_FILE_BYTES = 1 << 20


class Ask(Value):
    """One wish of a project's file.

    Attributes:
        words: the wish and its effect; links resolved, nothing in it that steers a terminal.
        builds: already the build of the image acts on it.
        hides: the words may hold a secret: they are shown in the question and kept out of plans.
    """

    words: str
    apart: str = ""
    builds: bool = False
    hides: bool = False

    @property
    def remembered(self) -> str:
        """Return the text that an answer is stored under; another text needs another answer."""
        return f"{self.words}\n{self.apart}"


def project_asks(table: Mapping[str, Any], project: Path, without_container: Callable[[str], bool]) -> tuple[Ask, ...]:
    """Return every wish of a file that needs consent; () for an ordinary project.

    ``table``: what the file sets, validated, under a Job's names, without what flags replaced.
    ``without_container``: whether the backend of a name runs the target as the user's own process.
    """
    return tuple(dict.fromkeys(_asks(table, Path(os.path.realpath(project)), without_container)))


def _asks(table: Mapping[str, Any], root: Path, without_container: Callable[[str], bool]) -> Iterator[Ask]:
    if without_container(table.get("backend", "auto")):
        yield Ask(words="runs on this machine without a container, as your user")
    folders = [(folder, f"/{key}") for key in ("data", "models") if (folder := table.get(key))]
    for mount, target in [*folders, *((mount, mount.target) for mount in table.get("mounts", ()))]:
        yield from mounted(mount.source, root, target, mount.read_only)
    yield from _files(table, root)
    kept = {name for row in logins().values() if "files" in row for name in row["given"]}
    for name in table.get("secrets", ()):
        yield Ask(words=f"gives the target your variable {name}{', or your login in its place' * (name in kept)}")
    yield from (Ask(words=f"gives the target the device {plain(device)}") for device in table.get("devices", ()))
    yield from _networks(table)
    if command := table.get("watch", {}).get("command"):
        yield Ask(words=f"runs a command for each watchdog finding: {plain(command)}")
    yield from notify_asks(Notify(**table.get("notify", {})))
    yield from _cluster(table.get("kubernetes", {}))
    if table.get("with_names"):
        yield Ask(words="writes your user and host names into receipts")


def mounted(source: Path, root: Path, target: str, read_only: bool, of: str = "") -> Iterator[Ask]:
    """Yield the permission for a mount of what is not the project's."""
    if (real := outside(source, root)) is not None:
        mode = "read-only" if read_only else "read-write"
        yield Ask(words=f"{of}mounts {_shown(source, real, root)} {mode} at {plain(target)}{_meaning(real)}")


def _given(path: Path, root: Path, words: str, *, builds: bool = False) -> Iterator[Ask]:
    if (real := outside(path, root)) is not None:
        yield Ask(words=f"{words} {_shown(path, real, root)}{_meaning(real)}", builds=builds)


def _files(table: Mapping[str, Any], root: Path) -> Iterator[Ask]:
    """Yield a wish for each file here that the target or build reads, and each variable that an env file passes on."""
    for path in table.get("env_files", []):
        yield from _given(path, root, "gives the target the variables in")
        if (names := _passed_on(path)) is None:
            yield Ask(words=f"gives the target the variables in {plain(str(path))}, which cannot be read")
        yield from (Ask(words=f"gives the target your variable {plain(name)}") for name in names or ())
    image = table.get("image", {})
    find_links = image.get("find_links")
    for path in (image.get("ca_bundle"), Path(find_links) if find_links and "://" not in find_links else None):
        if path is not None:
            yield from _given(path, root, "gives the image's build", builds=True)


def _networks(table: Mapping[str, Any]) -> Iterator[Ask]:
    if (network := table.get("network")) == "host":
        yield Ask(words="uses this machine's network: every port listening here is reachable")
    elif network is not None and network not in _OWN_NETWORKS:
        yield Ask(words=f"joins the network {plain(network)}, and can reach everything on it")
    if table.get("image", {}).get("build_network") == "host":
        what = "builds the image on this machine's network: every port listening here is reachable"
        yield Ask(words=what, builds=True)


def notify_asks(notify: Notify) -> Iterator[Ask]:
    """Yield a permission for each command of ``[notify]``."""
    for command in notify.command:
        yield Ask(words=f"runs a command on this machine, as your user, when a run ends: {plain(command)}", hides=True)


def hidden(ask: Ask) -> Ask:
    """Return the wish as a plan has it, a file that people share: of a command only its program."""
    if not ask.hides:
        return ask
    what, _, command = ask.words.partition(": ")
    return ask.changed(words=f"{what}: {plain(program_of(command))}", apart=digest_text(command))


def _cluster(table: Mapping[str, Any]) -> Iterator[Ask]:
    for key in ("data", "models"):
        if (volume := table.get(key)) is not None and volume.lasting:
            what = f"{volume.value} of the cluster's nodes" if volume.kind == "hostpath" else f"{volume} of the cluster"
            yield Ask(words=f"mounts {plain(what)} at /{key}")
    for key, words in own_table(Path(__file__).with_suffix(".toml")).items():
        value = table.get(key)
        for each in [value] if isinstance(value, str) else value or ():
            yield Ask(words=words.format(plain(str(each))))


def digest_text(text: str) -> str:
    """Return the SHA-256 in hex; a lone surrogate (a name that is not UTF-8) counts as the byte it stands for."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def outside(path: Path, root: Path) -> Path | None:
    """Return the path with links resolved; None if it lies in the project."""
    real = Path(os.path.realpath(path))
    return None if real.is_relative_to(root) else real


def _shown(path: Path, real: Path, root: Path) -> str:
    """Return the real path, with its link in the project if it has one: ``/home/me/.ssh (./data is a link there)``."""
    written = Path(os.path.abspath(path))  # noqa: PTH100  resolve() would follow the link that is to be named
    own = Path(os.path.realpath(written.parent)) / written.name
    if own != real and own.is_relative_to(root):
        return f"{plain(str(real))} (./{plain(str(own.relative_to(root)))} is a link there)"
    return plain(str(real))


def _meaning(real: Path) -> str:
    """Return what a path gives away, if its name does not show it."""
    home = Path(os.path.realpath(os.path.expanduser("~")))  # noqa: PTH111  Path.home() raises where there is none
    if _is_engine_socket(real):
        return ": the engine's socket, which gives root on this machine"
    if real == Path("/"):
        return ": this machine's whole file system"
    folders = (*_SOCKET_FOLDERS, f"/run/user/{os.getuid()}", f"/run/user/{os.getuid()}/podman")
    sockets = (Path(folder) / name for folder in folders for name in _ENGINE_SOCKETS)
    if any(_is_engine_socket(socket) and socket.is_relative_to(real) for socket in sockets):
        return ": it contains the engine's socket, which gives root on this machine"
    if home.is_relative_to(real):
        return ": your home folder" + ("" if home == real else " is in it")
    return ": a socket of a program on this machine" if _is_socket(real) else ""


def _is_engine_socket(path: Path) -> bool:
    return path.name in _ENGINE_SOCKETS and _is_socket(path)


@fallback(False, on=OSError)
def _is_socket(path: Path) -> bool:
    return stat.S_ISSOCK(path.stat().st_mode)


@fallback(None, on=(ConfigError, UnicodeDecodeError))
def _passed_on(path: Path) -> tuple[str, ...] | None:
    """Return names without a value in an env file: the target gets this user's values. None if it cannot be read."""
    lines = read_bytes(path, inside=None, limit_bytes=_MAX_ENV_FILE_BYTES).decode("utf-8-sig").splitlines()
    words = (line.strip() for line in lines)
    return tuple(word for word in words if word and not word.startswith("#") and "=" not in word)


def plain(text: str) -> str:
    """Return the text on one line: what moves a cursor, hides or turns text around becomes its escape."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)
