"""Values of expressions, as far as constants show it: a path made of names, f-strings, joins and options."""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from seatrial.job.reading.flow import FunctionNode
from seatrial.job.reading.parsed_modules import Module, Unit
from seatrial.job.reading.signs import dotted, keywords, literal

#: Stands for the parts of a text that no constant shows.
ANY = "*"

#: Names that are followed to a constant, at most.
_DEEPEST = 12
#: Most expressions read for one path: names that are made of themselves multiply.
_MOST_LOOKS = 500

#: Usual names of the object with the options' values, if nothing shows that it comes from parse_args.
_NAMESPACES = {"args", "opt", "opts", "options", "FLAGS", "flags", "parsed"}

_WRAPPERS = {"Path", "PurePath", "PosixPath", "str", "fspath", "abspath", "normpath", "realpath", "expanduser"}
_SAME = {"resolve", "absolute", "expanduser", "as_posix", "rstrip", "strip"}


class Text(NamedTuple):
    """Text as far as it is constant, ``*`` for the rest, and whether it is that in every run."""

    text: str
    sure: bool


class ParsedCall(NamedTuple):
    """A call, and whether it runs whenever its unit does."""

    unit: Unit
    node: ast.Call
    always: bool


@dataclass
class ParserOption:
    """An option of argparse's, or Click's, and whether it is defined more than once."""

    flags: list[str]
    unit: Unit
    node: ast.Call
    again: bool = False


