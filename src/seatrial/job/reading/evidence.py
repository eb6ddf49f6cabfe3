"""Collect what single nodes of a script and its modules show, each with its first place."""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, TypeAlias

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from seatrial.job.reading import signs
from seatrial.job.reading.constants import Constants
from seatrial.job.reading.devices import Reason
from seatrial.job.reading.file_calls import Read, Write, called_names
from seatrial.job.reading.flow import CAUGHT, RunNode, Tests, conditions, fails
from seatrial.job.reading.keras_names import keras_signs
from seatrial.job.reading.modules import Missing
from seatrial.job.reading.parsed_modules import Import, Module, Unit
from seatrial.job.reading.signs import dotted, full_name, last_name, literal
from seatrial.system.text import regex

_MOST_PATHS = 100
#: Types of nodes of which more than the names is noted.
NOTED = (
    *(*signs.TELLING, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Dict, ast.Assert, ast.If, ast.List, ast.Tuple),
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef),
)
#: (expression, constants, wanted): it must equal one of the constants if wanted, else none of them.
_Members: TypeAlias = tuple[ast.expr, tuple[str, ...], bool]
#: Calls and names that test for a package or a machine: is_apex_available(), find_spec("wandb"), HAS_XLA, os.name.
_ASKS = regex(signs.TABLES["patterns"]["asks"])
#: A model's name as the key of a table: ``Aya-23-8B-Chat``.
_MODEL = regex(r"-[\w.]*\d|\d[bBmM]\b")
_SIGNS = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}
_OPPOSITE = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}
_COMPILING = ("compiler", "torch-compile")  #: signs that count where their conditions may hold
PIPED = "subprocess.|sh"  #: a shell that runs what another program downloads

#: Functions that parse a version, or its numbers, from text.
_READERS = {"Version", "LooseVersion", "StrictVersion", "parse", "parse_version", "digit_version", "map"}
_READERS |= {"tuple", "int"}
_DEEPEST = 12
#: Code that sets the variable ``{0}`` of the environment, or unnamed ones.
_SETS = r"""["']{0}["'](?:\] *=[^=]|,)|\b{0}=|putenv|dotenv\((?!\)|find_|override|verbose|usecwd)|setup_root"""
_SETS += r"""|environ(\.update|\.setdefault\((?!["'])|\[[^"'\]].{{0,60}}\] *=[^=])"""
#: Form of a version → operators that give a bound. Python compares texts by characters, so only == and != count.
_READABLE = {"text": "== !=", "parts": "", "first": "== != < >=", "version": "== != < <= > >="}
_May: TypeAlias = Callable[[Unit, Tests], bool]  #: whether code of a unit runs, below these tests
#: Module-level names of a file → the expressions that they are assigned.
_Values: TypeAlias = Mapping[str, Sequence[ast.expr | None]]


class EnvCheck(NamedTuple):
    """Hold a check at ``where``: if ``wanted``, the variable is one of ``values``, else none; () admits any value."""

    name: str
    values: tuple[str, ...]
    wanted: bool
    where: str

    def accepts(self, value: str) -> bool:
        """Return whether the script goes on with this value, which it may change to lower case."""
        taken_for = {value, value.lower(), value.upper()} if self.wanted else {value}
        return taken_for.isdisjoint(self.values) is not self.wanted

    def __str__(self) -> str:
        return f"{self.name} is {'' if self.wanted else 'not '}{' or '.join(self.values)}"


