"""Debian packages, the user, and the process that the container starts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from seatrial.images.dockerfiles.installs import Install, installs_of
from seatrial.images.dockerfiles.instructions import JOINT
from seatrial.images.dockerfiles.parts import Dockerfile, Remark
from seatrial.images.dockerfiles.shell import commands_of, words_of_list

_APT = ("apt-get", "apt", "aptitude")
_ASKING = ("install", "upgrade", "dist-upgrade", "full-upgrade", "remove", "purge", "autoremove", "build-dep")

#: Base images whose package lists were removed: apt finds no package before an update.
_NO_LISTS = re.compile(
    r"(?:docker\.io/)?(?:library/)?(?:ubuntu|debian|python|nvidia/cuda|nvcr\.io/nvidia/cuda)(?::|@|$)"
)

_REMOVES_LISTS = re.compile(r"/var/lib/apt(?:/lists)?(?:/?\*)?(?:\s|$)")


def apt_asks(file: Dockerfile) -> Iterator[Remark]:
    """apt, yum and dnf ask before they install, and nobody answers during a build."""
    assumed = any(re.search(r"Assume-Yes|assumeyes", each.value) for each in file.instructions)
    for each in installs_of(file.commands):
        if assumed or each.tool not in (*_APT, "yum", "dnf") or each.action not in _ASKING or each.command.fed:
            continue
        words = (*each.before, *each.words)
        if any(re.match(r"-(?!-)\w*[yq]\w*$", word) and ("y" in word or "qq" in word) for word in words):
            continue
        if {"--yes", "--assume-yes", "--assumeyes", "--simulate", "--dry-run", "--download-only"} & set(
            words
        ) or "$" in "".join(words[:2]):
            continue
        if {"-q=2", "--quiet=2", "--quiet=3"} & set(words):
            continue
        # It asks only if there is more to do than what is named: a keyring alone, or nothing to remove, goes through.
        surely = each.action in ("install", "build-dep") and not each.command.sometimes
        surely = surely and not {"--reinstall"} & set(words) and not all("keyring" in name for name in each.packages)
        yield Remark(
            each.line,
            "apt-asks",
            "error" if surely else "warning",
            f"{each.tool} {each.action} asks before it does more than was named, nobody answers during a "
            "build, and the "
            "build ends",
            " ".join((each.tool, each.action, "-y", *words))[:200],
        )


def apt_lists(file: Dockerfile) -> Iterator[Remark]:
    """``apt-get install`` with package lists of an older layer, or with none."""
    for stage in file.stages:
        if stage.parent is None:
            yield from _lists_from(file, stage.number, "none" if _NO_LISTS.match(stage.image) else "unknown", 0)


def _lists_from(file: Dockerfile, number: int, state: str, updated: int) -> Iterator[Remark]:
    """Follow the lists through a stage and those that start from it. ``updated``: the line of the last update."""
    told = False
    for each in file.of("RUN"):
        if each.stage != number:
            continue
        if re.search(r"--mount=\S*/var/lib/apt", each.value):
            continue  # lists of a cache, which another build may have filled
        fresh = False
        for command in file.commands_of(each):
            install = next(installs_of((command,)), None)
            if install and install.tool in _APT:
                if install.action == "update":
                    state, updated, fresh = "there", each.line, True
                elif (
                    install.action == "install"
                    and not fresh
                    and not told
                    and _from_index(install)
                    and not command.sometimes
                ):
                    remark = _stale(install, state, updated)
                    told = remark is not None
                    if remark:
                        yield remark
            elif command.words[:1] == ("rm",) and _REMOVES_LISTS.search(command.text):
                state, fresh = "none", False
            elif (
                re.search(r"\.(?:sh|deb|py|run)\b|add-apt-repository|apt-key|curl|wget", command.text)
                and state == "none"
            ):
                state = "unknown"  # scripts update the lists, too
    for child in file.stages:
        if child.parent == number:
            yield from _lists_from(file, child.number, state, updated)


def _from_index(install: Install) -> bool:
    return any(not re.search(r"\.deb$|^[./]", word) for word in install.packages)


def _stale(install: Install, state: str, updated: int) -> Remark | None:
    fix = " ".join(("RUN apt-get update &&", install.tool, "install", *install.before, *install.words))[:200]
    if state == "none":
        reason = "there are no package lists at this point: apt finds no package, and the build ends"
        return Remark(install.line, "apt-no-lists", "error", reason, fix)
    if state == "there":
        reason = (
            f"apt-get update is in another RUN (line {updated}): its layer stays cached while Debian's "
            "servers move on, and some "
            "day the packages are not found (404)"
        )
        return Remark(install.line, "apt-split", "warning", reason, fix)
    return None


def shell_entrypoint(file: Dockerfile) -> Iterator[Remark]:
    """PID 1 is the shell: what docker stop and schedulers send does not reach the program."""
    for name in ("ENTRYPOINT", "CMD"):
        each = next((one for one in reversed(file.instructions) if one.name == name and one.stage in file.chain), None)
        if each is None or not (value := each.value.strip()) or words_of_list(value) is not None:
            continue
        words = [word for command in commands_of(each) for word in command.words]
        listed = re.fullmatch(r"\[.*\]", value, re.DOTALL) and re.search(r"[,'\"]", value)
        if listed:
            quoted = re.findall(r"[\"“]([^\"“”]*)[\"”]|['‘]([^'‘’]*)['’]", value)
            plain = [item.strip().strip("'\"“”‘’") for item in value.strip("[] ").split(",") if item.strip()]
            items = [one or other for one, other in quoted] if len(quoted) >= len(plain) else plain
            yield Remark(
                each.line,
                "not-a-list",
                "error",
                f"{name} looks like a list but is not valid JSON, so /bin/sh gets it as a command and finds "
                "no program of that name",
                f"{name} {json.dumps(items)}",
            )
        elif name == "ENTRYPOINT":
            simple = len(list(commands_of(each))) == 1 and not re.search(r"[$<>*?~=]", value)
            instead = words if simple else ["/bin/sh", "-c", f"exec {_one_line(each.raw)}"]
            if value.startswith("exec "):
                continue
            yield Remark(
                each.line,
                "shell-entrypoint",
                "warning",
                "a shell is the first process: arguments of docker run are dropped, and on many bases "
                "SIGTERM does not reach the "
                "program, which is killed before it can save a checkpoint",
                f"ENTRYPOINT {json.dumps(instead, ensure_ascii=False)}",
            )


def _one_line(raw: str) -> str:
    return " ".join(raw.replace(JOINT, " ").split())


def runs_as_root(file: Dockerfile) -> Iterator[Remark]:
    """Without USER the container is root, and so is what it writes to mounted folders."""
    users = [each for each in file.of("USER") if each.stage in file.chain]
    if not users or users[-1].value.split(":")[0] in ("root", "0"):
        line = users[-1].line if users else file.instructions[-1].line
        yield Remark(
            line, "root", "warning", "it runs as root: files in mounted folders will belong to root", "USER 1000:1000"
        )


def old_keys(file: Dockerfile) -> Iterator[Remark]:
    """apt-key is gone from Debian 13 and Ubuntu 24.10; NVIDIA's key of before 2022 is revoked."""
    for command in file.commands:
        # NVIDIA's repository for machine learning is still signed with the old key.
        revoked = re.search(r"7fa2af80\.pub", command.text) and "machine-learning" not in command.text
        if revoked or (command.words[:1] == ("apt-key",) and command.words[1:2] not in (("del",), ("list",))):
            yield Remark(
                command.line,
                "apt-key",
                "error" if revoked else "warning",
                "NVIDIA changed this key in April 2022: apt rejects the packages"
                if revoked
                else "apt-key is gone from Debian 13 and Ubuntu 24.10 on: the build ends there after a "
                "change of the base",
                "install cuda-keyring_1.1-1_all.deb, or use a base that has what you need"
                if revoked
                else "curl -fsSL URL | gpg --dearmor -o /usr/share/keyrings/NAME.gpg   # and [signed-by=…] "
                "in the source",
            )


