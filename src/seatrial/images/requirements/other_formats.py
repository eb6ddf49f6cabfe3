"""Read conda's environments, setup.py (never run), setup.cfg and a script's own list; and what ``-e .`` adds."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from seatrial.errors import ConfigError
from seatrial.images.requirements.imports import known_package
from seatrial.images.requirements.pip_format import (
    MOST_LINES,
    Requirements,
    canonical_name,
    checked_requirement,
    listed_requirements,
    parsed,
    text_of,
)
from seatrial.images.requirements.pyproject import Declared, declared, python_specifier
from seatrial.images.requirements.uv_sources import sourced, uv_sources
from seatrial.system import toml_file, yaml_file
from seatrial.system.project_files import is_there, read_bytes, read_text
from seatrial.system.source import MAX_BYTES, MOST_MARKS, UnreadableSourceError, marks, parse_source
from seatrial.system.text import shown
from seatrial.system.typed_path import as_typed

#: An environment of hundreds of packages has 30,000 bytes.
_MAX_BYTES = 300_000

#: What people call the file, in the order in which it is looked for.
ENVIRONMENT_FILES = tuple(
    f"{name}.{ending}"
    for name in ("environment", "env", "conda", "conda_environment", "conda_env", "conda-environment", "conda-env")
    for ending in ("yml", "yaml")
)

_PYTHON = re.compile(r"python\s*(=+|>=|<=|<|>)\s*(\d+(?:\.\d+)?)")
#: ``channel::name``, a version, a build. Source: conda's "package match specifications".
_CONDA = re.compile(r"(?:[\w./-]+::)?([A-Za-z0-9][\w.-]*)\s*([=<>!~].*|\d.*)?")

#: A line of ``conda list --export``: name, version, build; the build of what pip had installed is ``pypi_0``.
_EXPORTED = re.compile(r"([A-Za-z0-9_][\w.-]*)=([^=\s]+)=([^=\s]+)")

#: The project itself, in either of pip's ways.
_ITSELF = re.compile(r"(?:(?:-e|--editable)[ =]\s*)?\./?")


@dataclass(frozen=True)
class Environment:
    """Hold the requirements of a conda file, under pip's names."""

    requirements: Requirements
    python: SpecifierSet


def read_environment(file: Path) -> Environment:
    """The file's pip part, options of pip's included, and the Python packages that conda would install.

    The project itself (``-e .``) is left out: it is mounted, and its packages are importable.

    Raises ConfigError naming ``file:line``.
    """
    text = read_text(file, inside=file.parent, limit_bytes=_MAX_BYTES)
    data = yaml_file.parse_yaml(text, file.name)
    listed = data.get("dependencies") if isinstance(data, dict) else None
    if not isinstance(listed, list):
        raise ConfigError(f"{file.name}: has no list of dependencies", run=f"cat {file}")
    lines: list[str] = []
    conda: list[str] = []
    python = SpecifierSet()
    for item in listed:
        if isinstance(item, dict) and isinstance(item.get("pip"), list):
            given = (str(each).strip() for each in item["pip"])
            lines += (each for each in given if each and not _ITSELF.fullmatch(each))
        elif isinstance(item, str) and (match := _PYTHON.match(item)):
            sign, version = match.groups()
            python = python_specifier(
                f"=={version}.*" if sign.startswith("=") else f"{sign}{version}", f"{file.name}: {match[0]}"
            )
        elif isinstance(item, str) and (line := _as_pip_has_it(item)):
            conda.append(line)
    if len(lines) + len(conda) > MOST_LINES:
        raise ConfigError(
            f"{file.name}: {len(lines)} packages are more than any image could contain", run=f"wc -l {file}"
        )
    pip = listed_requirements(((_line_of(line, text), line) for line in lines), file)
    named = {canonical_name(line) for line in pip.lines}
    own = tuple(line for line in conda if canonical_name(line) not in named)
    return Environment(replace(pip, lines=(*own, *pip.lines)), python)


def read_conda_list(file: Path, project: Path) -> Environment | None:
    """Read the output of ``conda list --export``, often named requirements.txt; None for a file of another format.

    Raises ConfigError for one that cannot be read.
    """
    lines = [line.strip() for line in text_of(file, project).splitlines()]
    matches = [_EXPORTED.fullmatch(line) for line in lines if line and not line.startswith("#")]
    found = [match for match in matches if match is not None]
    if not found or len(found) < len(matches):
        return None
    pinned = [match[2] for match in found if match[1] == "python"]
    python = python_specifier(f"=={'.'.join(pinned[0].split('.')[:2])}.*", file.name) if pinned else SpecifierSet()
    listed = (
        f"{name}=={version}" if build == "pypi_0" else _as_pip_has_it(f"{name}={version}")
        for name, version, build in (match.groups() for match in found if match[1] != "python")
    )
    lines = [checked_requirement(line, file.name) for line in listed if line]
    return Environment(Requirements(lines=tuple(lines)), python)