@dataclass(frozen=True)
class Readings:
    """Hold what reading shows of a script and the project's modules; a place is ``file.py:line``.

    Attributes:
        missing: module of the project, or name in one, that an import needs and the project lacks.
        asserted: ``mmcv<=1.4.0`` → where the script fails unless the module has such a version.
        paths: literal path that may lie outside of the project, ``../data`` or ``/home/me/data`` → where.
        writes: files and folders that it makes outside of the working directory.
        reads: paths that it reads in any usual run, Hydra's files, and paths of the author's machine.
        inputs: absent paths that it may read, by their names and values.
        unchecked: where any usual run reads a file whose path an option or a setting gives, without a known value.
        unknown: reads by unknown paths, if no input is known. unmade: writes to folders that nothing creates.
        outputs: options with paths that it creates and does not read.
        hub_model: (name, where) of the first model that it loads by a hub's name in every run, or None.
        remote: ``remote.s3`` → opened by fsspec; ``run.wandb=online|logs`` → its start; ``local.…``: a local service.
        devices: reasons why it does not use the GPUs with these arguments.
        variables: variable that the code sets in every run → (value, where). read_variables: one it reads → where.
        keywords: ``transformers.Trainer(tokenizer=)``, an argument in a call of an imported name that may run → where.
        files: the files that were read, relative to the project where they are inside.
        import_roots: folders of the project, ``.`` or ``src``, besides the script's, that it imports modules from.
        misfits: warnings about arguments that the script's parser rejects, and about code that fails if it runs.
        failing: errors that every run reaches: (``train.py:54 uses PATH, which is not defined``, the edit).
        env_checks: values of variables that it rejects.
        least_python: the newest syntax in what runs in any case, ``((3, 10), "net.py:7")``, or None.
        idle: the script, and every module of the project that it imports, only has definitions.
    """

    missing: dict[str, Missing] = field(default_factory=dict)
    asserted: dict[str, str] = field(default_factory=dict)
    paths: dict[str, str] = field(default_factory=dict)
    writes: tuple[Write, ...] = ()
    reads: tuple[Read, ...] = ()
    inputs: tuple[Read, ...] = ()
    unchecked: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    unmade: tuple[Write, ...] = ()
    outputs: frozenset[str] = frozenset()
    hub_model: tuple[str, str] | None = None
    remote: dict[str, str] = field(default_factory=dict)
    devices: tuple[Reason, ...] = ()
    variables: dict[str, tuple[str, str]] = field(default_factory=dict)
    read_variables: dict[str, str] = field(default_factory=dict)
    keywords: dict[str, str] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    import_roots: tuple[str, ...] = ()
    misfits: tuple[str, ...] = ()
    failing: tuple[tuple[str, str], ...] = ()
    env_checks: tuple[EnvCheck, ...] = ()
    least_python: tuple[tuple[int, int], str] | None = None
    idle: bool = False


@dataclass(frozen=True)
class ProjectReading(Readings):
    """Add all else that is seen, each with its first place.

    Attributes:
        needed, optional: dotted names of imported modules outside the project. likely: optional ones that no
            condition with a known value excludes. fallbacks: needed ones that only an import's handler imports.
        signs, certain_signs: kind of sign → evidence; ``certain`` where the code runs in any case.
        relative: the first relative import that every run reaches in a file outside of packages: (where, ``.net``,
            place of the file's import, "" for the script).
    """

    needed: dict[str, str] = field(default_factory=dict)
    optional: dict[str, str] = field(default_factory=dict)
    likely: dict[str, str] = field(default_factory=dict)
    fallbacks: set[str] = field(default_factory=set)
    signs: dict[str, str] = field(default_factory=dict)
    certain_signs: dict[str, str] = field(default_factory=dict)
    relative: tuple[str, str, str] | None = None


