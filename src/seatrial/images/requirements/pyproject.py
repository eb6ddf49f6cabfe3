"""pyproject.toml and lock files: what a project depends on, by ``[project]``, groups, Poetry's table and uv's sources.

Formats: https://packaging.python.org/en/latest/specifications/dependency-groups/,
https://python-poetry.org/docs/dependency-specification/ and
https://docs.astral.sh/uv/concepts/projects/dependencies/#dependency-sources
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, compress, islice
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from seatrial.errors import ConfigError, fallback
from seatrial.images.requirements import pip_format
from seatrial.images.requirements.pip_format import Requirements, canonical_name, checked_requirement, line_of, parsed
from seatrial.job.reading.modules import FRAMEWORKS
from seatrial.stack.resolve import PYTHONS
from seatrial.stack.rules import PARTNERS
from seatrial.system import project_files
from seatrial.system.project_files import as_list, as_table, is_there, matching, parse_toml, read_text
from seatrial.system.text import regex, shown

#: uv.lock of a project with hundreds of packages has two million bytes, most of them URLs and hashes.
_MAX_LOCK_BYTES = 16_000_000

#: An entry of an array in uv.lock: a wheel, a dependency. Nothing in them is read here.
_ARRAY_ENTRY = regex(r"^    \{.*\n", re.MULTILINE)

#: Packages whose versions belong to one build of torch, which may not be the build that was locked.
_OF_A_BUILD = ("nvidia-", "cuda-", "triton", "pytorch-triton")

#: Packages whose release decides the Python, and so is the same for each.
_DECIDING = (*FRAMEWORKS, "jaxlib", *chain(*PARTNERS.values()))
_EXTRA, _MOST_EXTRAS = regex(r"extra == ['\"]([^'\"]+)"), 20

#: Characters of one of Poetry's constraints.
_MOST_CHARACTERS = 500
_PART = regex(r"(?P<sign>\^|~(?!=)|~=|===|==|=|!=|>=|<=|>|<)?\s*(?P<version>[vV]?\d[\w.+!-]*?(?:\.\*)?)$")

#: An index as an option of pip's: one word without a login. PyTorch's are left out, as a framework's build is chosen
#: for the target.
_INDEX = regex(r"https?://(?!download\.pytorch\.org/)[^\s@]+")

#: Most folders above a project that are searched for its workspace, and most members of a workspace that are read.
_MOST_ABOVE, _MOST_MEMBERS = 5, 200


class _PyProject:
    """A pyproject.toml's tables. Raises ConfigError naming ``file:line``."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.text = read_text(file, inside=file.parent, limit_bytes=project_files.MAX_PARSED_BYTES)
        self.whole = parse_toml(self.text, file)
        self.poetry = as_table(self.whole, "tool", "poetry")
        self.project = self._table(self.whole, "project")
        self.sources, self.indexes = _uv_sources(self.whole, file.parent)

    def _table(self, table: dict[str, Any], key: str, place: str = "") -> dict[str, Any]:
        value = table.get(key, {})
        if not isinstance(value, dict):
            raise _wrong(place or key, "a table", value, self.file)
        return value

    def listed(self, value: Any, key: str) -> list[str]:
        """Return a list's requirements, each from its source."""
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise _wrong(key, "a list of strings", value, self.file)
        pip_format.refuse_too_many(value, f"{self.file.name}: {key}", self.file)
        lines = [checked_requirement(item, f"{self.file.name}:{line_of(item, self.text)}") for item in value]
        return _sourced(lines, self.sources, f"{self.file.name}: tool.uv.sources")

    def extras(self) -> dict[str, list[str]]:
        """Read ``[project.optional-dependencies]``."""
        key = "project.optional-dependencies"
        extras = self._table(self.project, "optional-dependencies", key)
        return {name: self.listed(extras[name], f"{key}.{name}") for name in sorted(extras)}

    def groups(self) -> list[str]:
        """Read ``[dependency-groups]`` and uv's older ``dev-dependencies``; a group in a group is read by itself."""
        groups = as_table(self.whole, "dependency-groups")
        lists = {f"dependency-groups.{name}": lines for name, lines in groups.items()}
        lists["tool.uv.dev-dependencies"] = as_table(self.whole, "tool", "uv").get("dev-dependencies")
        read = ((key, lines) for key, lines in lists.items() if isinstance(lines, list))
        own = ((key, [each for each in lines if not isinstance(each, dict)]) for key, lines in read)
        return [line for key, lines in own for line in self.listed(lines, key)]

    def index_options(self, lines: Iterable[str]) -> tuple[str, ...]:
        """Return pip's options for the indexes that uv takes these packages from; pip asks them for all others, too."""
        named = (_first(self.sources.get(canonical_name(line) or "")) for line in lines)
        urls = (self.indexes.get(str(each.get("index"))) for each in named if not {"group", "extra"} & each.keys())
        return tuple(dict.fromkeys(f"--extra-index-url {url}" for url in urls if url and _INDEX.fullmatch(url)))

    def python(self) -> SpecifierSet:
        """Read ``requires-python``, or Poetry's ``python = "^3.9"``; empty where neither is there."""
        if (value := self.project.get("requires-python")) is not None:
            return pip_format.python_specifier(value, "pyproject.toml: project.requires-python")
        wish = as_table(self.poetry, "dependencies").get("python")
        if not isinstance(wish, str) or len(wish) > _MOST_CHARACTERS:
            return SpecifierSet()
        try:
            return _specifier(wish)
        except ValueError:
            raise _no_version(self.file, "tool.poetry.dependencies.python", wish) from None


