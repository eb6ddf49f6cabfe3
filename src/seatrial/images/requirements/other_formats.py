"""Read conda's environments, setup.py (never run), setup.cfg and a script's own list; and what ``-e .`` adds."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator, Set
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from seatrial.errors import ConfigError, fallback
from seatrial.images.requirements import pip_format
from seatrial.images.requirements.imports import known_package
from seatrial.images.requirements.pip_format import Requirements, canonical_name, parsed, python_specifier
from seatrial.images.requirements.pyproject import poetry_requirements, read_pyproject, script_requirements
from seatrial.job.reading.signs import literal
from seatrial.stack.facts import table
from seatrial.system.project_files import as_table, is_there, parse_toml, parse_yaml, read_bytes, read_text, read_toml
from seatrial.system.source import MAX_BYTES, MOST_MARKS, UnreadableSourceError, marks, parse_source
from seatrial.system.text import as_typed, regex, shown

#: Usual names of the file, in the order of the search.
ENVIRONMENT_FILES = tuple(
    f"{name}.{ending}" for name in table("import_names")["lists"]["environments"].split() for ending in ("yml", "yaml")
)

#: ``channel::name``, a version, a build. Source: conda's "package match specifications".
_CONDA = regex(r"(?:[\w./-]+::)?([A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?)\s*([=<>!~].*|\d.*)?")

#: A line of ``conda list --explicit``.
_EXPLICIT = regex(r"^(?:https?|file)://\S*/([^/\s]+)-([^-/\s]+)-([^-/\s]+)\.(?:conda|tar\.bz2)(?:#\w+)?")
#: A line of ``conda list --export``: name, version, any build, of pip's packages ``pypi_0``; or a row of a table.
_EXPORTED = regex(r"([A-Za-z0-9_][\w.-]*)(?:=([^=\s]+)(?:=([^=\s]+))?|\s+(\d\S*)(?:\s+([\w.-]+))?(?:\s+\S+)?)")
_OF_CONDA = "$ conda create --name"  # without it, one = is a mistake
_HEADER = regex(r"(?:Package\s+Version\b|[-\s]+$|[#@])")

#: The project itself, in either of pip's ways.
_ITSELF = regex(r"(?:(?:-e|--editable)[ =]\s*)?\./?")


def read_list(file: Path, project: Path) -> Requirements:
    """Read pip's or conda's format, which the text shows, not the name. Raises ConfigError naming ``file:line``."""
    text = read_text(file, inside=project)
    key = r"[\w-]+" if file.suffix in (".yml", ".yaml") else "dependencies"
    if re.search(rf"^{key}:(?:\s|$)", text, re.MULTILINE):
        return _read_environment(file, text)
    lines = [_EXPLICIT.sub(r"\1=\2=\3", line.strip()) for line in text.splitlines()]
    matched = (_EXPORTED.fullmatch(line) for line in lines)
    exported = [each if each and (each[3] or each[4] or _OF_CONDA in text) else None for each in matched]
    if not any(exported):
        return pip_format.read_requirements(file, project)
    pinned = [match[2] or match[4] for match in exported if match and match[1] == "python"]
    python = python_specifier(f"=={'.'.join(pinned[0].split('.')[:2])}.*", file.name) if pinned else SpecifierSet()
    conda = list[str]()
    for at, match in enumerate(exported):
        if match:
            name, version, build = match[1], match[2] or match[4], match[3] or match[5]
            of_pip = build == "pypi_0" or not (match[2] or build)
            lines[at] = f"{name}=={version}" if of_pip else as_pip_has_it(f"{name}={version}", conda) or ""
    written = ((at, line.partition(" #")[0]) for at, line in enumerate(lines, 1) if line and not _HEADER.match(line))
    return replace(pip_format.listed_requirements(written, file), python=python, conda=tuple(conda))


def _read_environment(file: Path, text: str) -> Requirements:
    """Read the Python packages of pip and conda but the project (``-e .``). Raises ConfigError naming ``file:line``."""
    listed = as_table(parse_yaml(text, file.name)).get("dependencies")
    if not isinstance(listed, list):
        raise ConfigError(f"{file.name}: has no list of dependencies", run=f"cat {file}")
    lines: list[str] = []
    conda: list[str] = []
    others: list[str] = []
    python = SpecifierSet()
    for item in listed:
        if isinstance(item, dict) and isinstance(item.get("pip"), list):
            given = (str(each).strip() for each in item["pip"])
            lines += (each for each in given if each and not _ITSELF.fullmatch(each))
        elif isinstance(item, str) and (match := re.match(r"python\s*(=+|>=|<=|<|>)\s*(\d+(?:\.\d+)?)", item)):
            sign, version = match.groups()
            admitted = f"=={version}.*" if sign.startswith("=") else f"{sign}{version}"
            python = python_specifier(admitted, f"{file.name}: {match[0]}")
        elif isinstance(item, str) and (line := as_pip_has_it(item, others)):
            conda.append(line)
    pip_format.refuse_too_many([*lines, *conda], file.name, file)
    pip = pip_format.listed_requirements(((pip_format.line_of(line, text), line) for line in lines), file)
    named = {canonical_name(line) for line in pip.lines}
    own = tuple(line for line in conda if canonical_name(line) not in named)
    return replace(pip, lines=(*own, *pip.lines), python=python, conda=tuple(others))


def as_pip_has_it(item: str, others: list[str] | None = None) -> str | None:
    """Turn ``pytorch=1.11`` into ``torch==1.11.*``, three parts into that very one; None for one of ``others``."""
    match = _CONDA.fullmatch(item.strip())
    if match is None or match[1] in ("python", "pip"):
        return None
    known = known_package(match[1])
    package = known or match[1]
    version = (match[2] or "").strip()
    if version[:1].isdigit() or (version.startswith("=") and not version.startswith("==")):
        number = version.lstrip("= ").partition("=")[0].strip().rstrip(".*")  # what follows is the build
        short = number.count(".") < 2 or package.startswith("opencv")  # its wheels have a fourth number of their own
        version = f"=={number}{'.*' * short}" if number else ""
    elif version.startswith("=="):
        version = "==" + version[2:].partition("=")[0].strip()
    with suppress(InvalidSpecifier):  # alternatives, 1.9|1.10: any version is nearer than none
        package += str(SpecifierSet(version.replace(" ", "")))
    if known is None and others is not None:
        others.append(package)
    return package if known else None


def read_setup(file: Path) -> Requirements | None:
    """Read the file's requirements; None if it lists none literally. Raises ConfigError naming ``file:line``."""
    try:
        source = read_bytes(file, inside=file.parent, limit_bytes=MAX_BYTES)
        if marks(source) > MOST_MARKS:
            raise UnreadableSourceError(f"setup.py is too long to be read: {len(source) / 1e6:.3g} MB")
        tree = parse_source(source, file.name)
    except UnreadableSourceError as error:
        raise ConfigError(str(error), run=f"${{EDITOR:-vi}} +{error.line} {file}") from error
    values = _Values(tree, file)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) == "setup":
            given = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
            for each in (keyword.value for keyword in node.keywords if keyword.arg is None):
                given |= values.table(each) or {}
            lines = values.lines(given.get("install_requires"))
            if lines is None:
                return None
            extras = values.table(given.get("extras_require")) if "extras_require" in given else {}
            found = {str(canonicalize_name(name)): values.lines(value) for name, value in (extras or {}).items()}
            known = {name: extra for name, extra in found.items() if extra is not None}
            wanted, name = given.get("python_requires"), given.get("name")
            python = wanted.value if isinstance(wanted, ast.Constant) else ""
            own = literal(name)
            return Requirements(
                lines,
                python=python_specifier(python, "setup.py: python_requires"),
                extras=None if extras is None or len(known) < len(found) else known,
                name=canonicalize_name(own) if own else None,
            )
    return None


