"""Find tools and modules that a build from source needs, and indexes of projects with wheels for one torch."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from seatrial.errors import ConfigError, fallback
from seatrial.images.requirements.imports import packages_of_imports
from seatrial.images.requirements.pip_format import Requirements, canonical_name, checked_requirement, parsed
from seatrial.job.reading.modules import STANDARD_MODULES
from seatrial.job.reading.signs import tops_of
from seatrial.stack.facts import table
from seatrial.stack.resolve import Stack
from seatrial.system.project_files import parse_toml
from seatrial.system.source import UnreadableSourceError, parse_source

#: End of a source's name → Debian packages that compile it; a word of its build files → Debian packages.
_LANGUAGES = {
    **dict.fromkeys((".c", ".cc", ".cpp", ".cu", ".cxx", ".pyx"), ()),
    **dict.fromkeys((".f", ".f90"), ("gfortran",)),
    ".rs": ("cargo",),
}
_PROGRAMS = {"cmake": ("cmake",), "swig": ("swig",), "pkg-config": ("pkg-config",), "mesonpy": ("pkg-config",)}

#: Modules that count even if setup.py imports them in a function; others count only if setup.py fails without them.
_ANYWHERE = {"torch", "numpy", "Cython"}
_NOT_NEEDED = {"setuptools", "pkg_resources", "distutils", "wheel", "pip", "skbuild"}

#: Folders of build tools and built wheels; the layer keeps neither.
_TOOLS, BUILT = "/tmp/tools", "/tmp/built"


@dataclass(frozen=True)
class SourceBuild:
    """Hold what pip needs to build one package.

    Attributes:
        line: as pip gets it. tools: Debian packages, besides a compiler. modules: packages that it imports while it is
            built, from around it instead of an environment of its own; () if what it declares is enough.
        compiles: it has code to compile.
        assigned: environment variables for the build. read: this is from its source or a table, not a guess.
        at: the release, where the day of the code or the resolver decides it. lacks: a missing file of its own code.
    """

    name: str
    line: str
    tools: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    compiles: bool = True
    cuda: bool = False
    openmp: bool = False
    legacy: bool = False
    assigned: str = ""
    read: bool = True
    at: str = ""
    lacks: str = ""

    @property
    def requirement(self) -> str:
        """Return the line without the options that a list may have for it."""
        return f"{self.name}=={self.at}" if self.at else self.line.partition(" --")[0]

    @property
    def in_sight(self) -> bool:
        """Return True if the build needs the image's packages."""
        return bool(self.modules) or self.legacy


def known_build(line: str) -> SourceBuild | None:
    """Look up a package or a git repository in the table; None if it has no row."""
    requirement = parsed(line)
    address = (requirement.url if requirement else line) or ""
    repository = re.search(r"/([\w.-]+?)(?:\.git)?/?(?:[@#?]|$)", address.partition("://")[2])
    folder = re.search(r"subdirectory=(?:[^&]*/)?([\w.-]+)", address)
    names = [requirement.name] if requirement else []
    names += [each[1] for each in (folder, repository) if each]
    known: dict[str, dict[str, Any]] = table("source_builds")["known"]
    name = next((name for name in map(canonicalize_name, names) if name in known), None)
    if name is None:
        return None
    row = known[name]
    tools, modules = (tuple(row.get(key, "").split()) for key in ("tools", "modules"))
    cuda, openmp, assigned = row.get("cuda", False), "torch" in modules, row.get("set", "")
    return SourceBuild(name, line, tools, modules, cuda=cuda, openmp=openmp, legacy=bool(modules), assigned=assigned)