class Constants:
    """The constants of a project's modules.

    Args:
        module_at: a file's module.
        arguments: that the script is started with.

    Attributes:
        callers: unit → calls that run it.
        always: units that run in every run, once that is known.
        options: name → option.
        stored: names of attributes that are set: ``args.output = …``.
        settings: key of a configuration file that is read → (value, ``config.yaml:3``), where it has one value.
        by_setting, by_option: whether the text last asked for is a file's setting, and the option that gives it.
    """

    def __init__(self, module_at: Callable[[Path], Module | None], arguments: Sequence[str]) -> None:
        self._module_at, self.arguments = module_at, arguments
        self.callers: dict[Unit, list[ParsedCall]] = {}
        self.always: set[Unit] = set()
        self.options: dict[str, ParserOption] = {}
        self.stored: set[str] = set()
        self.settings: dict[str, tuple[str, str]] = {}
        self.by_setting = False
        self.by_option: ParserOption | None = None
        self._looks = 0
        self._scopes: dict[Unit, dict[str, list[ast.expr | None]]] = {}

    def text(self, node: ast.expr | None, unit: Unit, depth: int = 0) -> Text | None:
        """Return the text of an expression in ``unit``, as far as it is constant; None if it shows none."""
        self._looks = self._looks + 1 if depth else 0
        if not depth:
            self.by_setting, self.by_option = False, None
        if node is None or depth > _DEEPEST or self._looks > _MOST_LOOKS:
            return None

        def inner(each: ast.expr) -> Text | None:
            return self.text(each, unit, depth + 1)

        match node:
            case ast.Constant(value=str(text)):
                return Text(text, True)
            case ast.JoinedStr():
                parts = [inner(each.value if isinstance(each, ast.FormattedValue) else each) for each in node.values]
                return _joined("", parts)
            case ast.BinOp(op=ast.Add() | ast.Div()) if left := inner(node.left):
                return _joined("/" if isinstance(node.op, ast.Div) else "", [left, inner(node.right)])
            case ast.BinOp(op=ast.Mod()) if left := inner(node.left):
                return left._replace(text=re.sub(r"%[^a-zA-Z%]*[a-zA-Z]", ANY, left.text))
            case ast.BoolOp():
                values = [inner(each) for each in node.values]
                first = next((each for each in values if each is not None), None)
                return first and first._replace(sure=first.sure and first is values[0])
            case ast.IfExp():
                either = inner(node.body) or inner(node.orelse)
                return either and either._replace(sure=False)
            case ast.Call():
                return self._text_of_call(node, unit, depth)
            case ast.Name():
                return self._text_of_name(node.id, unit, depth)
            case ast.Attribute():
                return self._text_of_attribute(node, unit, depth)
            case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=wanted)):
                tables = self._assigned(unit, name) or self._assigned((unit[0], ""), name)
                if len(tables) == 1 and isinstance(tables[0], ast.Dict):
                    pairs = zip(tables[0].keys, tables[0].values, strict=True)
                    found = (inner(value) for key, value in pairs if getattr(key, "value", ...) == wanted)
                    return next(found, None)
                parsed = tables and tables[0] is not None and "parse_args" in ast.dump(tables[0])
                return self.of_option(wanted, depth + 1) if parsed and wanted in self.options else self._setting(wanted)
            case ast.Subscript(slice=ast.Constant(value=wanted)):
                return self._setting(wanted)
        return None

    def _setting(self, key: object) -> Text | None:
        if not isinstance(key, str) or key not in self.settings:
            return None
        self.by_setting = True
        return Text(self.settings[key][0], False)

    def _text_of_call(self, node: ast.Call, unit: Unit, depth: int) -> Text | None:
        name = dotted(node.func)
        last = name.rpartition(".")[2] or (node.func.attr if isinstance(node.func, ast.Attribute) else "")
        arguments = [self.text(each, unit, depth + 1) for each in node.args]
        if name.endswith("path.join") or name == "join" or last in _WRAPPERS:
            return _joined("/", arguments) if arguments and arguments[0] else None
        if name in ("os.environ.get", "environ.get", "os.getenv", "getenv") and len(arguments) == 2 and arguments[1]:
            return arguments[1]._replace(sure=False)
        if not isinstance(node.func, ast.Attribute):
            return None
        receiver = self.text(node.func.value, unit, depth + 1)
        if receiver is None or last in _SAME:
            return receiver
        if last == "joinpath":
            return _joined("/", [receiver, *arguments])
        if last == "format":
            return receiver._replace(text=re.sub(r"\{[^{}]*\}", ANY, receiver.text))
        return None

    def _text_of_name(self, name: str, unit: Unit, depth: int) -> Text | None:
        module = self._module_at(unit[0])
        if module is None:
            return None
        given = unit[1] and name in parameters(module.flow.functions[unit[1]])
        if values := self._assigned(unit, name):
            found = self._one_of(values, unit, depth)
            return found and found._replace(sure=found.sure and not given)
        if given:
            return self._text_of_parameter(name, unit, depth)
        top = (unit[0], "")
        if values := self._assigned(top, name):
            found = self._one_of(values, top, depth)
            return found and found._replace(sure=found.sure and name not in module.flow.globals)
        if name in module.bound:
            path, inner = module.bound[name]
            return self._text_of_name(inner, (path, ""), depth + 1) if inner and depth < _DEEPEST else None
        return None

    def _one_of(self, values: list[ast.expr | None], unit: Unit, depth: int) -> Text | None:
        found = [self.text(value, unit, depth + 1) for value in values]
        first = next((each for each in found if each is not None and is_outside(each.text)), found[0])
        return first and first._replace(sure=first.sure and len(found) == 1)

    def _text_of_parameter(self, name: str, unit: Unit, depth: int) -> Text | None:
        module = self._module_at(unit[0])
        assert module is not None, "its function was read"
        function = module.flow.functions[unit[1]]
        if name in self.options and any("option" in ast.dump(each) for each in function.decorator_list):
            return self.of_option(name, depth + 1)
        found = []
        for each, where, sure in self.passed(name, unit):
            if (text := self.text(each, where, depth + 1)) is not None:
                found.append(text._replace(sure=text.sure and sure))
        if not found and (text := self.text(_default(name, function), (unit[0], ""), depth + 1)) is not None:
            found.append(text._replace(sure=False))
        return max(found, key=lambda each: (is_outside(each.text), each.sure), default=None)

    def passed(self, name: str, unit: Unit) -> Iterator[tuple[ast.expr | None, Unit, bool]]:
        """Yield (expression, its unit, whether that call runs in every run) for what calls give to a parameter."""
        module = self._module_at(unit[0])
        assert module is not None, "its function was read"
        function = module.flow.functions[unit[1]]
        names = parameters(function)
        index = names.index(name) - (names[0] in ("self", "cls"))
        for caller, node, always in self.callers.get(unit, ()):
            given = keywords(node).get(name) or (node.args[index] if 0 <= index < len(node.args) else None)
            sure = always and caller in self.always and None not in keywords(node)
            yield given or _default(name, function), caller if given else (unit[0], ""), sure

    def _text_of_attribute(self, node: ast.Attribute, unit: Unit, depth: int) -> Text | None:
        if node.attr == "parent":
            found = self.text(node.value, unit, depth + 1)
            return found and found._replace(text=posixpath.dirname(found.text))
        module = self._module_at(unit[0])
        if module is None or not isinstance(node.value, ast.Name):
            return None
        owner = node.value.id
        if owner == "self" and "." in unit[1]:
            values = module.flow.attributes(unit[1].partition(".")[0], node.attr)
            if len(values) == 1:
                return self.text(values[0][1], (unit[0], values[0][0]), depth + 1)
            return None
        if owner in module.bound and module.bound[owner][1] is None:
            found = self._text_of_name(node.attr, (module.bound[owner][0], ""), depth + 1) if depth < _DEEPEST else None
            return found and found._replace(sure=found.sure and node.attr not in self.stored)
        values_of_class = module.flow.attributes(module.types.get(owner, owner), node.attr)
        if len(values_of_class) == 1:
            found = self.text(values_of_class[0][1], (unit[0], values_of_class[0][0]), depth + 1)
            return found and found._replace(sure=found.sure and node.attr not in self.stored)
        if node.attr not in self.options:
            return self._setting(node.attr)
        parsed = module.types.get(owner, "").endswith("parse_args") or owner in _NAMESPACES
        found = self.of_option(node.attr, depth + 1)
        return found and found._replace(sure=found.sure and parsed and node.attr not in self.stored)

    def note_option(self, unit: Unit, node: ast.Call) -> None:
        words = [word for word in map(literal, node.args) if word is not None]
        dest = literal(keywords(node).get("dest"))
        longest = next((word for word in words if word.startswith("--")), words[0] if words else "")
        name = dest or longest.lstrip("-").replace("-", "_")
        if words and name:
            known = self.options.setdefault(name, ParserOption(words, unit, node))
            known.again = known.again or known.node is not node

    def of_option(self, name: str, depth: int = 0) -> Text | None:
        """Return the value of an option that was typed, else its default; None if neither is readable."""
        known = self.by_option = self.options[name]
        self._looks = self._looks if depth else 0
        for flag, value in typed_options(self.arguments):
            if any(flag == own or (own.startswith(flag) and flag.startswith("--")) for own in known.flags):
                return Text(value, True)
        found = self.text(keywords(known.node).get("default"), known.unit, depth + 1)
        return found and found._replace(sure=found.sure and not known.again and known.flags[0].startswith("-"))

    def _assigned(self, unit: Unit, name: str) -> list[ast.expr | None]:
        """Return what is assigned to a name in a function, or at a module's top; None if it is not one expression."""
        if unit not in self._scopes:
            module = self._module_at(unit[0])
            self._scopes[unit] = {} if module is None else module.flow.assigned(unit[1])
        return self._scopes[unit].get(name, [])