class _Values:
    """Values of setup.py's names, as far as they follow from literals and from lists that it reads."""

    def __init__(self, tree: ast.Module, file: Path) -> None:
        self.file = file
        self.names: dict[str, ast.expr] = {}
        self.listed: dict[str, tuple[str, int]] = {}
        self._open: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                self.names |= {each.id: node.value for each in targets if isinstance(each, ast.Name)}
            elif isinstance(node, ast.FunctionDef):
                returned = [each.value for each in ast.walk(node) if isinstance(each, ast.Return) and each.value]
                if returned:
                    self.names[node.name] = returned[0]

    def table(self, node: ast.expr | None) -> dict[str, ast.expr] | None:
        """Read ``{"dev": ["pytest"]}`` or ``dict(dev=["pytest"])``; None if it is computed."""
        node = self.names.get(node.id) if isinstance(node, ast.Name) else node
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "dict":
            return {each.arg: each.value for each in node.keywords if each.arg}
        if not isinstance(node, ast.Dict):
            return None
        pairs = list(zip(node.keys, node.values, strict=True))
        found = {name: value for key, value in pairs if (name := literal(key)) is not None}
        return found if len(found) == len(pairs) else None

    def lines(self, node: ast.expr | None) -> tuple[str, ...] | None:
        """Return the requirements that an expression stands for; None if they are computed. Raises ConfigError."""
        texts = None
        with suppress(RecursionError):  # a thousand lists added up
            texts = self._texts(node)
        if texts is None and (name := next(self._lists(node, set()), None)) is not None:
            read = pip_format.read_requirements(self.file.parent / name, self.file.parent)
            return (*read.lines, *read.constraints)
        if texts is None:
            return None
        pip_format.refuse_too_many(texts, "setup.py", self.file)
        return tuple(pip_format.checked_requirement(text, f"setup.py:{line}") for text, line in texts)

    def _texts(self, node: ast.expr | None) -> list[tuple[str, int]] | None:
        match node:
            case ast.Name(id=name) if name in self.names and name not in self._open:
                self._open.add(name)
                found = self._texts(self.names[name])
                self._open.discard(name)
                return found
            case ast.Constant(value=str(text)):
                return [(text, node.lineno)]
            case ast.List(elts=several) | ast.Tuple(elts=several) | ast.Set(elts=several):
                return self._all([each for each in several if not isinstance(each, ast.JoinedStr)])
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return self._all([left, right])
            case ast.Starred(value=value) | ast.Call(func=value, args=[]):
                return self._texts(value)
            case ast.Call(func=ast.Name(id="list" | "sorted" | "set" | "tuple"), args=[value, *_]):
                return self._texts(value)
            case ast.Call(args=keys):
                return self._looked_up(keys)
            case ast.Subscript(slice=key):  # deps["torch"]
                return self._looked_up([key])
        return None

    def _all(self, nodes: list[ast.expr]) -> list[tuple[str, int]] | None:
        parts = [self._texts(each) for each in nodes]
        return None if None in parts else [text for part in parts for text in part or ()]

    def _looked_up(self, keys: list[ast.expr]) -> list[tuple[str, int]] | None:
        """Find ``deps["torch"]``, ``deps_list("torch")`` by a table's key or a list's name; None if one is missing."""
        if not self.listed:
            for value in self.names.values():
                listed = value.elts if isinstance(value, ast.List | ast.Tuple) else []
                for key, each in (*((None, each) for each in listed), *(self.table(value) or {}).items()):
                    if (text := literal(each)) is not None:
                        name = re.split(r"[^\w.-]", text)[0] if key is None else key
                        self.listed.setdefault(canonicalize_name(name), (text, each.lineno))
        names = [name for name in map(literal, keys) if name is not None]
        found = [self.listed[name] for name in map(canonicalize_name, names) if name in self.listed]
        return found if len(found) == len(keys) else None

    def _lists(self, node: ast.AST | None, seen: set[str]) -> Iterator[str]:
        """Yield the names of files in an expression that are there: ``read("requirements/runtime.txt")``."""
        for each in ast.walk(node) if node is not None else ():
            if (name := literal(each) or "").endswith(".txt"):
                if is_there(self.file.parent / name):
                    yield name
            elif isinstance(each, ast.Name) and each.id in self.names and each.id not in seen:
                seen.add(each.id)
                yield from self._lists(self.names[each.id], seen)


