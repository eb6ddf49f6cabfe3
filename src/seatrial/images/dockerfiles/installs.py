"""What the commands of a Dockerfile install, with which tool, from where."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from seatrial.images.dockerfiles.shell import Command

_PYTHON = re.compile(r"(?:.*/)?python(?:[\d.]+|\$\{?\w+\}?)?$")
_PIP = re.compile(r"(?:.*/)?pip(?:[\d.]+|\$\{?\w+\}?)?$")
_SYSTEM = ("apt-get", "apt", "aptitude", "yum", "dnf", "microdnf", "apk", "zypper")
_CONDA = ("conda", "mamba", "micromamba")

#: pip's and uv's options that take a word. Source: pip install --help, uv pip install --help.
_PIP_VALUES = (
    "-r", "--requirement", "--requirements", "-c", "--constraint", "--constraints", "-i", "--index-url",
    "--default-index", "--index", "--extra-index-url", "-f", "--find-links", "-t", "--target", "--prefix", "--root",
    "--src", "--platform",
    "--python-version", "--implementation", "--abi", "--cache-dir", "--no-binary", "--only-binary", "--global-option",
    "--config-settings", "-C", "--build-option", "--install-option", "--timeout", "--retries", "--proxy",
    "--trusted-host", "--progress-bar", "--upgrade-strategy", "--log", "-p", "--python", "--torch-backend",
    "--index-strategy", "-b", "--override", "--extra", "--group", "--link-mode", "--prerelease", "--root-user-action",
    "--exclude-newer", "--no-install-package", "--no-emit-package", "--reinstall-package", "--refresh-package",
    "--upgrade-package", "-P", "--package", "--no-extra", "--no-group", "--only-group", "--python-platform",
    "--no-build-isolation-package", "--exists-action", "--cert", "--report",
)  # fmt: skip
_CONDA_VALUES = ("-n", "--name", "-p", "--prefix", "-c", "--channel", "-f", "--file", "--solver")
_INDEXES = ("-i", "--index-url", "--default-index", "--index", "--extra-index-url", "-f", "--find-links")
_CHANNELS = ("-c", "--channel")
_FILES, _CONDA_FILES = ("-r", "--requirement", "--requirements"), ("-f", "--file")


@dataclass(frozen=True)
class Install:
    """One command that installs.

    Attributes:
        tool: pip, uv, conda or the name of a system's package manager.
        action: ``install``, ``sync``, ``create`` …
        words: behind the action.
    """

    tool: str
    action: str
    words: tuple[str, ...]
    before: tuple[str, ...]
    command: Command

    @property
    def line(self) -> int:
        return self.command.line

    @cached_property
    def _sorted(self) -> tuple[list[str], list[tuple[str, str]]]:
        """(what is installed, options and their words)."""
        taking = _CONDA_VALUES if self.tool == "conda" else _PIP_VALUES if self.tool in ("pip", "uv") else ()
        packages, options, waiting = [], [], ""
        for word in (*self.before, *self.words):
            if waiting:
                options.append((waiting, word))
                waiting = ""
            elif word in taking:
                waiting = word
            elif word.startswith("-"):
                name, _, value = word.partition("=")
                if re.match(r"-[rcfi][^-]", word):  # -rrequirements.txt
                    name, value = word[:2], word[2:]
                options.append((name, value))
            elif word not in (">", ">>", "<") and not re.match(r"\d?>", word):
                packages.append(word)
        return packages, options

    @property
    def packages(self) -> list[str]:
        return self._sorted[0]

    @property
    def flags(self) -> list[str]:
        return [name for name, _ in self._sorted[1]]

    @property
    def files(self) -> list[str]:
        """Requirement files."""
        if self.tool not in ("pip", "uv", "conda"):
            return []
        named = _CONDA_FILES if self.tool == "conda" else _FILES
        return [value for name, value in self._sorted[1] if name in named and value]

    @property
    def sources(self) -> list[str]:
        """Indexes, pages of wheels, channels."""
        named = _CHANNELS if self.tool == "conda" else _INDEXES
        return [value for name, value in self._sorted[1] if name in named]

    def package(self, *names: str) -> str | None:
        """The requirement of one of these names as it is written, extras and version included."""
        for word in self.packages:
            found = re.match(r"(?:[\w.-]+::)?([A-Za-z0-9][\w.-]*?)(?:\[[^\]]*\])?\s*(?:$|[=<>!~;@ ])", word)
            if found and found[1].lower().replace("_", "-") in names:
                return word
        return None


def installs_of(commands: tuple[Command, ...]) -> Iterator[Install]:
    """The installations among commands."""
    for command in commands:
        if found := _install(command):
            yield found


def _install(command: Command) -> Install | None:
    words = list(command.words)
    while words and _PYTHON.match(words[0]) and words[1:2] == ["-m"]:
        words = words[2:]
    if not words:
        return None
    program, tool = words[0].rpartition("/")[2], ""
    if _PIP.match(words[0]):
        tool = "pip"
    elif program == "uv":
        tool = "uv"
        words = [word for at, word in enumerate(words) if not (word == "pip" and at < 4)]
    elif program in _CONDA:
        tool = "conda"
        words = [word for at, word in enumerate(words) if not (word == "env" and at == 1)]
    elif program in _SYSTEM:
        tool = program
    if not tool:
        return None
    for at, word in enumerate(words[1:], 1):
        if (
            not word.startswith("-")
            and not (tool in ("pip", "uv") and words[at - 1] in _PIP_VALUES)
            and "=" not in word
        ):
            return Install(tool, word, tuple(words[at + 1 :]), tuple(words[1:at]), command)
    return None


def pip_installs(commands: tuple[Command, ...]) -> Iterator[Install]:
    """pip's and uv's."""
    return (
        each
        for each in installs_of(commands)
        if (each.tool, each.action) in (("pip", "install"), ("uv", "install"), ("uv", "sync"), ("uv", "add"))
    )