def is_outside(path: str) -> bool:
    """Return whether a path may lie outside: not relative to the working directory, nor unknown from its beginning."""
    return len(path) > 1 and "\n" not in path and (path.startswith("../") or (path[0] == "/" and path[1] not in "/*"))


def _joined(separator: str, parts: Sequence[Text | None]) -> Text:
    """Join parts one behind the other; a path begins anew at an absolute one."""
    texts = [ANY if each is None else each.text for each in parts]
    text = posixpath.join(*texts) if separator else "".join(texts)
    anywhere = separator and any(each.startswith(ANY) for each in texts[1:])  # it may be an absolute path
    return Text(text, not anywhere and all(each is None or each.sure for each in parts))


def _default(name: str, function: FunctionNode) -> ast.expr | None:
    """Return a parameter's default."""
    spec = function.args
    positional = [*spec.posonlyargs, *spec.args]
    pairs = [
        *zip(reversed(positional), reversed(spec.defaults), strict=False),
        *zip(spec.kwonlyargs, spec.kw_defaults, strict=True),
    ]
    return next((value for each, value in pairs if each.arg == name), None)


def parameters(function: FunctionNode) -> list[str]:
    """Return the names of a function's parameters."""
    spec = function.args
    return [each.arg for each in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs)]


def typed_options(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield (option, value) of ``--output /x`` and ``--output=/x``."""
    for number, word in enumerate(arguments):
        flag, equals, value = word.partition("=")
        if word.startswith("-") and equals:
            yield flag, value
        elif word.startswith("-") and number + 1 < len(arguments):
            yield word, arguments[number + 1]
