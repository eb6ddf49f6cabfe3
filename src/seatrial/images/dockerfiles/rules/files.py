"""Files that a command needs before a COPY brings them."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from seatrial.images.dockerfiles.installs import Install, installs_of
from seatrial.images.dockerfiles.instructions import JOINT, Instruction
from seatrial.images.dockerfiles.parts import Dockerfile, Remark
from seatrial.images.dockerfiles.shell import options_and_rest, words_of_list

#: Commands that can put a file where a later one reads it.
_FETCH = re.compile(
    r"git\b.*\bclone|\b(?:curl|wget|aria2c|tar|unzip|cp|mv|tee|gsutil|aws|sed)\b|>>?\s*\S|pip[-\w]*compile|uv export"
)


def files_before_copy(file: Dockerfile) -> Iterator[Remark]:
    """``pip install -r`` of a file that nothing has brought into the image at that line."""
    for each in file.of("RUN"):
        if each.stage < 0 or "--mount=type=bind" in each.value:
            continue
        for install in installs_of(tuple(file.commands_of(each))):
            if install.command.sometimes:
                continue
            for name in _needed(install):
                if "$" in name or "://" in name or name.startswith("/dev/") or name == "-":
                    continue
                remark = _missing(file, each, install, name)
                if remark:
                    yield remark


def _needed(install: Install) -> list[str]:
    """Files and folders of the project that an installation reads."""
    names = list(install.files)
    if install.tool in ("pip", "uv") and install.action == "install":
        options = dict(zip((*install.before, *install.words), (*install.words, ""), strict=False))
        editable = options.get("-e") or options.get("--editable")
        local = [word.partition("[")[0] for word in install.packages if re.match(r"\.(?:/|\[|$)", word)]
        names += [each for each in [editable or "", *local] if re.match(r"\.(?:/|\[|$)", each)]
    return names


def _missing(file: Dockerfile, at: Instruction, install: Install, name: str) -> Remark | None:
    """The remark if nothing before brings the file and a COPY behind it would."""
    chain = _chain_of(file, at.stage)
    before = [each for each in file.instructions if each.stage in chain and each.line < at.line]
    after = [each for each in file.instructions if each.stage == at.stage and each.line > at.line]
    wanted = PurePosixPath(name).name or "."
    for each in before:
        if each.name in ("COPY", "ADD") and ("--from=" in each.value or _brings(each, wanted)):
            return None
        if each.name == "RUN" and _FETCH.search(each.value):
            return None
    own = at.value.partition(name)[0]
    if _FETCH.search(re.sub(r"\d?>&\d|>=?\s*/dev/null", "", own)) or re.search(r"\bcd\s|pushd", own):
        return None
    later = next((each for each in after if each.name in ("COPY", "ADD") and _brings(each, wanted)), None)
    if later is None:
        return None
    shown = name if wanted != "." else "the project"
    return Remark(
        install.line,
        "file-before-copy",
        "error",
        f"{shown} is not in the image yet: the COPY that brings it is line {later.line}, so the build ends here",
        f"COPY {name} ./   # above line {at.line}" if wanted != "." else f"move line {later.line} above line {at.line}",
    )


def _brings(copy: Instruction, wanted: str) -> bool:
    """Whether a COPY's sources have this name, or are folders or patterns that can have it."""
    options, rest = options_and_rest(copy.raw)
    if any(option.startswith("--from=") for option in options):
        return False
    words = words_of_list(rest.replace(JOINT, "").strip()) or rest.replace(JOINT, " ").split()
    if words and PurePosixPath(words[-1]).name == wanted:
        return True
    for source in words[:-1]:
        last = PurePosixPath(source.strip("\"'")).name or "."
        if source in (".", "./", "*", "/") or wanted == "." or "$" in source or source.startswith("<<"):
            return True
        if fnmatch.fnmatch(wanted, last) or source.endswith("/") or not re.search(r"\.\w", last):
            return True
    return False


def _chain_of(file: Dockerfile, number: int) -> set[int]:
    found: set[int] = set()
    at: int | None = number
    while at is not None:
        found.add(at)
        at = file.stages[at].parent
    return found


RULES = (files_before_copy,)
