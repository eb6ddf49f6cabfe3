"""What BuildKit does not read, and what a RUN, or the container, is refused: rights, programs, unread variables."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator

from seatrial.images.dockerfiles.installs import installs_of
from seatrial.images.dockerfiles.parts import Dockerfile, Remark
from seatrial.images.dockerfiles.shell import options_and_rest, words_of_list
from seatrial.system.near import did_you_mean, nearest

#: Source: docs.docker.com/reference/dockerfile/#overview
_INSTRUCTIONS = (
    "ADD", "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "LABEL", "MAINTAINER", "ONBUILD",
    "RUN", "SHELL", "STOPSIGNAL", "USER", "VOLUME", "WORKDIR",
)  # fmt: skip

#: Images that are known to have no sudo.
_NO_SUDO = re.compile(r"(?:docker\.io/)?(?:library/)?(?:ubuntu|debian|python|(?:nvcr\.io/)?nvidia/cuda)(?::|@|$)")
_SUDO = re.compile(r"(?:^|&&|\|\||[;|\n])\s*sudo\s")
_APT = ("apt-get", "apt", "aptitude", "yum", "dnf", "apk")
#: Names that people give to stages. No image of Docker Hub has them; ``--build-context`` can.
_STAGES = (
    "base",
    "build",
    "builder",
    "build-stage",
    "compile",
    "compiler",
    "deps",
    "dependencies",
    "runtime",
    "wheels",
)
_ESCAPED, _BACKSLASH = re.compile(r'["\\`]'), r"\\\g<0>"
_VARIABLE = re.compile(r"\$\{?[A-Za-z_]\w*\}?")


def unknown_instructions(file: Dockerfile) -> Iterator[Remark]:
    """The build ends before its first step."""
    for each in file.instructions:
        if each.name not in _INSTRUCTIONS:
            hint = did_you_mean(each.name, _INSTRUCTIONS)
            yield Remark(
                each.line,
                "unknown-instruction",
                "error",
                f"no build begins: there is no instruction {each.name}{hint}",
                "a line that goes on needs a backslash at the end of the one before it",
            )
        elif each.unended:
            yield Remark(
                each.line,
                "unended",
                "error",
                f"no build begins: its here-document has no line {each.unended}",
                f"write {each.unended} in a line of its own behind it, without spaces",
            )


def not_root(file: Dockerfile) -> Iterator[Remark]:
    """apt as another user than root: permission denied."""
    for stage in file.stages:
        user, line = "root", 0
        for each in file.instructions:
            if each.stage != stage.number:
                continue
            if each.name == "USER":
                user, line = each.value.strip().strip("\"'").partition(":")[0], each.line
            if each.name != "RUN" or user in ("root", "0") or "$" in user or "sudo" in each.value:
                continue
            found = (one for one in installs_of(tuple(file.commands_of(each))) if one.tool in _APT)
            install = next((one for one in found if not one.command.sometimes), None)
            if install:
                yield Remark(
                    install.line,
                    "not-root",
                    "error",
                    f"{install.tool} needs root, and line {line} has made it {user}: the build ends",
                    f"put it above the USER of line {line}",
                )
                break


def no_sudo(file: Dockerfile) -> Iterator[Remark]:
    """Base images have none, and a build is root anyway."""
    if any("sudo" in one.packages for one in installs_of(file.commands)):
        return
    for each in file.of("RUN"):
        if each.stage in file.chain and _NO_SUDO.match(file.final.image) and _SUDO.search(each.value):
            yield Remark(
                each.line,
                "no-sudo",
                "error",
                f"{file.final.image} has no sudo: the build ends",
                "leave sudo out: a build is root until a USER says otherwise",
            )
            return


def not_filled_in(file: Dockerfile) -> Iterator[Remark]:
    """A list is passed on as it stands; only a shell puts values in the place of variables."""
    for name in ("ENTRYPOINT", "CMD"):
        each = next((one for one in reversed(file.instructions) if one.name == name and one.stage in file.chain), None)
        words = words_of_list(each.value.strip()) if each else None
        if not each or not words or re.search(r"(?:^|/)(?:\w*sh|tini|env)$", words[0]) or "-c" in words:
            continue
        found = next((match[0] for word in words if (match := _VARIABLE.search(word))), None)
        if found:
            yield Remark(
                each.line,
                "not-filled-in",
                "warning",
                f"{name} is a list, in which {found} stays as it is: no shell puts a value in its place",
                f"{name} {json.dumps(_by_a_shell(name, words), ensure_ascii=False)}",
            )


def unknown_stages(file: Dockerfile) -> Iterator[Remark]:
    """A number beyond the stages ends the build; a name that no stage has is taken for an image."""
    names = [stage.name for stage in file.stages if stage.name]
    for each in file.of("COPY"):
        options, _ = options_and_rest(each.raw)
        source = next((option.partition("=")[2].lower() for option in options if option.startswith("--from=")), "")
        if re.fullmatch(r"\d{1,9}", source) and int(source) >= len(file.stages):
            yield Remark(
                each.line,
                "unknown-stage",
                "error",
                f"the build ends: there is no stage {source}, the last one is {len(file.stages) - 1}",
                "name the stage, FROM … AS builder, and COPY --from=builder",
            )
        near = nearest(source, names)
        if source not in names and re.fullmatch(r"[a-z][\w-]*", source) and (near or source in _STAGES):
            yield Remark(
                each.line,
                "unknown-stage",
                "warning",
                f"no stage is named {source}, so an image of that name is pulled",
                f"COPY --from={near} …" if near else f"FROM … AS {source}   # above the stage of line {each.line}",
            )


def _by_a_shell(name: str, words: list[str]) -> list[str]:
    """A list that does what it did, with values in place of its variables."""
    quoted = (f'"{_ESCAPED.sub(_BACKSLASH, word)}"' if _VARIABLE.search(word) else shlex.quote(word) for word in words)
    line = f"exec {' '.join(quoted)}"
    if name == "CMD":
        return ["/bin/sh", "-c", line]
    return ["/bin/sh", "-c", f'{line} "$@"', words[0]]  # CMD, and what is typed behind the image


RULES = (unknown_instructions, unknown_stages, not_root, no_sudo, not_filled_in)