def read_pipfile(file: Path) -> Requirements | None:
    """Read a Pipfile's ``[packages]``; None without it. Raises ConfigError."""
    table = read_toml(file, inside=file.parent)
    listed = poetry_requirements({"dependencies": table.get("packages")}, file, "packages")
    version = str(as_table(table, "requires").get("python_version", ""))
    python = python_specifier(f"=={version}.*" if version else "", "Pipfile: requires.python_version")
    return None if listed is None else Requirements(tuple(listed[0]), python=python)


@fallback(dict[str, tuple[str, str]](), on=(ConfigError, ValueError, RecursionError))
def locked_by_pipenv(file: Path, names: Iterable[str | None]) -> dict[str, tuple[str, str]]:
    """Return package → (release, the file) of Pipfile.lock for these packages, where it can be read."""
    rows = as_table(json.loads(read_text(file, inside=file.parent)), "default")
    pins = {name: str(as_table(rows, name).get("version") or "") for name in names if name and name in rows}
    return {name: (pin.lstrip("="), file.name) for name, pin in pins.items() if pin}


def read_setup_cfg(file: Path) -> Requirements | None:
    """Read the file's requirements; None if it lists none. Raises ConfigError naming the file."""
    import configparser  # few projects have such a file

    text = read_text(file, inside=file.parent)
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read_string(text, file.name)
    except configparser.Error as error:
        raise ConfigError(f"{file.name}: {str(error).splitlines()[0]}", run=f"${{EDITOR:-vi}} {file}") from None
    if not parser.has_option("options", "install_requires"):
        return None
    extras = dict(parser.items("options.extras_require")) if parser.has_section("options.extras_require") else {}
    wish = parser.get("options", "python_requires", fallback="").strip()
    return Requirements(
        _lines(parser.get("options", "install_requires"), file),
        python=python_specifier(wish, "setup.cfg: options.python_requires"),
        extras={canonicalize_name(name): _lines(value, file) for name, value in extras.items()},
    )