def _as_pip_has_it(item: str) -> str | None:
    """``pytorch=1.11`` → ``torch==1.11.*``; of three parts the very one. None for ffmpeg and the like."""
    match = _CONDA.fullmatch(item.strip())
    package = known_package(match[1]) if match else None
    if match is None or package is None:
        return None
    version = (match[2] or "").strip()
    if version[:1].isdigit() or (version.startswith("=") and not version.startswith("==")):
        number = version.lstrip("= ").partition("=")[0].strip().rstrip(".*")  # what follows is the build
        short = number.count(".") < 2 or package.startswith("opencv")  # its wheels have a fourth number of their own
        version = f"=={number}{'.*' * short}" if number else ""
    elif version.startswith("=="):
        version = "==" + version[2:].partition("=")[0].strip()
    try:
        return package + str(SpecifierSet(version.replace(" ", "")))
    except InvalidSpecifier:  # alternatives, 1.9|1.10: any version is nearer than none
        return package


def _line_of(item: Any, text: str) -> int:
    return text[: max(text.find(str(item)), 0)].count("\n") + 1


def read_setup(file: Path) -> Declared | None:
    """The file's requirements, or None when it lists none literally. Raises ConfigError naming ``file:line``."""
    try:
        source = read_bytes(file, inside=file.parent, limit_bytes=MAX_BYTES)
        if marks(source) > MOST_MARKS:
            raise UnreadableSourceError(f"setup.py is too long to be read: {len(source) / 1e6:.3g} MB")
        tree = parse_source(source, file.name)
    except UnreadableSourceError as error:
        raise ConfigError(str(error), run=f"python3 -m py_compile {file}") from error
    lists = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) == "setup":
            given = {keyword.arg: keyword.value for keyword in node.keywords}
            lines = _listed(given.get("install_requires"), lists, file)
            extras = _extras(given.get("extras_require"), lists, file)
            if lines is None:
                return None
            wanted, name = given.get("python_requires"), given.get("name")
            python = wanted.value if isinstance(wanted, ast.Constant) else ""
            own = (
                canonicalize_name(name.value)
                if isinstance(name, ast.Constant) and isinstance(name.value, str)
                else None
            )
            return Declared(lines, python_specifier(python, "setup.py: python_requires"), extras, own)
    return None


def _listed(node: ast.AST | None, lists: Mapping[str, ast.expr], file: Path) -> tuple[str, ...] | None:
    """The requirements of a literal list, or of a variable that holds one; None for anything else."""
    if isinstance(node, ast.Name):
        node = lists.get(node.id)
    if not isinstance(node, ast.List | ast.Tuple):
        return None
    if len(node.elts) > MOST_LINES:
        raise ConfigError(f"setup.py:{node.lineno}: more packages than any image could contain", run=f"wc -l {file}")
    texts = [(item.value, item.lineno) for item in node.elts if isinstance(item, ast.Constant)]
    return tuple(checked_requirement(str(text), f"setup.py:{line}") for text, line in texts)


def _extras(node: ast.AST | None, lists: Mapping[str, ast.expr], file: Path) -> dict[str, tuple[str, ...]] | None:
    """Read a literal ``{"dev": ["pytest"]}``; None if it is computed."""
    if node is None:
        return {}
    if isinstance(node, ast.Name):
        node = lists.get(node.id)
    if not isinstance(node, ast.Dict):
        return None
    found: dict[str, tuple[str, ...]] = {}
    for key, value in zip(node.keys, node.values, strict=True):
        lines = _listed(value, lists, file)
        if not (isinstance(key, ast.Constant) and isinstance(key.value, str)) or lines is None:
            return None
        found[canonicalize_name(key.value)] = lines
    return found


_MAX_CFG_BYTES = 300_000


