"""Write the edit of a requirement where it belongs: in the file that has it, on its line, in the file's form."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from posixpath import join, normpath, split
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from seatrial.errors import ConfigError
from seatrial.images.requirements.pip_format import Needs, canonical_name
from seatrial.stack.facts import table
from seatrial.system.project_files import is_there, read_text

#: A lock file of a package manager, as a reason names it.
LOCK_OF = re.compile(r"((\w+)\.lock) pins")

#: Files that may list a package besides the list itself.
_FILES = ("pyproject.toml", "setup.py", "setup.cfg", "seatrial.lock")
_INCLUDED = re.compile(r"(?m)^[ \t]*(?:-r|--requirement|-c|--constraint)[ =]*(\S+)")
_SECTION = re.compile(r"(?m)^\[([^\]\[]+)\]")
_VERSIONS = r"[ \t]*\(?(?:[ \t]*[<>=!~]=?=?[ \t]*[\w.*+!-]+(?:=[\w.]+)?(?:[ \t]*,)?)*\)?"


class Place(NamedTuple):
    """Hold where a file has a requirement: ``old`` is its name, extras and versions, ``section`` that of a TOML."""

    file: str
    line: int
    old: re.Match[str]
    section: str


def written(lines: Sequence[str], needs: Needs, file: str = "") -> str:
    """Return the edits that write lines into the project's files: a command of its package manager, or a line for each.

    Poetry has ``torch = "==2.1"`` for ``torch==2.1``, ``conda list`` ``torch=2.1=pypi_0``, an environment ``pytorch``.
    """
    file = file or ("requirements.txt" if needs.source == "the imports" else needs.source)
    rows, new, sections = [], list[str](), set[str]()
    for line in lines:
        places = {each[:2]: each for own in _own(line, needs) if (each := place_of(own, needs))}.values()
        rows += [f"{each.file}:{each.line}  {each.old['old']} → {_rewritten(line, each)}" for each in places]
        new += [] if places else [line]
        sections |= {each.section for each in places}
    rows += [f"write {' and '.join(new)} in {file}"] if new else []
    lock, folder = LOCK_OF.search(needs.reason), split(needs.source)[0]
    if lock is None:
        return "\n    ".join(rows)
    command = f"{lock[2]} lock"
    if sections <= {"project", "tool.poetry.dependencies"}:
        command, rows = f"{lock[2]} add {shlex.join(lines)}", []
    return "\n    ".join([*rows, f"(cd {shlex.quote(folder)} && {command})" if folder else command])


def _own(line: str, needs: Needs) -> list[str]:
    """Return the project's own requirements of an edit's package."""
    name, found = canonical_name(line), needs.requirements
    return [each for each in (*found.lines, *found.constraints) if canonical_name(each) == name]


def place_of(line: str, needs: Needs) -> Place | None:
    """Return where the project's files have this requirement, or another of its package; None if they have none."""
    wanted = Requirement(line)
    name = canonicalize_name(wanted.name)
    foreign = table("import_names")["other_names"]
    known = [name, *(each for each, own in foreign.items() if own == name), *["pytorch"] * (name == "torch")]
    names = "|".join(each.replace("-", "[-_.]+") for each in known)
    form = re.compile(
        rf"""(?im)(?:^[ \t]*(?:-[ ]+)?(?:[\w-]+::)?|(?<=["']))(?P<old>(?P<name>{names})(?![\w-])"""
        rf"""(?P<extras>\[[^\]\n]*\])?(?P<rest>[ ]*=[ ]*(?:"[^"\n]*"|'[^'\n]*'|\{{[^}}\n]*\}})|{_VERSIONS}))"""
    )
    places = [
        (not all(each.version in match["rest"] for each in wanted.specifier), file, text, match)
        for file, text in _texts(needs)
        for match in form.finditer(text)
    ]
    if not places:
        return None
    _, file, text, match = min(places, key=lambda each: each[0])
    sections = _SECTION.findall(text[: match.start()]) if file.endswith(".toml") else []
    return Place(file, text[: match.start("old")].count("\n") + 1, match, sections[-1] if sections else "")


def _texts(needs: Needs) -> Iterator[tuple[str, str]]:
    """Yield (name, text) of the list, the files that it includes, and the project's packaging."""
    pending, seen = [needs.source, *(join(split(needs.source)[0], each) for each in _FILES), *_FILES], set[str]()
    while pending and needs.project is not None:
        if (file := normpath(pending.pop(0))) in seen or file.startswith("..") or not is_there(needs.project / file):
            continue
        seen.add(file)
        with suppress(ConfigError):
            text = read_text(needs.project / file, inside=needs.project)
            yield file, text
            pending = [*(join(split(file)[0], each) for each in _INCLUDED.findall(text)), *pending]


def _rewritten(line: str, place: Place) -> str:
    """Return a requirement in the form of the text that it replaces."""
    name, extras, versions = re.fullmatch(r"([\w.-]+)(\[.*\])?(.*)", line, re.S).groups()  # type: ignore[union-attr]
    own, rest = place.old["name"], place.old["rest"]
    conda = place.file.endswith((".yml", ".yaml"))  # whose packages have names of their own
    name = own if conda or canonicalize_name(own) not in table("import_names")["other_names"] else name
    if re.match(r" *= *\{", rest):
        return name + re.sub(r"(version *= *)([\"'])[^\"']*\2", rf"\1\2{versions}\2", rest)
    if re.match(r" *= *[\"']", rest):
        return f'{name} = "{versions}"'
    if re.fullmatch(r"=[^=]+=\S+", rest) and place.file.endswith(".txt"):
        return f"{name}={versions.lstrip('=')}=pypi_0"
    return f"{name}{extras or place.old['extras'] or ''}{versions}"
