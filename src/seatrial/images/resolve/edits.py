"""Write an edit of a requirement for the file and the line that list it, in the file's format."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from posixpath import join, normpath, split

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from seatrial.errors import ConfigError
from seatrial.images.requirements.other_formats import ENVIRONMENT_FILES
from seatrial.images.requirements.pip_format import Needs, canonical_name
from seatrial.stack.facts import table
from seatrial.system.project_files import is_there, read_text

#: A lock file of a package manager, as a reason names it.
LOCK_OF = re.compile(r"((\w+)\.lock) pins")

#: Names of packages that stand for another: tensorflow-gpu, pytorch.
_OTHER_NAMES: dict[str, str | None] = table("import_names")["other_names"]

#: Marker of an edit that removes a requirement.
GONE = ' ; python_version < "0"'

#: Fix of code that no edit of a list mends.
CHANGE_IMPORT = "change the import"

#: Files that may list a package besides the list itself.
_FILES = ("pyproject.toml", "setup.py", "setup.cfg", "seatrial.lock")
_INCLUDED = re.compile(r"(?m)^[ \t]*(?:-r|--requirement|-c|--constraint)[ =]*(\S+)")
_SECTION = re.compile(r"(?m)^\[([^\]\[]+)\]")
_KEY = re.compile(r"(?m)^[ \t]*([\w-]+)[ \t]*=")
_OF_CONDA = r"\d[^\s-]*-[^\s-]+\.(?:tar\.bz2|conda)\b"
_VERSIONS = r"[ \t]*\(?(?:[ \t]*[<>=!~]=?=?[ \t]*[\w.*+!-]+(?:=[\w.]+)?(?:[ \t]*,)?)*\)?"


def written(lines: Sequence[str], needs: Needs) -> str:
    """Return the edits that put lines in the project's files: a command of its package manager, or one row a line."""
    rows, new, sections = [], list[str](), set[str]()
    if lock := LOCK_OF.search(needs.reason):  # its tool knows no page of builds, and seatrial takes the GPU's
        lines = [re.sub(r"(?<=\d)\+\w+", "", each) for each in lines]
    for line in lines:
        name, of = canonical_name(line) or "", needs.requirements.of
        own = [*of(name), *of(f"{name}-cpu")] or [Requirement("python")] * line.startswith("python==")
        places = {at[0]: at for each in own for at in _places_of(each, needs)}.values()
        pairs = [(place, match["old"].rstrip(), _rewritten(line, match, place)) for place, _, match in places]
        rows += [f"{place}  {old} → {edited}" for place, old, edited in pairs if old != edited]
        sections |= {section for _, section, _ in places}
        sections |= {"a removal"} if GONE in line or name == "python" else set()
        new += [] if places else [line]
    rows += [f"write {' and '.join(new)} in {needs.source.replace('the imports', 'requirements.txt')}"] if new else []
    rows += [f"write the hashes in {needs.source} anew"] if needs.requirements.hashed and rows else []
    if lock:
        added = sections <= {"project", "tool.poetry.dependencies"}
        command = f"{lock[2]} add {shlex.join(lines)}" if added else f"{lock[2]} lock"
        folder = split(needs.source)[0]
        rows = [*([] if added else rows), f"(cd {shlex.quote(folder)} && {command})" if folder else command]
    found = (re.search(rf"(\S+) asserts {canonical_name(line)} [^;,\s]+", needs.reason) for line in lines)
    rows += [f"{each[1]}  allow this version, too" for each in found if each]
    return "\n    ".join(rows)


def place_of(wanted: Requirement, needs: Needs) -> tuple[str, str, re.Match[str]] | None:
    """Return (``requirements.txt:4``, section of a TOML, text) of a requirement or another of its package; or None."""
    return next(_places_of(wanted, needs), None)