def lost_settings(file: Dockerfile) -> Iterator[Remark]:
    """``RUN export A=b``: each RUN is a shell of its own."""
    for each in file.of("RUN"):
        commands = file.commands_of(each)
        first = commands[0] if commands else None
        if first is None or not all(_sets_only(command.words) for command in commands):
            continue
        pairs = [word for word in first.words[1:] if "=" in word]
        folder = first.words[1] if first.words[0] == "cd" and len(first.words) > 1 else ""
        fix = f"ENV {pairs[0]}" if pairs else f"WORKDIR {folder}" if folder else 'SHELL ["/bin/bash", "-lc"]'
        if first.words[0] == "conda" and len(first.words) > 2:
            fix = f'SHELL ["conda", "run", "-n", "{first.words[2]}", "/bin/bash", "-c"]   # for RUN; CMD: conda run -n'
        yield Remark(
            first.line,
            "lost-setting",
            "warning",
            f"`{first.text}` is over when this RUN ends: the next line, and the container, know nothing of it",
            fix,
        )


def _sets_only(words: tuple[str, ...]) -> bool:
    return words[:1] in (("export",), ("cd",)) or words[:2] in (("source", "activate"), ("conda", "activate"))


RULES = (lost_settings, apt_asks, apt_lists, shell_entrypoint, runs_as_root, old_keys)
