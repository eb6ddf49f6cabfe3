"""Read requirements.txt as pip does (https://pip.pypa.io/en/stable/reference/requirements-file-format/)."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from seatrial.errors import ConfigError, fallback
from seatrial.images.requirements.named_wheels import compiled_against, pythons
from seatrial.job.plan import Choice
from seatrial.job.reading.modules import is_folder
from seatrial.stack.facts import FrameworkImage
from seatrial.system.project_files import is_there, read_text
from seatrial.system.text import as_typed, regex, shown

_VARIABLE = regex(r"\$\{[A-Z0-9_]+\}")
_URL = regex(r"^(git\+git@|(git\+|hg\+|svn\+|bzr\+)?[a-z][a-z0-9+.-]*://)")
_LOGIN_IN_URL = regex(r"https?://[^/\s@]+@")
#: ``torch>=2.0.1+cu118``, as pip below 24.1 took it: a build can be named, and not be a bound.
_LOCAL_BOUND = regex(r"((?:[<>]=?|~=)\s*\d[\w.]*)\+[\w.]+(?=\s*(?:[,;#)]|$))")
#: ``numpy==1.25.2+computecanada``: the label names a cluster's or a distribution's build, which no index has.
_LABEL = regex(r"(==\s*\d[\w.]*)(?:\+(?!cpu|cu\d|cuda|rocm|pt\d)[\w.]+|-unsupported)(?=\s*(?:[,;#)]|$))")
_CONTROL = regex(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_OWN_OPTION = regex(r"\s--?[a-z]")
#: An index of one framework's builds has few of the other packages: pip asks it besides the usual one.
_OF_ONE_FRAMEWORK = regex(r"(?:-i|--index-url)(?=[ =]\s*\S+(?:\.pytorch\.org/whl|/pytorch-wheels)(?:/\S*)?$)")
_ITSELF = regex(r"(?:file:)?(?P<folder>\.{1,2}(?:/\.{0,2})*)\s*(?:\[(?P<extras>[\w\s,.-]*)\])?")
_INDEX_OF_A_LINE = regex(r"(\S.*?)\s+(?:-i|--(?:extra-)?index-url)[ =]\s*(\S+)")
#: A folder of the project's.
_INNER = regex(r"(?:(?:-e|--editable)[ =]\s*)?(?:file:)?(?:\./)?([\w-][\w./-]*?)(?:\[[\w\s,.-]*\])?")
_ARCHIVES = (".whl", ".zip", ".tar.gz", ".tar.bz2")
#: A folder of another machine; the last part of an address or a path.
_ABSOLUTE = regex(r"[/~]|[A-Za-z]:[\\/]")
_LAST = regex(r"[/\\]([A-Za-z][\w.-]*?)(?:\.git)?[/\\]?(?:@[\w.-]+)?(?:#.*)?$")

_EXAMPLE = "write it like name>=1.2 (https://packaging.python.org/specifications/dependency-specifiers/)"

_INDEX_OPTIONS = ("-i", "--index-url", "--extra-index-url", "--no-index", "-f", "--find-links")
#: Options of a line of their own that are passed on as they stand.
_PASSED_ON = {*_INDEX_OPTIONS, "--trusted-host", "--pre", "--prefer-binary", "--no-binary", "--only-binary"}
_PASSED_ON |= {"--require-hashes", "--use-feature"}
#: Fewest lines of a frozen list, whose packages are mostly requirements of others.
_FROZEN = 30
#: Requirements of one project; an image of a thousand packages is 20 GB.
MOST_LINES = 2000
#: Characters of one requirement without its options, and files that one includes.
_MOST_CHARACTERS, _MOST_FILES = 2000, 100
#: Longest specifier of a Python; versions of thousands of digits are read only when they are compared.
_MOST_OF_PYTHON = 500


@dataclass(frozen=True)
class Requirements:
    """Hold requirements as text.

    Attributes:
        lines: one requirement each, its own options included; comments gone.
        constraints: lines of the constraints files named. overrides: what stands for each requirement of a package.
        options: lines that set an option for all of pip, e.g. ``--pre``.
        itself: "" and the names of its extras if the list contains the project (``-e .``).
        python: the Pythons that the list's file admits.
        extras: of the project as a package: canonical name → requirements; None where installing computes them.
        name: canonical name of the project as a package, where its file has one.
        conda: conda's packages that the index may not have, as pip requests them.
    """

    lines: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    itself: tuple[str, ...] = ()
    python: SpecifierSet = field(default_factory=SpecifierSet)
    extras: Mapping[str, tuple[str, ...]] | None = field(default_factory=dict)
    name: str | None = None
    conda: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()

    def plus(self, *lines: str, constraints: Iterable[str] = ()) -> Requirements:
        """Return the same requirements with further lines and constraints."""
        return replace(self, lines=(*self.lines, *lines), constraints=(*self.constraints, *constraints))

    def replaced(self, place: int, line: str) -> Requirements:
        """Return the same requirements with another one at ``lines[place]``."""
        return replace(self, lines=(*self.lines[:place], line, *self.lines[place + 1 :]))

    def of(self, package: str, *, constraints: bool = True) -> list[Requirement]:
        """Return the requirements on a package, by its canonical name, of lines and constraints, without addresses."""
        lines = (*self.lines, *(self.constraints if constraints else ()))
        return [each for line in lines if canonical_name(line) == package and (each := parsed(line))]

    @property
    def hashed(self) -> bool:
        """Return True if a line has a hash: pip then takes nothing without one."""
        return any("--hash" in line for line in self.lines)

    @property
    def unhashed(self) -> Requirements:
        """Return the same requirements without the options of lines, such as hashes."""
        options = tuple(each for each in self.options if each != "--require-hashes")
        lines = tuple(_OWN_OPTION.split(each, maxsplit=1)[0] for each in self.lines)
        return replace(self, lines=lines, options=options)

    @property
    def frozen(self) -> bool:
        """Return True for a long list with mostly pins, such as pip freeze writes on the author's machine."""
        return len(self.lines) >= _FROZEN and sum("==" in line for line in self.lines) > len(self.lines) / 2

    @property
    def names_an_index(self) -> bool:
        """Return True if the options name an index or find-links."""
        return any(option.split()[0].split("=")[0] in _INDEX_OPTIONS for option in self.options)