def read_pyproject(file: Path, imported: Iterable[str] | None = ()) -> Requirements | None:
    """Read dependencies of ``[project]`` or else Poetry's, imported extras and groups included; None if there are none.

    Without ``imported`` no group is read: a broken one refuses nothing. Raises ConfigError naming ``file:line``.
    """
    tables, required, extras = _PyProject(file), list[str](), dict[str, list[str]]()
    table, lists = tables.project, "dependencies" in tables.project
    poetry = None if lists else poetry_requirements(tables.poetry, file)
    if lists:
        required, extras = tables.listed(table["dependencies"], "project.dependencies"), tables.extras()
        optional = [line for lines in extras.values() for line in lines]
    else:
        required, optional = poetry or ([], [])
    if imported is not None:
        optional = [*optional, *tables.groups(), *(_poetry_groups(tables.poetry, file) if lists else ())]
    uv = as_table(_workspace(file.parent)[1] or tables.whole, "tool", "uv")  # a member's own lists count for nothing
    keys = ("override-dependencies", "constraint-dependencies")
    overrides, bounds = (tables.listed(uv.get(key, []), f"tool.uv.{key}") for key in keys)
    listed = (*required, *_imported(optional, required, imported or ()))
    instead = defaultdict[str | None, list[str]](list)
    for line in overrides:
        instead[canonical_name(line)].append(line)
    own = (instead.get(canonical_name(line) or "", [line]) for line in listed)
    lines = tuple(dict.fromkeys(chain.from_iterable(own)))  # of extras and markers nothing stays, as with uv
    if not lines and not lists and poetry is None:
        return None
    dynamic, name = table.get("dynamic"), table.get("name")
    computed = not lists or (isinstance(dynamic, list) and "optional-dependencies" in dynamic)
    return Requirements(
        lines,
        constraints=tuple(bounds),
        overrides=tuple(overrides),
        options=tables.index_options(lines),
        python=tables.python(),
        extras=None if computed else {canonicalize_name(extra): tuple(each) for extra, each in extras.items()},
        name=canonicalize_name(name) if isinstance(name, str) else None,
    )


def _imported(optional: Iterable[str], required: Iterable[str], imported: Iterable[str]) -> Iterator[str]:
    """Yield the first optional line of each package that is imported and not required."""
    wanted = {canonical_name(package) for package in imported} - {canonical_name(line) for line in required}
    for line in optional:
        if (name := canonical_name(line)) in wanted:
            wanted.remove(name)
            yield line


def requires_python(file: Path) -> SpecifierSet:
    """Return the Pythons that a pyproject.toml admits; empty where the file or the key is not there."""
    return _PyProject(file).python() if is_there(file) else SpecifierSet()