class NodeReader:
    """Collects what nodes show, whatever else the code does.

    Attributes:
        reading: what they show. checks: statements that may end every run. relative: see ProjectReading.
        tops: file that runs outside of packages → where it is imported.
        joins: calls below conditions, which need a launcher's ranks. later: imports that a run may reach.
        starts: scripts in lists of words. named: see Files.
    """

    def __init__(self, start: Path, arguments: Sequence[str], named: dict[str, Read]) -> None:
        self.reading, self.named = ProjectReading(), named
        self.starts: list[tuple[Unit, ast.expr]] = []
        self._decorators, self._listed = set[int](), set[int]()  # the latter: nodes in tables of known models
        self._typed = {word.partition("=")[0].lstrip("-") for word in arguments if word.startswith("-")}
        self.relative: tuple[str, str, str] | None = None
        self.tops = {start: ""}
        self.checks: list[tuple[Unit, str, ast.AST]] = []
        self.joins: list[tuple[Unit, Tests, str]] = []
        self.later: list[tuple[Unit, Tests, str, str]] = []

    def note(self, module: Module, unit: str, seen: RunNode, certain: bool) -> None:
        """Note what a node shows. Args: certain: every run reaches the unit."""
        node, reading = seen.node, self.reading
        where = f"{module.shown}:{getattr(node, 'lineno', 1)}"
        for name, value in signs.assigned_variables(node).items():
            if name == "KERAS_BACKEND":
                sign = "keras-backend" if isinstance(node, ast.Assign) else "keras-default"
                reading.signs.setdefault(sign, f"{where} {value}")
            if certain and seen.certain:
                reading.variables.setdefault(name, (value, where))
        if certain and (read := literal(signs.variable_key(node))):
            reading.read_variables.setdefault(read, where)
        if isinstance(node, ast.If) and certain and seen.certain:
            for each in module.flow.guarded(node):
                names = [] if getattr(each, "level", 0) else signs.modules_of(each)
                reading.needed.update(dict.fromkeys(names, f"{module.shown}:{each.lineno}"))
        if isinstance(node, ast.Assert | ast.If | ast.Subscript | ast.Call) and certain and seen.always:  # none catches
            if (
                not isinstance(node, ast.Call)
                or full_name(called_names(node)[0], module.names) in signs.SETS["fails-on-none"]
            ):
                self.checks.append(((module.path, unit), where, node))
            for bound in version_bounds(node, module.flow.assigned(""), module.names):
                reading.asserted.setdefault("".join(bound), where)
        if (path := signs.host_path(node)) and len(reading.paths) < _MOST_PATHS:
            reading.paths.setdefault(path, where)
        self._decorators.update(map(id, getattr(node, "decorator_list", ())))
        if certain and seen.tests == () and id(node) not in self._decorators:
            for text, option in signs.used_paths(node, self._typed):
                ends = [dotted(each).encode() for each in getattr(node, "targets", ())]
                if not any(b"with(%s)" % each in module.source for each in ends):  # text.startswith(PREFIXES)
                    given = (each.arg for each in getattr(node, "keywords", ()) if literal(each.value) == text)
                    verb = "reads" if "ckpt_path" in given else "names"
                    self.named.setdefault(posixpath.normpath(text), Read(text, where, option, verb=verb))
        if started := signs.started_file(node):
            self.starts.append(((module.path, unit), started))
        caught = CAUGHT in (seen.tests or ())
        tests = () if caught else seen.tests or ()
        if isinstance(node, ast.Call) and (seen.needed or tests):  # not below `except Exception`
            program = f"subprocess.{signs.started_program(node, module.names, module.flow.assigned(unit))}"
            self.later += [((module.path, unit), tests, program, where)] * (program[-1] != ".")
            if program[-1] != "." and re.search(
                r"\b(curl|wget)\b.*\|\s*(sudo\s+)?(ba|da|z)?sh(?![\w.-])", ast.unparse(node)
            ):
                self.later.append(((module.path, unit), tests, PIPED, where))
        if isinstance(node, ast.Call) and node.keywords and not caught and seen.tests is not None:
            top = (called := dotted(node.func)).partition(".")[0]
            other = top not in module.names or not module.rebound.isdisjoint((top, called))
            if not other and not _mention(module, unit, tests, "version|signature|hasattr|argspec|co_varnames"):
                full = full_name(called, module.names)
                given = (f"{full}({each.arg}=)" for each in node.keywords if each.arg)
                self.later += (((module.path, unit), tests, each, where) for each in given)
        if isinstance(node, Import):
            module.names |= signs.imported_names(node)
        if isinstance(node, ast.Dict) and all(isinstance(each, ast.Dict) for each in node.values):
            listed = any(_MODEL.search(literal(key) or "") for key in node.keys)
            self._listed.update(map(id, ast.walk(node) if listed else ()))
        if isinstance(node, signs.TELLING) and id(node) not in self._listed:
            self._note_signs(module, unit, seen, where, certain=certain)
        if isinstance(node, ast.ImportFrom) and node.level and module.path in self.tops and certain and seen.needed:
            self.relative = self.relative or (where, ("." * node.level + (node.module or "")), self.tops[module.path])

    def _note_signs(self, module: Module, unit: str, seen: RunNode, where: str, *, certain: bool) -> None:
        caught = CAUGHT in (seen.tests or ())
        tests = () if caught else seen.tests or ()
        for sign, shown in (*signs.signs(seen.node, module.names), *keras_signs(seen.node, module)):
            is_named = sign.startswith(signs.NAMED)
            if is_named and _is_tested_for(shown, module.source):
                continue
            evidence = f"{where} {shown}"
            if tests and sign in _COMPILING:
                self.later.append(((module.path, unit), tests, sign, evidence))
            else:
                self.reading.signs.setdefault(sign, evidence)
            asks = not shown.startswith("sys.") and b"stdin.isatty()" not in module.source
            holds = {"notebook": seen.always, "input": seen.tests == () and asks}
            holds["needs-ranks"] = seen.certain and not caught
            if certain and holds.get(sign, seen.certain and not (caught and is_named)):
                self.reading.certain_signs.setdefault(sign, evidence)
            elif certain and sign == "needs-ranks" and tests:
                self.joins.append(((module.path, unit), tests, evidence))

    def note_perhaps(self, module: Module, unit: Unit, tests: Tests, name: str, where: str) -> None:
        """Note an import that some runs skip, unless a version check decides it: ``if torch.__version__ < …``."""
        # tensorflow.compat.v1, which code for either TensorFlow imports
        if not _mention(module, unit[1], tests, "__version__$") or ".compat" in name:
            self.reading.optional.setdefault(name, where)
            self.later.append((unit, tests, name, where))

    def decide(self, constants: Constants, may: _May, tried: _May, own: Collection[str]) -> None:
        """Judge what was noted below conditions: needed ranks, and imports that may run.

        Args: tried: whether code may run, also below ``try``, where a failed run ends, too. own: see ImportRoots.
        """
        for unit, tests, evidence in self.joins:
            if constants.likely and unit in constants.always and constants.likely(unit, tests):
                self.reading.certain_signs.setdefault("needs-ranks", evidence)
        for unit, tests, name, where in self.later:
            if name in _COMPILING:
                if may(unit, ()) <= may(unit, tests):  # else another branch runs
                    self.reading.signs.setdefault(name, where)
                continue
            tested = (dotted(node) for test, _ in tests or () for node in ast.walk(test))
            called = tests is not None and CAUGHT not in tests and not name.startswith("subprocess.")
            known = name.partition(".")[0] in own or any(map(_ASKS.match, tested))
            if not known and (tried if called else may)(unit, tests):
                (self.reading.keywords if "(" in name else self.reading.likely).setdefault(name, where)

    def env_checks(self, constants: Constants, code: str) -> Iterator[EnvCheck]:
        """Yield checks of variables, ``if kind == "mnist": … else: raise``, and variables that no code sets."""
        gets, is_set = re.search(r"getenv|environ\.get", code), dict[str, object]()
        for unit, where, node in self.checks:
            if isinstance(node, ast.Call) and not (gets and unit in constants.always):
                continue
            check = _check(node) if unit in constants.always else None
            if check is not None and (variable := constants.variable(check[0], unit)):
                yield EnvCheck(variable, *check[1:], where)
                continue
            parts = [part for part, holds in conditions(node) if holds and part is not node]
            parts = node.args[:3] if isinstance(node, ast.Call) else parts  # the fourth of open may be None
            set_there = (constants.variable(part, unit) for part in parts)
            read = (literal(signs.variable_key(node)), *set_there)
            for needed in (each for each in read if each and each.isidentifier()):
                if needed not in is_set and len(is_set) < _MOST_PATHS:
                    is_set[needed] = re.search(_SETS.format(needed), code)
                if not is_set.get(needed, True):
                    yield EnvCheck(needed, (), False, where)