@dataclass
class _Reader:
    """Collects the lines of one file and of those it includes; ``place`` is the ``file:line`` being read."""

    root: Path
    lines: list[str] = field(default_factory=list)
    constraints: list[str] = field(default_factory=list)
    options: list[str] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)
    itself: list[str] = field(default_factory=list)

    def read(self, path: Path, into: list[str]) -> None:
        real = os.path.realpath(path)  # Path.resolve() raises for a link to itself
        if real in self.seen:
            return
        self.seen.add(real)
        if len(self.seen) > _MOST_FILES:
            raise ConfigError(f"{_shown(path, self.root)}: more than {_MOST_FILES} files include each other", run="ls")
        for number, line in _logical_lines(path, self.root):
            self.take(line, number, path, into)

    def take(self, line: str, number: int, path: Path, into: list[str]) -> None:
        """Add one line of the file ``path``, without its comment, to ``into``, or follow the option that it is."""
        place = f"{_shown(path, self.root)}:{number}"
        if len(self.lines) + len(self.constraints) + len(self.options) >= MOST_LINES:
            message = f"{place}: more than {MOST_LINES} lines, more than any image could need"
            raise ConfigError(message, run=f"wc -l {as_typed(path)}")
        _refuse_what_the_build_cannot_know(line, place)
        if line.startswith("-"):
            self._option(line, place, path, into)
        elif (extras := self._extras_of_itself(line, path)) is not None:
            self.itself += ["", *extras]
        elif index := _INDEX_OF_A_LINE.fullmatch(line):  # pip accepts it only on its command line
            self._option(f"--extra-index-url {index[2]}", place, path, into)
            self.take(index[1], number, path, into)
        elif not self._is_of_the_project(line, path):
            into.append(checked_requirement(line, place))

    def found(self) -> Requirements:
        itself = tuple(dict.fromkeys(self.itself))
        constraints = (*self.constraints, *compiled_against(self.lines))
        return Requirements(tuple(self.lines), constraints, tuple(self.options), itself)

    def _option(self, line: str, place: str, path: Path, into: list[str]) -> None:
        name, _, value = line.replace("=", " ", 1).partition(" ") if line.startswith("--") else line.partition(" ")
        value = value.strip()
        if name in ("-r", "--requirement", "-c", "--constraint"):
            included = path.parent / value
            if not is_there(included):
                edit = f"${{EDITOR:-vi}} +{place.rpartition(':')[2]} {as_typed(path)}   # or bring {value}"
                raise ConfigError(f"{place}: {value} does not exist", run=edit)
            self.read(included, into if name in ("-r", "--requirement") else self.constraints)
        elif name in ("-e", "--editable"):
            name = last[1] if (last := _LAST.search(value)) else ""
            absolute = _ABSOLUTE.match(value)
            elsewhere = name == self.root.name and (absolute or _URL.match(value))  # the project as the author has it
            if (extras := [] if elsewhere else self._extras_of_itself(value, path)) is not None:
                self.itself += ["", *extras]
            elif _URL.match(value) and not value.startswith("file:"):  # a copy that can be edited helps nobody here
                into.append(checked_requirement(value, place))
            elif name and absolute:
                into.append(f"{name} @ file://{value.replace(chr(92), '/')}")
            elif not self._is_of_the_project(f"./{value.removeprefix('./')}", path):
                raise _not_in_the_image(place, line)
        elif name in ("-f", "--find-links") and not _URL.match(value):
            run = 'name it in seatrial.toml: [image] find_links = "…"'
            raise ConfigError(f"{place}: the folder {value} is not in the build", run=run)
        elif name in _PASSED_ON:
            self.options.append(_OF_ONE_FRAMEWORK.sub("--extra-index-url", line))
        else:
            raise ConfigError(f"{place}: {name} is not an option of a requirements file that seatrial knows")

    def _is_of_the_project(self, line: str, path: Path) -> bool:
        """Return True for a folder of the project that pip would install: it is mounted, its setup.py read."""
        match = _INNER.fullmatch(line) if line.startswith("./") or "/" in line.partition("[")[0] else None
        folders = [base / match[1] for base in (self.root, path.parent)] if match and ".." not in line else []
        if any(is_there(folder / name) for folder in folders for name in ("setup.py", "pyproject.toml")):
            return True
        empty = (folder for folder in folders if is_folder(folder) and not any(folder.iterdir()))
        return is_there(self.root / ".gitmodules") and any(empty)  # a submodule that git has not fetched

    def _extras_of_itself(self, text: str, path: Path) -> list[str] | None:
        """Return ["dev"] for ``.[dev]``; None for what is not the project. pip takes paths from where it is called."""
        match = _ITSELF.fullmatch(text)
        folders = {os.path.normpath(base / match["folder"]) for base in (self.root, path.parent)} if match else ()
        if match is None or os.path.normpath(self.root) not in folders:
            return None
        return [extra.strip() for extra in (match["extras"] or "").split(",") if extra.strip()]