def own_packages(file: Path) -> dict[str, Path | None]:
    """Return canonical name → folder (None: not found) of what uv's workspaces and paths, or Poetry's paths, name."""
    if not is_there(file):
        return {}
    tables, project = _PyProject(file), file.parent
    groups = [as_table(group, "dependencies") for group in as_table(tables.poetry, "group").values()]
    by_path: dict[str, Path | None] = {
        canonicalize_name(name): Path(os.path.normpath(project / wish["path"]))
        for listed in (*(as_table(tables.poetry, key) for key in ("dependencies", "dev-dependencies")), *groups)
        for name, wish in listed.items()
        if isinstance(wish, dict) and isinstance(wish.get("path"), str)
    }
    own = {name: first for name, each in tables.sources.items() if _is_folder_of_its_own(first := _first(each))}
    members = _members(project) if any("workspace" in source for source in own.values()) else {}
    for name, source in own.items():
        by_path[name] = Path(os.path.normpath(project / source["path"])) if "path" in source else members.get(name)
    return by_path


def locked_versions(file: Path) -> tuple[str, ...]:
    """Return ``name==version`` of each package that a lock file has from an index, for Linux; () without a file.

    uv names the source of each package; poetry and pdm only of those from elsewhere; Rye writes pip's format. Formats:
    https://docs.astral.sh/uv/concepts/projects/layout/#the-lockfile,
    https://python-poetry.org/docs/basic-usage/#installing-with-poetrylock
    """
    if not is_there(file):
        return ()
    if file.name == "requirements.lock":
        pins = pip_format.read_requirements(file, file.parent).lines
        return tuple(each for each in pins if "==" in each and not each.startswith(_OF_A_BUILD))
    text = _ARRAY_ENTRY.sub("", read_text(file, inside=file.parent, limit_bytes=_MAX_LOCK_BYTES))
    if len(text) > project_files.MAX_PARSED_BYTES:
        raise ConfigError(f"{file.name}: more packages than any image could contain", run=f"ls -l {file}")
    packages = parse_toml(text, file).get("package", [])
    if not isinstance(packages, list) or not all(isinstance(package, dict) for package in packages):
        raise ConfigError(f"{file.name}: package must be a list of tables", run=f"ls -l {file}")
    rows = defaultdict[str, list[dict[str, Any]]](list)
    for package in packages:
        if "name" in package and not (name := str(package["name"])).startswith(_OF_A_BUILD):
            rows[name].append(package)
    return tuple(sorted(pin for name, each in rows.items() for pin in _pins(name, each, file.name)))


def _pins(name: str, rows: list[dict[str, Any]], lock: str) -> Iterator[str]:
    """Yield a package's pin on Linux, or its pins for Pythons; a framework, whose release decides, has the best's."""
    of_python = defaultdict[str, list[str]](list)
    for python in PYTHONS:
        held = _held(rows, python)
        releases = {str(row.get("version", "")) if _from_an_index(row, lock) else "" for row in held} or {""}
        if len(releases) == 1 and (release := releases.pop()):
            of_python[f"{name}=={release}"].append(python)
    several = len(of_python) > 1 and name not in _DECIDING
    for pin, pythons in islice(of_python.items(), None if several else 1):
        marker = " or ".join(f'python_version == "{each}"' for each in pythons)
        yield checked_requirement(f"{pin} ; {marker}" if several else pin, lock)


def _held(rows: list[dict[str, Any]], python: str) -> list[dict[str, Any]]:
    """Return the entries whose markers hold without extras; or else with one of the project's, CUDA's first."""
    markers = [as_list(row.get("resolution-markers", row.get("markers"))) for row in rows]
    markers = [[f"x ; {each}" for each in own if each and isinstance(each, str)] for own in markers]
    extras = sorted({*_EXTRA.findall(str(markers))}, key=lambda each: (not re.search("cu|gpu", each), each))
    for extra in ("", *extras[:_MOST_EXTRAS]):
        fits = [not own or any(pip_format.is_for(each, python, extra) for each in own) for own in markers]
        if any(fits):
            return list(compress(rows, fits))
    return []


def _from_an_index(package: dict[str, Any], lock: str) -> bool:
    """Return True for a package of an index: uv names every source, Poetry and PDM only those other than PyPI."""
    source = as_table(package, "source")
    return "registry" in source if lock == "uv.lock" else not source and not {"path", "git", "url"} & package.keys()


def poetry_requirements(
    table: dict[str, Any], file: Path, key: str = "tool.poetry.dependencies"
) -> tuple[list[str], list[str]] | None:
    """Return (dependencies, those of groups and optional ones) of ``[tool.poetry]``; None if it has no list of them.

    A dependency on a folder (``path``) is left out: it is mounted with the project. Raises ConfigError naming the key.
    """
    if not isinstance(table.get("dependencies"), dict):
        return None
    listed = list(_poetry_lines(table["dependencies"], key, file))
    needed, optional = ([line for line, is_optional in listed if is_optional is kind] for kind in (False, True))
    return needed, optional + _poetry_groups(table, file)