def read_build(name: str, line: str, names: Iterable[str], texts: Mapping[str, str]) -> SourceBuild:
    """Read the needs of a build from its source files and the table of headers."""
    paths = [PurePosixPath(each) for each in names]
    stems = {each.stem for each in paths if each.suffix in {*_LANGUAGES, ".i"}}
    ends = {each.suffix for each in paths} & {*_LANGUAGES}
    setup, project = (texts.get(each, "") for each in ("setup.py", "pyproject.toml"))
    declared = _declared(project)
    words = "\n".join((setup, project)).lower()
    compiled = re.findall(r"""["']([\w./-]+\.(?:cu|c|cc|cpp|cxx))["']""", setup)
    headers = table("source_builds")["headers"].get(name, "").split()
    programs = {tool for word, tools in _PROGRAMS.items() if word in words for tool in tools}
    needed = _imported(setup, {each.parts[0].removesuffix(".py") for each in paths if each.parts})
    newer = {"pkg_resources", "use_2to3"} & set(re.findall(r"\w+", setup))  # which setuptools no longer has
    packages = set() if newer else {canonical_name(each) for each in declared or ()}
    known = packages_of_imports(needed, ()).known.values()  # a guessed name may be another project
    lines = [each for each in known if canonical_name(each) not in packages]
    if "torch" in needed:  # its declared torch would be another build
        lines = [*{*lines, "torch"}, *(each for each in declared or () if canonical_name(each) != "torch")]
    if newer:
        lines += [each for each in declared or () if canonical_name(each) not in ("setuptools", "wheel")]
        lines += ["setuptools<58"] * ("use_2to3" in newer)
    listed = known_build(line)
    cuda = (".cu" in ends or "CUDAExtension" in setup) and "torch" in needed
    return SourceBuild(
        name,
        line,
        tuple(sorted({*headers, *(tool for each in ends for tool in _LANGUAGES[each]), *programs})),
        tuple(sorted(lines)),
        compiles=bool(ends or headers or cuda),
        cuda=cuda,
        openmp="openmp" in words or "torch" in needed,
        legacy=declared is None or bool(newer),
        assigned=listed.assigned if listed else "",
        lacks="" if any(PurePosixPath(each).stem in stems for each in compiled) else next(iter(compiled), ""),
    )


@fallback(None, on=ConfigError)
def _declared(project: str) -> list[str] | None:
    """Return the requirements of ``[build-system]``; None for an older source without the table."""
    system = parse_toml(project, Path("pyproject.toml")).get("build-system")
    if not isinstance(system, dict) or not isinstance(requires := system.get("requires"), list):
        return None
    return [each for each in requires if isinstance(each, str) and _is_requirement(each)]


@fallback(False, on=ConfigError)
def _is_requirement(text: str) -> bool:
    return "://" not in checked_requirement(text, "pyproject.toml")


@fallback(frozenset(), on=UnreadableSourceError)
def _imported(setup: str, own: Collection[str]) -> Set[str]:
    """Return the third-party modules that setup.py needs to run and to build all extensions."""
    tree = parse_source(setup.encode(), "setup.py")
    return {*tops_of(tree.body), *(_ANYWHERE & tops_of(ast.walk(tree)))} - STANDARD_MODULES - _NOT_NEEDED - {*own}


def debian_packages(builds: Iterable[SourceBuild]) -> tuple[str, ...]:
    """Return the Debian packages of the stage that builds them; () if all are plain Python."""
    compiled = [each for each in builds if each.compiles]
    return tuple(sorted({"build-essential", *(tool for each in compiled for tool in each.tools)})) if compiled else ()


def wheel_commands(
    builds: Iterable[SourceBuild],
    pip: str,
    options: str,
    stack: Stack,
    sms: tuple[str, ...],
    installed: Collection[str | None],
) -> Iterator[str]:
    """Yield commands that build wheels into BUILT; sources without ``[build-system]`` get a setuptools of their age."""
    own = {*installed, "torch", "setuptools", "wheel"}
    torch = Version(stack.wheel.version) if stack.wheel and stack.wheel.framework == "torch" else None
    old = bool(stack.python) and Version(stack.python) < Version("3.12")
    for legacy in (True, False):
        chosen = [each for each in builds if each.in_sight and each.legacy == legacy]
        tools = {tool for each in chosen for tool in each.modules if canonical_name(tool) not in own or "<" in tool}
        if torch and any("torch" in each.modules for each in chosen):  # before 2.4 it imports pkg_resources.packaging
            tools |= {"setuptools<70", "wheel<0.46"} if torch < Version("2.4") else {"setuptools<81", "wheel"}
        else:
            tools |= {"setuptools<66", "wheel<0.40"} if legacy and old else {"setuptools<81", "wheel"}
        tools = {"cython<3" if canonical_name(tool) == "cython" and legacy else tool for tool in tools} | {"ninja"}
        assigned = [f"PYTHONPATH={_TOOLS}", f"PATH={_TOOLS}/bin:$PATH"]
        if any(each.cuda for each in chosen) and not stack.cpu:
            assigned.append(f"FORCE_CUDA=1 TORCH_CUDA_ARCH_LIST='{';'.join(sms)}'")
        assigned += [each.assigned.format(sm=";".join(sms).replace(".", "")) for each in chosen if each.assigned]
        if chosen:
            lines = shlex.join(each.requirement for each in chosen)
            yield f"{pip} install -q --target {_TOOLS} {shlex.join(sorted(tools))}"
            build = f"{' '.join(assigned)} {pip} wheel --no-deps --no-build-isolation -w {BUILT}"
            yield " ".join(filter(None, (build, options, lines)))
            yield f"rm -r {_TOOLS}"


