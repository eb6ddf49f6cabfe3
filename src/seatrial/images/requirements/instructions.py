"""Find lists of less usual names, and what a project's Dockerfile and README install by pip, mim or conda."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

from seatrial.errors import ConfigError
from seatrial.images.lint.commands import commands_of, installs_of
from seatrial.images.lint.instructions import Instruction, read_instructions
from seatrial.images.requirements.imports import ImportedPackages, provides
from seatrial.images.requirements.other_formats import as_pip_has_it
from seatrial.images.requirements.pip_format import canonical_name, checked_requirement
from seatrial.job.script import FRAMEWORKS
from seatrial.system.project_files import is_there, read_text

_DOCKERFILES = ("Dockerfile", "docker/Dockerfile", ".devcontainer/Dockerfile")
_PAGES = tuple(
    f"{folder}{name}.{ending}"
    for folder in ("", "docs/", "doc/")
    for name in ("README", "Readme", "readme", "INSTALL", "Install", "install", "installation", "getting_started")
    for ending in ("md", "rst", "txt")
)
_MAX_BYTES = 300_000
_SHOWN = re.compile(r"(?:^|[`$>(]|&&)\s*((?:python3? -m )?(?:pip3?|mim|conda|mamba|uv pip) install [^`\n]+)")
#: Frameworks' builds follow the machine; a page is from the day when it was written.
_OPEN = (*FRAMEWORKS, "torchvision", "torchaudio", "jaxlib")


#: Words in the names of further lists for pip: the likeliest first, and those of lists for something else.
_LIKELY = ("", "train", "training", "base", "main", "core", "runtime", "default", "install", "all", "full", "gpu")
_OF_OTHERS = (
    *("dev", "develop", "test", "tests", "testing", "doc", "docs", "lint", "ci", "optional", "build", "readthedocs"),
    *("cpu", "mac", "macos", "mps", "windows", "rocm", "amd", "tpu", "npu", "demo", "app", "eval", "style", "deploy"),
)

_REQUIREMENTS, _MOST_LISTS = re.compile(r"(?:pip)?req(?:uirements?|s)?"), 50


def further_lists(folder: Path) -> list[str]:
    """Name ``requirements/runtime.txt``, ``requirements-train.txt`` and the like, the likeliest first."""
    found: dict[str, tuple[int, str]] = {}
    for path in (
        *islice(folder.glob("*req*.txt"), _MOST_LISTS),
        *islice(folder.glob("requirements/*.txt"), _MOST_LISTS),
    ):
        every = re.split(r"[\W\d_]+", path.stem.lower())
        words = [word for word in every if word and not _REQUIREMENTS.fullmatch(word)]
        if (path.parent != folder or len(words) < len(list(filter(None, every)))) and not {*words} & {*_OF_OTHERS}:
            first = words[0] if words else ""
            rank = _LIKELY.index(first) if first in _LIKELY else len(_LIKELY)
            found[path.relative_to(folder).as_posix()] = (rank, path.name)
    return sorted(found, key=lambda name: found[name])


def shown_installs(project: Path) -> Iterator[tuple[str, str]]:
    """Yield (requirement, ``README.md:12``) of each package, Dockerfiles first."""
    for name in (*_DOCKERFILES, *_PAGES):
        if not is_there(project / name):
            continue
        try:
            text = read_text(project / name, inside=project, limit_bytes=_MAX_BYTES)
        except ConfigError:  # a folder, a picture: nothing that people read
            continue
        steps = read_instructions(text) if name in _DOCKERFILES else _of_page(text)
        commands = (command for step in steps if step.name == "RUN" for command in commands_of(step))
        for each in installs_of(tuple(commands)):
            if each.action == "install":
                yield from ((line, f"{name}:{each.line}") for line in _lines(each.packages, each.tool))


def _of_page(text: str) -> Iterator[Instruction]:
    for number, line in enumerate(text.splitlines(), 1):
        if found := _SHOWN.search(line):
            command = re.sub(r"^mim ", "pip ", found[1].partition(" #")[0])
            yield Instruction("RUN", command, number, 0)


def _lines(words: list[str], tool: str) -> Iterator[str]:
    for word in words:
        line = as_pip_has_it(word) if tool == "conda" else word
        try:
            if line and "$" not in line:
                yield checked_requirement(line, "")
        except ConfigError:  # the project itself, a file, a word of the sentence around it
            continue


def with_shown(packages: ImportedPackages, project: Path) -> tuple[ImportedPackages, tuple[str, ...]]:
    """Return the packages as the project's pages install them, and ``README.md:12 installs einops==0.3`` of each."""
    names = {
        **packages.known,
        **packages.guessed,
        **packages.elsewhere,
        **dict(zip(*[packages.unknown] * 2, strict=True)),
    }
    wanted = {name: package for name, package in names.items() if name not in _OPEN}
    found: dict[str, str] = {}
    notes = []
    for line, place in shown_installs(project) if wanted else ():
        listed = canonical_name(line)
        for name, package in wanted.items():
            of_it = name.lower() in line.lower() if listed is None else provides(listed, name, package)
            if of_it and name not in found and packages.known.get(name) != line:
                found[name] = line
                notes.append(f"{place} installs {line}")
    rest = packages.without([name for name in found if name not in packages.known])
    return replace(rest, known={**rest.known, **found}), tuple(notes)