def _places_of(wanted: Requirement, needs: Needs) -> Iterator[tuple[str, str, re.Match[str]]]:
    """Yield the places in one file, only those with the requirement's versions if it has any."""
    name = canonicalize_name(wanted.name)
    others = [foreign for foreign, own in _OTHER_NAMES.items() if own == name]
    others += ["requires-python", "python-requires"] * (name == "python")
    others += ["python-version"] * (name == "python" and needs.source.endswith("Pipfile"))  # elsewhere mypy's
    names = "|".join([name, *others]).replace("-", "[-_.]+")
    form = re.compile(
        rf"""(?im)(?:^[ \t]*(?:-[ ]+)?(?:[\w-]+::)?|(?<=["']))(?P<old>(?:https?://\S+/)?(?P<name>{names})"""
        rf"""(?!\w|-(?!{_OF_CONDA}))(?P<extras>\[[^\]\n]*\])?(?P<rest>-{_OF_CONDA}"""
        rf"""|[ ]*=[ ]*(?:"[^"\n]*"|'[^'\n]*'|\{{[^}}\n]*\}})|[ ]*@[ ]*[^\s"';]+|{_VERSIONS}))"""
    )
    texts = _texts(needs, *(ENVIRONMENT_FILES if name == "python" else ()))
    places = [(file, text[: match.start("old")], match) for file, text in texts for match in form.finditer(text)]
    places.sort(key=lambda each: not all(part.version in each[2]["rest"] for part in wanted.specifier))
    first = None
    for file, above, match in places:
        kind = file, all(part.version in match["rest"] for part in wanted.specifier)
        section, key = ([*form.findall(above), ""][-2:][0] for form in (_SECTION, _KEY))
        listed = not file.endswith(".toml") or "depend" in section + key  # no keyword, nor a package's index
        if first in (None, kind) and (match["rest"].strip() if name == "python" else listed):
            first = kind
            yield f"{file}:{above.count(chr(10)) + 1}", section if file.endswith(".toml") else "", match


def _texts(needs: Needs, *others: str) -> Iterator[tuple[str, str]]:
    """Yield (name, text) of the list, the files that it includes, other files, and the project's packaging."""
    pending = [needs.source, *others, *(join(split(needs.source)[0], each) for each in _FILES), *_FILES]
    seen = set[str]()
    while pending and needs.project is not None:
        if (file := normpath(pending.pop(0))) not in seen and is_there(needs.project / file):
            seen.add(file)
            with suppress(ConfigError):  # it cannot be read, or lies outside
                yield file, (text := read_text(needs.project / file, inside=needs.project))
                pending = [*(join(split(file)[0], each) for each in _INCLUDED.findall(text)), *pending]


def _rewritten(line: str, match: re.Match[str], place: str) -> str:
    """Return a requirement in its file's format: ``torch = "==2.1"`` for Poetry, ``torch=2.1=pypi_0`` for conda."""
    name, extras, versions = re.fullmatch(r"([\w.-]+)(\[.*\])?(.*)", line, re.S).groups()  # type: ignore[union-attr]
    own, rest = match["name"], match["rest"]
    if versions == GONE:
        return "remove it: the target does not import it"
    if name == "python" and (".y" in place or "Pipfile" in place):
        versions = versions[1 + ("Pipfile" in place) :].removesuffix(".*")
    name = own if ".y" in place or canonicalize_name(name) in ("python", canonicalize_name(own)) else name  # conda's
    if re.match(r" *= *[\"'{]", rest):
        if versions.startswith(" @ git+"):
            return f'{name} = {{git = "{versions[7:]}"}}'
        form = re.compile(r"((?:\bversion|^) *= *[\"'])[^\"']*")
        return name + form.sub(rf"\g<1>{versions}", rest if form.search(rest) else '= ""', count=1)
    if re.fullmatch(r"=[^=]+=\S+", rest) and ".txt:" in place and re.fullmatch("==[^,]+", versions):  # else no range
        return f"{name}={versions.lstrip('=')}=pypi_0"
    return f"{name}{extras or match['extras'] or ''}{versions}"