def own_page(line: str, stack: Stack, sms: Collection[str]) -> str | None:
    """Return the address of a package's wheels for this build of torch; None if the table has none."""
    if stack.wheel is None or stack.wheel.framework != "torch" or (wanted := _named(line)) is None:
        return None
    release = ".".join(stack.wheel.version.split(".")[:2])
    for row in _rows(wanted):
        of_torch = Version(row["torch"][0]) <= Version(release) <= Version(row["torch"][1])
        most_sm = Version(row.get("most_sm", "99"))
        has_code = not row.get("gpus") if stack.cpu else all(Version(sm) <= most_sm for sm in sms)
        least = Version(row.get("least", {}).get(canonical_name(line), "0"))
        if of_torch and has_code and _newest(wanted.specifier) >= least:
            return str(row["page"].format(torch=release, build=stack.build))
    return None


def newest_torch(line: str) -> str | None:
    """Return ``2.5`` for a package with wheels up to torch 2.4; None for a package without a known limit."""
    wanted = _named(line)
    most = max((Version(row["torch"][1]) for row in _rows(wanted)), default=None) if wanted else None
    return f"{most.major}.{most.minor + 1}" if most else None


def companions(found: Requirements, at: Mapping[str, str] | None = None, numpy_1: Iterable[str] = ()) -> dict[str, str]:
    """Return requirement → the listed package, or the one of a lock with the releases ``at``, that does not declare it.

    Never both builds of mmcv, and old users of the old one. ``numpy_1``: packages of the lock compiled for NumPy 1.
    """
    have, locked = {canonical_name(line): line for line in found.lines}, at or {}
    compiled = [{"of": name, "lines": "numpy<2"} for name in numpy_1 if "numpy" in locked]
    rows = [row for row in (*table("source_builds")["companions"], *compiled) if row["of"] in {*have, *locked}]
    rows = [row for row in rows if "with" not in row or (locked and row["with"] in have)]
    open_ones = [row for row in rows if have.get(row["of"]) == row["of"] and "mmcv-full" in have]
    users: dict[str, str]
    users = {row["of"] + row["releases"]: row["of"] for row in open_ones if "mmcv-full" in row["lines"]}
    own = {row["of"]: [Requirement(f"{row['of']}=={locked[row['of']]}")] for row in rows if row["of"] in locked}
    fitting = (row for row in rows for each in own.get(row["of"]) or found.of(row["of"]) if _is_about(row, each))
    cuda = locked.get("cuda")
    built = (row for row in fitting if "cuda" not in row or (cuda and cuda in SpecifierSet(row["cuda"])))
    needed = {line: row["of"] for row in built for line in row["lines"].split()}
    limits = ("<", "<=", "==", "~=")  # where the author has one, the list decides
    for line, of in needed.items():
        name, bound, wanted = canonical_name(line) or "", Requirement(line).specifier, _bounds(found, line)
        if name.startswith("mmcv") and have.keys() & {"mmcv", "mmcv-full"}:
            continue
        if name not in {*have, *locked}:
            users[name if found.of(name) else line] = of  # or a lock's pin
        elif not locked and not {each.operator for each in wanted}.isdisjoint(limits):
            continue
        elif locked.get(name, _newest(wanted)) not in bound and (locked or fits(found, line)):
            users[line] = of
    return users


def fits(found: Requirements, line: str) -> bool:
    """Return True if the requirements on the line's package admit a release that the line admits."""
    return _newest(Requirement(line).specifier & _bounds(found, line)) > Version("0")


def _bounds(found: Requirements, line: str) -> SpecifierSet:
    return SpecifierSet(",".join(str(x.specifier) for x in found.of(canonical_name(line) or "") if x.specifier))


def _named(line: str) -> Requirement | None:
    return requirement if (requirement := parsed(line)) and not requirement.url else None


def _rows(wanted: Requirement) -> list[dict[str, Any]]:
    """Return the package's rows of the table for the newest release that the requirement admits."""
    name, rows = canonicalize_name(wanted.name), table("source_builds")["pages"]
    return [row for row in rows if name in row["packages"].split() and _is_about(row, wanted)]


def _is_about(row: Mapping[str, Any], wanted: Requirement) -> bool:
    return SpecifierSet(row.get("releases", "")).contains(_newest(wanted.specifier), prereleases=True)


def _newest(specifier: SpecifierSet) -> Version:
    """Estimate the newest release that a specifier admits: 99 without an upper bound, 1.99 for ``<2``."""
    named = {Version(each.version.removesuffix(".*")) for each in specifier}
    stable = [each for each in named if each.major]
    below = {Version(f"{each.major}.{each.minor - 1}.99" if each.minor else f"{each.major - 1}.99") for each in stable}
    order = (Version("99"), *sorted(named | below, reverse=True))
    return next((each for each in order if specifier.contains(each, prereleases=True)), Version("0"))