def _poetry_groups(table: dict[str, Any], file: Path) -> list[str]:
    """Return the dependencies of all groups; from Poetry 2.0 on ``[project]`` may exist as well."""
    groups = {name: as_table(group, "dependencies") for name, group in as_table(table, "group").items()}
    groups["dev"] = {**as_table(table, "dev-dependencies"), **groups.get("dev", {})}
    found = (_poetry_lines(group, f"tool.poetry.group.{name}.dependencies", file) for name, group in groups.items())
    return [line for lines in found for line, _ in lines]


def _poetry_lines(dependencies: dict[str, Any], key: str, file: Path) -> Iterator[tuple[str, bool]]:
    """Yield (requirement, whether it is optional)."""
    pip_format.refuse_too_many(dependencies, f"{file.name}: {key}", file)
    for name, wish in dependencies.items():
        for each in as_list(wish):
            if name.lower() == "python" or (isinstance(each, dict) and {"path", "file"} & each.keys()):
                continue
            try:
                if not isinstance(each, str | dict) or len(str(each)) > _MOST_CHARACTERS:
                    raise ValueError
                line = str(Requirement(_poetry_line(name, each if isinstance(each, dict) else {"version": each})))
            except (ValueError, TypeError, AttributeError):
                raise _no_version(file, f"{key}.{name}", each) from None
            optional = isinstance(each, dict) and each.get("optional") is True
            yield checked_requirement(line, f"{file.name}: {key}"), optional


def _poetry_line(name: str, wish: dict[str, Any]) -> str:
    """Write one dependency in pip's language. Raises ValueError, TypeError or AttributeError for nonsense."""
    text = name + (f"[{','.join(wish['extras'])}]" if wish.get("extras") else "")
    address = _address(wish)
    text += str(_specifier(wish.get("version", "*"))) if address is None else f" @ {address}"
    markers = [f"({wish['markers']})"] if "markers" in wish else []
    if "python" in wish:
        markers += [f'python_version {each.operator} "{each.version}"' for each in _specifier(wish["python"])]
    if "platform" in wish:
        markers.append(f'sys_platform == "{wish["platform"]}"')
    return text + (f" ; {' and '.join(markers)}" if markers else "")


def _specifier(wish: str) -> SpecifierSet:
    """Translate Poetry's constraint; of alternatives (``||``) the last, ``latest`` as ``*``. Raises ValueError."""
    last = re.split(r"\|\|?", wish)[-1].strip()
    if last in ("", "*", "latest"):
        return SpecifierSet()
    parts = [each for each in re.split(r"\s*,\s*|(?<=[\w*])\s+(?=[\^~=!<>])", last) if each]
    return SpecifierSet(",".join(map(_part, parts)))


def _part(text: str) -> str:
    """Translate ``^1.2``, ``~1.2``, ``1.2.*``, ``1.x`` or a plain comparison. Raises ValueError."""
    if text == "*":
        return ""
    if not (match := _PART.fullmatch(re.sub(r"(\.[xX*])+$", ".*", text))):
        raise ValueError(text)
    sign, version = {None: "==", "=": "=="}.get(match["sign"], match["sign"]), match["version"]
    if sign not in ("^", "~"):
        return f"{sign}{version}"
    release = Version(version).release
    last = len(release) - 1  # ^: up to the next change of the first part that is not 0
    at = next((place for place, part in enumerate(release) if part), last) if sign == "^" else min(1, last)
    return f">={version},<{'.'.join(map(str, (*release[:at], release[at] + 1)))}"


def script_requirements(table: dict[str, Any], listed: Iterable[str], file: Path, place: str) -> tuple[str, ...]:
    """Check a script's own list, each line from its source. Raises ConfigError that begins with ``place``."""
    lines = [checked_requirement(line, place) for line in listed]
    return tuple(_sourced(lines, _uv_sources(table, file.parent)[0], place))