def _lines(value: str, file: Path) -> tuple[str, ...]:
    """Return a requirement for each line, markers included; ``file:``, setuptools' list elsewhere, is left out."""
    listed = [line.partition(" #")[0].strip() for line in value.splitlines()]
    wanted = [line for line in listed if line and not line.startswith(("#", "file:"))]
    pip_format.refuse_too_many(wanted, file.name, file)
    return tuple(pip_format.checked_requirement(line, file.name) for line in wanted)


_BEGIN, _END = "# /// script", "# ///"


def read_inline(file: Path, project: Path) -> Requirements | None:
    """Read the dependencies and the Python that a script names; None if it names none. Raises ConfigError."""
    text = _block(read_bytes(file, inside=project).decode("utf-8", "replace").splitlines())
    table = parse_toml(text, file) if text is not None else {}
    listed, place = table.get("dependencies"), f"{file.name}: {_BEGIN}"
    if listed is None:
        return None
    if not isinstance(listed, list) or not all(isinstance(line, str) for line in listed):
        message = f"{file.name}: dependencies of {_BEGIN} must be a list of requirements, not {shown(listed)}"
        raise ConfigError(message, run=f"${{EDITOR:-vi}} {as_typed(file)}")
    pip_format.refuse_too_many(listed, place, file)
    python = python_specifier(table.get("requires-python", ""), f"{file.name}: requires-python")
    return Requirements(script_requirements(table, listed, file, place), python=python)


def _block(lines: list[str]) -> str | None:
    """Return the TOML of the first such comment; None without one, or if it does not end."""
    rest = lines[lines.index(_BEGIN) + 1 :] if _BEGIN in lines else []
    inside = rest[: rest.index(_END)] if _END in rest else [""]
    return "\n".join(line[2:] for line in inside) if all(f"{line} ".startswith("# ") for line in inside) else None


#: Extras that name each other.
_MOST_STEPS = 100


def own_dependencies(project: Path, extras: Iterable[str]) -> tuple[Requirements, tuple[str, ...]]:
    """Return (the files' literal requirements, extras too; warnings of missing extras). Raises ConfigError."""
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
    options = tuple(option for setup in setups for option in setup.options)
    return Requirements(tuple(dict.fromkeys(found)), options=options, python=python), tuple(warnings)


@fallback(frozenset(), on=ConfigError)  # an unreadable list is refused where it is used
def own_names(project: Path) -> Set[str]:
    """Return the project's canonical names: the index may have a stranger's package of the same name."""
    return {setup.name for setup in _setups(project) if setup.name}


def _setups(project: Path) -> Iterator[Requirements]:
    """Yield pyproject.toml's list, or else those of setup.py and setup.cfg, which setuptools reads together."""
    if is_there(file := project / "pyproject.toml") and (setup := read_pyproject(file, None)) is not None:
        yield setup
        return
    for name in ("setup.py", "setup.cfg"):
        if is_there(file := project / name) and (setup := READERS[name](file)) is not None:
            yield setup


#: Lists of a project as a package, besides pyproject.toml.
READERS = {"setup.py": read_setup, "setup.cfg": read_setup_cfg, "Pipfile": read_pipfile}