def read_setup_cfg(file: Path) -> Declared | None:
    """The file's requirements, or None when it lists none. Raises ConfigError naming the file."""
    import configparser  # few projects have such a file

    text = read_text(file, inside=file.parent, limit_bytes=_MAX_CFG_BYTES)
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read_string(text, file.name)
    except configparser.Error as error:
        raise ConfigError(f"{file.name}: {str(error).splitlines()[0]}", run=f"${{EDITOR:-vi}} {file}") from None
    if not parser.has_option("options", "install_requires"):
        return None
    extras = dict(parser.items("options.extras_require")) if parser.has_section("options.extras_require") else {}
    return Declared(
        _lines(parser.get("options", "install_requires"), file),
        python_specifier(
            parser.get("options", "python_requires", fallback="").strip(), "setup.cfg: options.python_requires"
        ),
        {canonicalize_name(name): _lines(value, file) for name, value in extras.items()},
    )


def _lines(value: str, file: Path) -> tuple[str, ...]:
    """One requirement a line; setuptools takes semicolons for markers and ``file:`` for a list elsewhere."""
    listed = [line.partition(" #")[0].strip() for line in value.splitlines()]
    wanted = [line for line in listed if line and not line.startswith(("#", "file:"))]
    if len(wanted) > MOST_LINES:
        raise ConfigError(f"{file.name}: more packages than any image could contain", run=f"wc -l {file}")
    return tuple(checked_requirement(line, file.name) for line in wanted)


_BEGIN, _END = "# /// script", "# ///"


def read_inline(file: Path, project: Path) -> Declared | None:
    """The dependencies and the Python that a script names, or None where it names none. Raises ConfigError."""
    text = _block(read_bytes(file, inside=project).decode("utf-8", "replace").splitlines())
    if text is None:
        return None
    table = toml_file.parse_toml(text, file)
    listed = table.get("dependencies")
    if listed is None:
        return None
    is_list = isinstance(listed, list) and len(listed) <= MOST_LINES
    if not is_list or not all(isinstance(line, str) for line in listed):
        raise ConfigError(
            f"{file.name}: dependencies of {_BEGIN} must be a list of requirements, not {shown(listed)}",
            run=f"${{EDITOR:-vi}} {as_typed(file)}",
        )
    place = f"{file.name}: {_BEGIN}"
    lines = sourced([checked_requirement(line, place) for line in listed], uv_sources(table, file.parent), place)
    wish = table.get("requires-python")
    python = SpecifierSet() if wish is None else python_specifier(wish, f"{file.name}: requires-python")
    return Declared(tuple(lines), python)


def _block(lines: list[str]) -> str | None:
    """The TOML of the first such comment; None without one, or where it does not end."""
    if _BEGIN not in lines:
        return None
    inside: list[str] = []
    for line in lines[lines.index(_BEGIN) + 1 :]:
        if line == _END:
            return "\n".join(inside)
        if line != "#" and not line.startswith("# "):
            return None
        inside.append(line[2:])
    return None


#: Extras that name each other.
_MOST_STEPS = 100


def own_dependencies(project: Path, extras: Iterable[str]) -> tuple[Declared, tuple[str, ...]]:
    """(requirements that the project's files list literally, extras included; missing extras, as pip warns).

    Raises ConfigError: a file that cannot be read.
    """
    setups = list(_setups(project))
    name = next((setup.name for setup in setups if setup.name), None)
    found = [line for setup in setups for line in setup.lines]
    pending = [canonicalize_name(extra) for extra in extras]
    taken: set[str] = set()
    warnings = []
    while pending and len(taken) < _MOST_STEPS:
        extra = pending.pop(0)
        if extra in taken:
            continue
        taken.add(extra)
        listed = [setup.extras[extra] for setup in setups if setup.extras and extra in setup.extras]
        if not listed and setups and all(setup.extras is not None for setup in setups):
            have = sorted({each for setup in setups for each in setup.extras or ()})
            warnings.append(f"the project has no extra {extra!r}, only {', '.join(have) or 'none'}")
        for line in (line for lines in listed for line in lines):
            requirement = parsed(line)
            if requirement is not None and name and canonical_name(line) == name:  # project[other] in an extra
                pending += map(canonicalize_name, requirement.extras)
            else:
                found.append(line)
    python = SpecifierSet()
    for setup in setups:
        python &= setup.python
    return Declared(tuple(dict.fromkeys(found)), python), tuple(warnings)


def _setups(project: Path) -> Iterator[Declared]:
    """pyproject.toml's list, or else those of setup.py and setup.cfg, which setuptools reads together."""
    if is_there(file := project / "pyproject.toml") and (setup := declared(file)) is not None:
        yield setup
        return
    for name, read in (("setup.py", read_setup), ("setup.cfg", read_setup_cfg)):
        if is_there(file := project / name) and (setup := read(file)) is not None:
            yield setup