def _sourced(lines: Iterable[str], sources: Mapping[str, Any], place: str) -> list[str]:
    """Add the address to lines from a repository or a URL; leave out lines from a folder, which may have a namesake.

    Raises ConfigError that begins with ``place``.
    """
    found = []
    for line in lines:
        requirement, source = parsed(line), _first(sources.get(canonical_name(line) or ""))
        if requirement is None or requirement.url or not source:
            found.append(line)
        elif not _is_folder_of_its_own(source):
            address = _address({key: value for key, value in source.items() if isinstance(value, str)})
            extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
            marker = f" ; {requirement.marker}" if requirement.marker else ""
            text = f"{requirement.name}{extras} @ {address}{marker}"
            found.append(checked_requirement(line if address is None else text, place))
    return found


def _address(source: Mapping[str, Any]) -> str | None:
    """Return ``git+https://…@v1#subdirectory=src``; None for a package that comes from an index."""
    if "git" in source:
        at = next((source[key] for key in ("rev", "tag", "branch") if key in source), None)
        address = f"git+{source['git'].removeprefix('git+')}" + (f"@{at}" if at else "")
    elif "url" in source:
        address = str(source["url"])
    else:
        return None
    return address + (f"#subdirectory={source['subdirectory']}" if "subdirectory" in source else "")


def _uv_sources(whole: Mapping[str, Any], project: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Return (canonical name → its source, index → its address) of the workspace and the project, which wins."""
    tables = [as_table(table, "tool", "uv") for table in (_workspace(project)[1], whole)]
    listed = [each for table in tables if isinstance(rows := table.get("index"), list) for each in rows]
    indexes = {str(each.get("name")): str(each.get("url")) for each in listed if isinstance(each, dict)}
    sources = (as_table(table, "sources") for table in tables)
    return {canonicalize_name(name): source for table in sources for name, source in table.items()}, indexes


def _is_folder_of_its_own(source: Mapping[str, Any]) -> bool:
    """Return True for a member of the workspace, a folder or a wheel of the project."""
    return source.get("workspace") is True or isinstance(source.get("path"), str)


def _first(source: Any) -> dict[str, Any]:
    """Return the first of several sources, folders before all others: their names may belong to somebody else."""
    each = [one for one in as_list(source) if isinstance(one, dict)]
    return next(filter(_is_folder_of_its_own, each), each[0] if each else {})


def _workspace(project: Path) -> tuple[Path, dict[str, Any]]:
    """Return the workspace's folder above a member, and its pyproject.toml's table; else the project's."""
    for folder in islice((project, *project.parents), _MOST_ABOVE):
        table = _unchecked(folder / "pyproject.toml")
        if isinstance(as_table(table, "tool", "uv").get("workspace"), dict):
            return folder, table
    return project, {}


def _members(project: Path) -> dict[str, Path]:
    """Return canonical name → folder of each member of the workspace that a project is in."""
    root, table = _workspace(project)
    patterns = map(str, as_list(as_table(table, "tool", "uv", "workspace").get("members", [])))
    inner = (each for each in patterns if each and not each.startswith("/") and ".." not in each)
    folders = islice(chain.from_iterable(matching(root, each, _MOST_MEMBERS) for each in inner), _MOST_MEMBERS)
    tables = ((_unchecked(folder / "pyproject.toml"), folder) for folder in (root, *folders))
    named = ((as_table(table, "project").get("name"), folder) for table, folder in tables)
    return {canonicalize_name(name): folder for name, folder in named if isinstance(name, str)}


@fallback({}, on=ConfigError)
def _unchecked(file: Path) -> dict[str, Any]:
    """Return the table of a pyproject.toml; empty if it cannot be read: only uv checks it."""
    return project_files.read_toml(file, inside=file.parent) if is_there(file) else {}


def _wrong(key: str, expected: str, value: Any, file: Path) -> ConfigError:
    return ConfigError(f"{file.name}: {key} must be {expected}, not {shown(value)}", run=f"${{EDITOR:-vi}} {file}")


def _no_version(file: Path, key: str, value: object) -> ConfigError:
    knows, run = (" that Poetry knows", "poetry check") if "poetry" in key else ("", f"${{EDITOR:-vi}} {file}")
    if knows and (git := re.fullmatch(r"git\+(\S+?)(?:@([\w.-]+))?", str(value))):
        revision, name = f', rev = "{git[2]}"' if git[2] else "", key.rpartition(".")[2]
        run = f'{file.name}  {name} = "{value}" → {name} = {{git = "{git[1]}"{revision}}}'
    return ConfigError(f"{file.name}: {key}: {shown(value)} is not a version{knows}", run=run)