def _is_tested_for(name: str, source: bytes) -> bool:
    """Return whether code asks for a part of a dotted name: ``hasattr(np, "float")``."""
    pairs = pairwise(re.escape(name).encode().split(rb"\.")) if b"hasattr" in source else ()
    return any(re.search(rb"""hasattr\([^()]*\b%s\s*,\s*["']%s["']""" % pair, source) for pair in pairs)


def _check(node: ast.AST, known: tuple[str, ...] = (), text: str | None = None) -> _Members | None:
    """Return what must hold, or a statement fails. Args: known, text: what the tests above an ``elif`` compare."""
    found = _members(node.test) if isinstance(node, ast.Assert | ast.If) else None
    if found is None or text not in (None, ast.dump(found[0])) or not isinstance(node, ast.If):
        return found if isinstance(node, ast.Assert) else None
    expression, values, wanted = found
    if fails(node.body):
        return None if known else (expression, values, not wanted)
    if not wanted or fails(node.orelse):
        return (expression, (*known, *values), True) if wanted else None
    return _check(node.orelse[0], (*known, *values), ast.dump(expression)) if len(node.orelse) == 1 else None


def _members(test: ast.expr) -> _Members | None:
    if not (isinstance(test, ast.Compare) and len(test.ops) == 1):
        return None
    op, right = test.ops[0], test.comparators[0]
    given = [right] if isinstance(op, ast.Eq | ast.NotEq) else getattr(right, "elts", [])
    values = tuple(value for value in map(literal, given) if value is not None)
    known = given and len(values) == len(given) and isinstance(op, ast.Eq | ast.NotEq | ast.In | ast.NotIn)
    return (test.left, values, isinstance(op, ast.Eq | ast.In)) if known else None