def read_requirements(path: Path, root: Path) -> Requirements:
    """Read the file and what it includes. Raises ConfigError naming ``file:line``, relative to ``root``."""
    reader = _Reader(root)
    reader.read(path, reader.lines)
    return reader.found()


def listed_requirements(listed: Iterable[tuple[int, str]], file: Path) -> Requirements:
    """Read pip's (line number, text) in another format's file. Raises ConfigError naming ``file:line``."""
    reader = _Reader(file.parent)
    for number, line in listed:
        reader.take(" ".join(line.split()), number, file, reader.lines)
    return reader.found()


def refuse_too_many(listed: Sized, place: str, file: Path) -> None:
    """Refuse more packages than an image could contain. Raises ConfigError that begins with ``place``."""
    if len(listed) > MOST_LINES:
        raise ConfigError(f"{place}: more packages than any image could contain", run=f"wc -l {as_typed(file)}")


def line_of(item: str, text: str) -> int:
    """Return the line of the first mention, since parsers of TOML and YAML keep none."""
    return text[: max(text.find(item), 0)].count("\n") + 1


def python_specifier(value: object, place: str) -> SpecifierSet:
    """Return a requires-python as a specifier. Raises ConfigError that begins with ``place``."""
    try:
        if not isinstance(value, str) or len(value) > _MOST_OF_PYTHON:  # a list it takes, too, and reads it later
            raise ValueError
        return SpecifierSet(value)
    except ValueError:  # InvalidSpecifier is one
        message = f"{place}: {shown(value)} is not a valid version specifier"
        raise ConfigError(message, run='write it like ">=3.10"') from None


def checked_requirement(text: str, place: str) -> str:
    """Return ``text`` as a requirement that the build can meet. Raises ConfigError that begins with ``place``."""
    text = text if "://" in text else _LABEL.sub(r"\1", _LOCAL_BOUND.sub(r"\1", text))
    requirement = _OWN_OPTION.split(text, maxsplit=1)[0].strip()
    if _CONTROL.search(text):  # a line break would begin a line of pip's own options
        raise ConfigError(f"{place}: {shown(text)} is not one line of text", run="write one requirement per line")
    if _URL.match(requirement):
        return text
    if requirement.startswith((".", "/", "~")) or (requirement.endswith(_ARCHIVES) and "@" not in requirement):
        raise _not_in_the_image(place, text)
    try:
        if len(requirement) > _MOST_CHARACTERS:
            raise InvalidRequirement("it is too long")
        Requirement(requirement)
    except RecursionError:
        raise ConfigError(f"{place}: {shown(requirement)} is nested too deep", run=_EXAMPLE) from None
    except ValueError as error:  # InvalidRequirement is one; so is a version of thousands of digits
        reason = str(error).splitlines()[0].rstrip(".:")
        hint = "use == instead of =" if re.search(r"\w\s*=\s*[\w.]", requirement) else None
        message = f"{place}: {shown(requirement)} is not a requirement: {reason}"
        raise ConfigError(message, cause=hint, run=_EXAMPLE) from error
    return text


@lru_cache(maxsize=2 * MOST_LINES)
def parsed(line: str) -> Requirement | None:
    """Return the requirement on a checked line; None for a bare URL."""
    text = _OWN_OPTION.split(line, maxsplit=1)[0].strip()
    return None if _URL.match(text) else Requirement(text)


def canonical_name(line: str) -> str | None:
    """Return the normalised package name of a checked line; None for a bare URL."""
    requirement = parsed(line)
    return canonicalize_name(requirement.name) if requirement else None


#: Processor of the container: this machine's on Linux; else x86_64, which most GPU machines have.
MACHINE = platform.machine() if sys.platform == "linux" else "x86_64"
#: A container's values of markers, on any machine that makes the plan.
_LINUX = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix", "platform_machine": MACHINE}


@lru_cache(maxsize=2 * MOST_LINES)
@fallback(False, on=(ValueError, KeyError, RecursionError))
def is_for(line: str, python: str, extra: str = "") -> bool:
    """Return True if the line has no marker, or one that is true on this Python's last patch; nonsense is false."""
    values = {"python_version": python, "python_full_version": f"{python}.99", "extra": extra, **_LINUX}
    marker = requirement.marker if (requirement := parsed(line)) else None
    return marker is None or marker.evaluate(values)


def _logical_lines(path: Path, root: Path) -> Iterator[tuple[int, str]]:
    """Yield (number of the first line, text) without comments and blanks, continued lines joined."""
    begun: list[str] = []
    start = 0
    for number, line in enumerate(read_text(path, inside=root).splitlines(), 1):
        start = start if begun else number
        if line.endswith("\\") and not line.lstrip().startswith("#"):
            begun.append(line[:-1])
            continue
        text = " ".join(re.sub(r"(^|\s)#.*$", "", " ".join([*begun, line])).split())
        begun = []
        if text:
            yield start, text
    if text := " ".join(" ".join(begun).split()):
        yield start, text


def _refuse_what_the_build_cannot_know(line: str, place: str) -> None:
    variable, login = _VARIABLE.search(line), _LOGIN_IN_URL.search(line)
    if variable or login:
        stays = "a password in a requirements file would stay in the build cache"
        problem = f"{variable.group()} is not set inside the build" if variable else stays
        run = 'put the index in seatrial.toml: [image] index_url = "…" (a build secret)'
        raise ConfigError(f"{place}: {problem}", run=run)


def _not_in_the_image(place: str, line: str) -> ConfigError:
    inner = _INNER.fullmatch(line.strip())
    folder = f"/workspace/{inner[1].rstrip('/')}" if inner and not inner[1].endswith(_ARCHIVES) else "/workspace"
    cause = "the project is mounted at /workspace when it runs, not copied into the image"
    run = f"remove the line, and add PYTHONPATH={folder} to [env]; for a src layout {folder}/src"
    return ConfigError(f"{place}: {shown(line)} installs from a folder that is not in the image", cause=cause, run=run)


def _shown(path: Path, root: Path) -> str:
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)