def _mention(module: Module, unit: str, tests: Tests, names: str) -> bool:
    """Return whether tests mention one of these dotted names, directly or by a name that the code assigns."""
    seen = [each for test, _ in tests or () for each in ast.walk(test)]
    seen += [v for node in seen for at in ("", unit) for v in module.flow.assigned(at).get(dotted(node), ()) if v]
    return any(re.search(names, dotted(each)) for node in seen for each in ast.walk(node))


class _Side(NamedTuple):
    """Hold a side of a comparison: a constant version, or the module whose version it is, in a form of _READABLE."""

    value: str
    is_module: bool
    form: str = "text"


def version_bounds(node: ast.AST, values: _Values, names: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield (module, ``<=1.4.0``) without which a statement or a call, as transformers' check_min_version, fails."""
    match node:
        case ast.Assert() | ast.If():
            for part, holds in conditions(node):
                yield from _bounds(part, holds, values, names)
        case ast.Call(func=func, args=[ast.Constant(value=str(text)), *_]) if "_version" in last_name(func):
            top, called = full_name(dotted(func), names).partition(".")[0], last_name(func)
            with suppress(InvalidRequirement, InvalidVersion):
                if called == "check_min_version":
                    yield top, f">={Version(text).base_version}"
                elif called == "require_version" and (wanted := Requirement(text)).specifier:
                    yield wanted.name, str(wanted.specifier)


def _bounds(test: ast.expr, holds: bool, values: _Values, names: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the bounds on versions that follow if a comparison holds or, without ``holds``, fails."""
    if isinstance(test, ast.Compare) and (holds or len(test.ops) == 1):
        sides = [_side(each, values, names) for each in (test.left, *test.comparators)]
        for left, compared, right in zip(sides, test.ops, sides[1:], strict=False):
            if left and right and left.is_module != right.is_module and (sign := _SIGNS.get(type(compared))):
                module, other = (left, right) if left.is_module else (right, left)
                sign = sign if left.is_module else {"<": ">", "<=": ">=", ">": "<", ">=": "<="}.get(sign, sign)
                yield from _bound(module, sign if holds else _OPPOSITE[sign], other.value)


def _bound(module: _Side, sign: str, version: str) -> Iterator[tuple[str, str]]:
    if sign in _READABLE[module.form].split():
        later = ".*" if module.form == "first" and sign in ("==", "!=") else ""
        with suppress(InvalidSpecifier):
            yield module.value, str(SpecifierSet(f"{sign}{version}{later}"))


def _side(node: ast.expr, values: _Values, names: Mapping[str, str], deep: int = 0) -> _Side | None:
    """Return what an expression stands for; None if it is neither a version nor a constant."""

    def inner(each: ast.expr, form: str = "") -> _Side | None:
        found = _side(each, values, names, deep + 1) if deep < _DEEPEST else None
        return found._replace(form=form) if found and form and found.form != "first" else found

    name = full_name(dotted(node), names)
    if name.endswith(".__version__"):
        top = name.partition(".")[0]
        return _Side(top, True) if top else None
    match node:
        case ast.Constant(value=str() | int() as value):
            return _Side(str(value), False)
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            numbers = [str(each.value) for each in parts if isinstance(each, ast.Constant)]
            return _Side(".".join(numbers), False) if len(numbers) == len(parts) else None
        case ast.Name(id=known):
            found = values.get(known, ())
            return inner(found[0]) if len(found) == 1 and found[0] is not None else None
        case ast.Subscript(value=ast.Call(func=ast.Attribute(value=own, attr="split"), args=[ast.Constant(value="+")])):
            return inner(own)
        case ast.Subscript(value=text, slice=ast.Constant(value=0) | ast.Slice(lower=None, step=None)):
            whole = inner(text)
            return whole._replace(form="first") if whole and whole.form != "text" else None
        case ast.Call(func=ast.Attribute(value=text, attr="split"), args=[ast.Constant(value=".")]):
            return inner(text, "parts")
        case ast.Call(func=func, args=[*_, last]) if last_name(func) in _READERS:
            return inner(last, "version")
        case ast.ListComp(generators=[each]) | ast.GeneratorExp(generators=[each]):
            return inner(each.iter, "version")
    return None