class Extension(NamedTuple):
    """A setup.py of the project that compiles modules which the target imports.

    Attributes:
        folder: it lies in, relative to the project. modules: last names of what it compiles.
        cuda: with nvcc. imports: what it imports itself.
    """

    folder: str
    modules: tuple[str, ...]
    cuda: bool
    imports: tuple[str, ...] = ()


class Guess(NamedTuple):
    """Hold a module imported at ``place`` whose package may have its name; imported and used names confirm it.

    ``sentence``: the warning until a release is inspected. ``other``: what to take unless they do; ``unread``: what
    else is listed and may have it.
    """

    module: str
    package: str
    place: str
    sentence: str
    names: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()
    origin: str = ""
    other: str = ""
    unread: tuple[str, ...] = ()


@dataclass(frozen=True)
class Needs:
    """The project's own requirements, before a framework is resolved.

    Attributes:
        source: the file they are from, as it is called in sentences.
        imports: top-level names that the target imports, by which frameworks are chosen. unused: frameworks that
            the code does not compute with, because it uses another one. feeds: TensorFlow computes nothing.
            on_cpu: the code stays on the CPU.
        warnings: what is imported and will not be installed, or is installed on a guess.
        absent: warning → (module, its package) of those that a dependency may bring after all.
        guessed: canonical name → package known by an import's name alone, listed or not.
        project: the folder whose files these are; None for a recipe.
        extensions: what is compiled of the project itself. nvcc: what runs nvcc in the run itself, or None.
        compiled: a requirement that pip compiles with nvcc, or None.
        image: the base if it is a framework image. image_choices: the plan's lines about it.
        as_of: day of the code, as 2021-09-03, by which unpinned packages were released; "" for today.
        alone: the project installs its list with ``--no-deps``.
        left_out: lines of a frozen list that nothing imports; their releases are preferred. listed: lines of all.
        names: dotted name that the target cannot start without → ``train.py:3``.
        named: package, or python → (release, ``README.md:12``) of the author's; preferred where no list has one.
        until: day of what the packages require; "" for today. unwished: Pythons, warnings without .python-version.
    """

    requirements: Requirements
    source: str
    reason: str
    imports: tuple[str, ...] = ()
    unused: Mapping[str, str] = field(default_factory=dict)
    feeds: bool = False
    on_cpu: bool = False
    warnings: tuple[str, ...] = ()
    absent: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    guessed: Mapping[str, Guess] = field(default_factory=dict)
    project: Path | None = None
    extensions: tuple[Extension, ...] = ()
    nvcc: str | None = None
    compiled: str | None = None
    image: FrameworkImage | None = None
    image_choices: tuple[Choice, ...] = ()
    as_of: str = ""
    alone: bool = False
    left_out: tuple[str, ...] = ()
    listed: int = 0
    names: Mapping[str, str] = field(default_factory=dict)
    named: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    until: str = ""
    unwished: tuple[SpecifierSet, tuple[str, ...]] = (SpecifierSet(), ())

    @property
    def python(self) -> SpecifierSet:
        """Return the Pythons that the project admits: ``requires-python``, .python-version, the wheels it names."""
        return self.requirements.python & pythons(self.requirements.lines)

    def changed(self, requirements: Requirements, *, why: str = "", warning: str = "") -> Needs:
        """Return the needs with other requirements, and the reason for them or a warning."""
        reason = f"{self.reason}; {why}" if why else self.reason
        warnings = (*self.warnings, warning) if warning else self.warnings
        return replace(self, requirements=requirements, reason=reason, warnings=warnings)

    def with_lines(self, lines: Iterable[str], *, why: str = "", warning: str = "") -> Needs:
        """Return the needs with other lines, and the reason for them or a warning."""
        return self.changed(replace(self.requirements, lines=tuple(lines)), why=why, warning=warning)

    def judged(self, name: str, *lines: str, why: str = "", warning: str = "") -> Needs:
        """Return the needs with these lines in place of a guess, and the reason or a warning."""
        left = {each: guess for each, guess in self.guessed.items() if each != name}
        kept = tuple(each for each in self.warnings if each != self.guessed[name].sentence)
        others = (line for line in self.requirements.lines if canonical_name(line) != name)
        return replace(self, guessed=left, warnings=kept).with_lines((*others, *lines), why=why, warning=warning)

    @property
    def choice(self) -> Choice:
        return Choice(what="packages", value=", ".join(self.requirements.lines) or "none", reason=self.reason)
