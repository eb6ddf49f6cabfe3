"""Values of expressions, as far as constants show it: a path made of names, f-strings, joins and options."""

from __future__ import annotations

import ast
import os
import posixpath
import re
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from seatrial.job.reading.argparse_words import typed_options
from seatrial.job.reading.flow import FunctionNode, Tests, default_of, parameters, statements
from seatrial.job.reading.parsed_modules import Module, Unit, named, source_of
from seatrial.job.reading.signs import (
    PLACEHOLDER,
    SETS,
    dotted,
    is_constant,
    keywords,
    last_name,
    literal,
    variable_key,
)

#: Stands for the parts of a text that no constant shows.
ANY = "*"

#: Most names and parts of expressions that are followed to a constant.
_DEEPEST = 40
#: Most expressions read for one path: names assigned from themselves multiply.
_MOST_LOOKS = 500

_CHANGES_ARGV = re.compile(rb"sys\.argv(\.(append|clear|extend|insert|pop|remove)\(|\s*\+?=(?!=))|del\s+sys\.argv")
#: Names of objects with options or settings.
OF_SETTINGS = re.compile(r"(self\.)?_?(\w*(args|opts?|cfg|conf|config|params)|C|options|settings|FLAGS)(\.\w+)?")


class Text(NamedTuple):
    """Hold text as far as it is constant, with ``*`` for the rest; whether it is the same in every run; and whether a
    part joined to it may be an absolute path."""

    text: str
    sure: bool
    anywhere: bool = False


class Binding(NamedTuple):
    """Hold an expression that a name may stand for, and whether it does so in every run."""

    node: ast.expr | None
    unit: Unit
    sure: bool


class ParsedCall(NamedTuple):
    """Hold a call, whether every run of its unit makes it, and the conditions of a likely one (see RunNode)."""

    unit: Unit
    node: ast.Call
    always: bool
    tests: Tests


@dataclass
class ParserOption:
    """Hold an option of argparse or Click, and whether it is defined more than once."""

    flags: list[str]
    unit: Unit
    node: ast.Call
    again: bool = False


class Constants:
    """Finds the values of expressions in a project's modules.

    Args:
        module_at: a file's module.
        arguments: arguments of the script. folder: the working directory.

    Attributes:
        callers: unit → calls that run it.
        always: units that every run reaches, once known. likely, may_assign: decide it by tests; of assignments.
        options: name → option. entries: functions whose parameters are options, by Fire or Typer.
        stored: names of attributes that are set: ``args.output = …``; ``[output]`` of items. joined: of these, name →
            (value, unit) where the value has the attribute in it: ``args.output = args.root / args.output``.
        settings: key of a configuration file that is read, ``path`` or ``data.path``, with one value → (value,
            ``config.yaml:3``).
        set_keys: (``config.data.path``, value, unit) of each assignment to a configuration; None if it may not run.
        looped: (unit, variable) → its value in the pass of a loop whose texts are read.
        looks: expressions read for one path; what sets it to 0 begins another.
        by_setting, by_option, lacks: whether the text last read is a file's setting, the option that gives it,
            and whether a part of it is an option or a setting without a known value.
    """

    def __init__(self, module_at: Callable[[Path], Module | None], arguments: Sequence[str], folder: Path) -> None:
        self._module_at, self.arguments, self._folder = module_at, arguments, folder
        self.callers: dict[Unit, list[ParsedCall]] = {}
        self.always: set[Unit] = set()
        self.likely: Callable[[Unit, Tests], bool] | None = None
        self.may_assign: Callable[[ast.expr | None, Unit], bool] | None = None
        self.options: dict[str, ParserOption] = {}
        self.entries: set[Unit] = set()
        self.stored: set[str] = set()
        self.joined: dict[str, tuple[ast.expr, Unit]] = {}
        self.settings: dict[str, tuple[str, str]] = {}
        self.set_keys: list[tuple[str, ast.expr, Unit]] = []
        self.by_setting = False
        self.by_option: str | None = None
        self.lacks = False
        self.looks = 0
        self.looped: dict[tuple[Unit, str], Binding] = {}
        self._found: dict[tuple[ast.AST | None, str], list[Binding]] = {}  # for one text or condition

    def text(self, node: ast.expr | None, unit: Unit, depth: int = 0) -> Text | None:
        """Return the text of an expression in ``unit``, as far as it is constant; None if it shows none."""
        self.looks = self.looks + 1 if depth else 0
        if not depth:
            self.by_setting, self.by_option, self.lacks, self._found = False, None, False, {}
        if node is None or depth > _DEEPEST or self.looks > _MOST_LOOKS:
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
                return _filled(left, r"%[^a-zA-Z%]*[a-zA-Z]", [*map(inner, getattr(node.right, "elts", [node.right]))])
            case ast.BoolOp():
                values = [inner(each) for each in node.values if not self._is_none(each, unit, depth + 1)]
                first = next((each for each in values if each is not None), None)
                return first and first._replace(sure=first.sure and first is values[0])
            case ast.IfExp(
                test=ast.Call(func=ast.Attribute(attr="endswith", value=of), args=[ast.Constant(value=end)])
            ) if (given := inner(of)) and ANY not in given.text and not given.text.endswith(str(end)):
                return inner(node.orelse)  # path if path.endswith(".yaml") else path + ".yaml"
            case ast.IfExp(ast.Name() | ast.Attribute() as test) if (on := inner(test)) and on.sure and on.text != ANY:
                return inner(node.body if on.text else node.orelse)  # Path(a.root) if a.root else None
            case ast.IfExp(test=test, body=body, orelse=orelse):
                typed = [each for each in (body, orelse) if dotted(getattr(each, "value", each)) == "sys.argv"]
                either = next(filter(None, map(inner, (*typed, body, orelse))), None)
                counts = "len(sys.argv)" in ast.unparse(test)  # sys.argv[1] if len(sys.argv) > 1 else "a"
                return either and either._replace(sure=either.sure and bool(typed) and counts)
            case ast.Subscript(slice=ast.Constant(value=int(at))) if dotted(node.value) == "sys.argv" and at > 0:
                changed = (module := self._module_at(unit[0])) is None or _CHANGES_ARGV.search(module.source)
                return next((Text(word, not changed) for word in self.arguments[at - 1 : at]), None)
            case ast.Call(
                func=ast.Attribute(attr="get" | "getenv", value=table), args=[ast.Constant(value=str()) as key, *rest]
            ):
                found = inner(ast.Subscript(table, key))
                other = inner(rest[0]) if rest and not found else None
                return found or (other and other._replace(sure=False))
            case ast.Call():
                return self._text_of_call(node, unit, depth)
            case ast.Name(id="__file__"):
                return Text(os.path.relpath(unit[0], self._folder), True)
            case ast.Attribute(attr="parent", value=below):
                return (path := inner(below)) and _above(path)
            case ast.Attribute(attr="name" | "stem" as part, value=below) if path := inner(below):
                return path._replace(text=getattr(PurePosixPath(path.text), part) or ANY)
            case ast.Subscript(value=ast.Attribute(attr="parents", value=below), slice=ast.Constant(value=int(count))):
                return (path := inner(below)) and _above(path, count + 1)
            case ast.Name() | ast.Attribute() | ast.Subscript():
                return self._text_of_member(node, unit, depth)
        return None

    def _text_of_call(self, node: ast.Call, unit: Unit, depth: int) -> Text | None:
        name = dotted(node.func)
        last = name.rpartition(".")[2] or (node.func.attr if isinstance(node.func, ast.Attribute) else "")
        if last in SETS["working-directory"]:
            return Text(".", True)
        if (returned := self._returned(node, unit)) is not None and not self._acts(returned[0]):
            callee, value = returned
            before, found = self.callers.get(callee, []), self._found
            self.callers[callee], self._found = [ParsedCall(unit, node, True, ())], {}
            text = self.text(value, callee, depth + 1)
            self.callers[callee], self._found = before, found
            return text
        if last == "strftime" and (form := literal(next(iter(node.args), None))):
            return Text(form.replace("%Y", "20%y").partition("%")[0] + ANY, True)
        if last == "field":  # of a data class
            return self.text(keywords(node).get("default"), unit, depth + 1)
        arguments = [self.text(each, unit, depth + 1) for each in node.args]
        joins = last == "join" and (node.args[1:] or name.endswith(("path.join", "osp.join")))
        if arguments and (joins or last in SETS["of-paths"]):  # Path(root).expanduser() has none
            return _joined("/", arguments) if arguments[0] else None
        if last == "dirname" and arguments and arguments[0]:
            return _above(arguments[0])
        if not isinstance(node.func, ast.Attribute):
            return None
        receiver = self.text(node.func.value, unit, depth + 1)
        if receiver is None or last in SETS["same-path"]:
            return receiver
        if last == "joinpath":
            return _joined("/", [receiver, *arguments])
        return _filled(receiver, r"\{[^{}]*\}", arguments) if last == "format" else None

    def _returned(self, node: ast.Call, unit: Unit) -> tuple[Unit, ast.expr] | None:
        """Return the function of the project that a call runs, and what it returns, where that is one expression."""
        module, name = self._module_at(unit[0]), dotted(node.func)
        for callee in named(module, unit[1], name, self._module_at) if module and name else ():
            body = other.flow.body(callee[1]) if (other := self._module_at(callee[0])) else ()
            given = [each for each in statements(body) if isinstance(each, ast.Return)]
            if len(given) == 1 and given[0] is body[-1] and given[0].value is not None:
                return callee, given[0].value
        return None

    def _acts(self, unit: Unit) -> bool:
        """Return whether a function has calls whose results it does not use: one may make the path that it returns."""
        body = module.flow.body(unit[1]) if (module := self._module_at(unit[0])) else ()
        return any(isinstance(each, ast.Expr) and isinstance(each.value, ast.Call) for each in statements(body))

    def _text_of_member(self, node: ast.Name | ast.Attribute | ast.Subscript, unit: Unit, depth: int) -> Text | None:
        """Return the text of ``path``, ``args.path``, ``config["path"]``; of several candidates, prefer one outside."""
        values = self.candidates(node, unit, depth)
        texts = [(self.text(each, where, depth + 1), sure) for each, where, sure in values]
        one = values[1:] and len({text and posixpath.normpath(text.text) for text, _ in texts}) == 1
        alike = bool(one) and isinstance(node, ast.Name) and self._is_own(node.id, unit)
        found = [text._replace(sure=text.sure and (sure or alike)) for text, sure in texts if text is not None]
        key = member(node)
        if key is None or isinstance(node, ast.Name) or values or re.fullmatch(r"self\.\w+", dotted(node)):
            return max(found, key=lambda each: (is_outside(each.text), each.sure), default=None)
        if key == "value" and isinstance(node, ast.Attribute):  # of absl, what DEFINE_string() gives
            made = [each.node for each in self.candidates(node.value, unit, depth) if isinstance(each.node, ast.Call)]
            key = next((literal(each.args[0]) for each in made if each.args and "DEFINE_" in dotted(each.func)), key)
            node = ast.Attribute(ast.Name("FLAGS"), key or "value")
        if key in self.options:
            parsed = self._is_parsed(node.value, unit, depth + 1)
            # of a data class
            parsed |= dotted(node.value) in ("cfg", "config") and isinstance(self.options[key].node.func, ast.Name)
            if isinstance(node, ast.Attribute) or parsed:
                joined = self.joined.pop(key, None) if isinstance(node, ast.Attribute) else None
                option = (joined and self.text(*joined, depth + 1)) or self.of_option(key, depth + 1)
                self.joined |= {key: joined} if joined else {}
                sure = isinstance(node, ast.Subscript) or (parsed and key not in self.stored)
                return option and option._replace(sure=option.sure and sure)
        for flag, value in typed_options(self.arguments):
            if flag.lstrip("-").replace("-", "_") == key:  # of fire, absl, a data class
                self.by_option = flag
                return Text(value, True)
        if found_there := self.setting(node, unit):
            self.by_setting = True
            return Text(found_there[0], False)
        self.lacks |= OF_SETTINGS.fullmatch(dotted(getattr(node.value, "value", node.value))) is not None
        return None

    def _is_none(self, node: ast.expr, unit: Unit, depth: int) -> bool:
        """Return whether an expression is None in every run."""
        values = self.candidates(node, unit, depth)
        return bool(values) and all(each.sure and is_constant(each.node, None) for each in values)

    def _is_own(self, name: str, unit: Unit) -> bool:
        """Return whether only the name's own function, or the module's top level, assigns to it."""
        flow = module.flow if (module := self._module_at(unit[0])) else None
        given = parameters(flow.functions[unit[1]]) if flow and unit[1] else ()
        return flow is not None and name in flow.assigned(unit[1]) and name not in (*flow.globals, *given)

    def _is_parsed(self, node: ast.expr | None, unit: Unit, depth: int) -> bool:
        """Return whether an expression is what argparse returns, by its name or by what it stands for."""
        module, owner = self._module_at(unit[0]), dotted(node) if node else ""
        if node is None or module is None or depth > _DEEPEST:
            return False
        if owner in SETS["namespaces"] or "parse_args" in f"{module.types.get(owner)} {ast.dump(node)}":
            return True
        if isinstance(node, ast.Call):
            returned = self._returned(node, unit)
            return returned is not None and self._is_parsed(returned[1], returned[0], depth + 1)
        return any(self._is_parsed(each.node, each.unit, depth + 1) for each in self.candidates(node, unit, depth + 1))

    def setting(self, node: ast.expr, unit: Unit) -> tuple[str, str] | None:
        """Return (value, place) of the setting whose dotted key is the longest suffix of an expression's members."""
        names = self.members(node, unit)
        found = (self.settings.get(".".join(names[at:])) for at in range(len(names)))
        is_one = OF_SETTINGS.fullmatch(dotted(getattr(node, "value", node)))  # else another object's, not the code's
        return next((each for each in found if each and (is_one or ".py:" not in each[1])), None)

    def members(self, node: ast.expr | None, unit: Unit, depth: int = 0) -> list[str]:
        """Return ``["data", "path"]`` of ``cfg.data["path"]``, and of ``part["path"]`` after ``part = cfg["data"]``."""
        if found := self._member(node, unit, depth):
            return [*self.members(found[0], unit, depth), found[1]]
        values = self.candidates(node, unit, depth + 1) if isinstance(node, ast.Name) and depth < _DEEPEST else []
        return self.members(values[0].node, values[0].unit, depth + 1) if len(values) == 1 else []

    def _member(self, node: ast.AST | None, unit: Unit, depth: int) -> tuple[ast.expr, str] | None:
        """Return the owner and the key of ``a.key``, ``a["key"]``, ``a[key]`` and ``a.get(key)``."""
        match node:
            case ast.Attribute(owner, key):
                return owner, key
            case ast.Subscript(owner, ast.Constant(int(at))):
                return owner, str(at)
            case ast.Subscript(owner, item) | ast.Call(ast.Attribute(owner, "get"), [item, *_]):
                return (owner, text.text) if (text := self.text(item, unit, depth + 1)) else None
        return None

    def variable(self, node: ast.expr | None, unit: Unit, depth: int = 0) -> str | None:
        """Return the variable of the environment that an expression reads; None for any other."""
        self.looks, self._found = (self.looks, self._found) if depth else (0, {})
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("lower", "upper") and not node.args:
            return self.variable(node.func.value, unit, depth + 1)  # type: ignore[attr-defined]
        if key := variable_key(node):
            return text.text if (text := self.text(key, unit, depth + 1)) and text.sure else None
        values = [each for each in self.candidates(node, unit, depth) if each.sure] if depth < _DEEPEST else []
        return self.variable(values[0].node, values[0].unit, depth + 1) if len(values) == 1 else None

    def candidates(self, node: ast.AST | None, unit: Unit, depth: int) -> list[Binding]:
        """Return what a name, an attribute or an item may stand for."""
        if depth > _DEEPEST:  # also of what is known: a name may stand for itself
            return []
        self._found = self._found if self.looks else {}
        self.looks += 1
        if (key := (node, unit[1])) not in self._found:
            self._found[key] = []  # breaks a cycle
            self._found[key] = self._candidates(node, unit, depth)
        return self._found[key]

    def _candidates(self, node: ast.AST | None, unit: Unit, depth: int) -> list[Binding]:
        module = self._module_at(unit[0])
        if module is None or self.looks > _MOST_LOOKS:
            return []
        if isinstance(node, ast.Name):
            return self._values_of_name(node, unit, module, depth)
        if (found_there := self._member(node, unit, depth)) is None:
            return []
        holder, key = found_there
        if isinstance(node, ast.Attribute):
            path, inner = module.bound.get(dotted(node.value), (unit[0], ""))
            if inner is None:
                found = self.candidates(ast.Name(key), (path, ""), depth + 1)
                return [each._replace(sure=each.sure and key not in self.stored) for each in found]
            owner = self._class(node.value, unit, depth + 1)
            of_data = owner and f"{owner[1]}.__init__" not in owner[0].flow.functions  # a data class
            made = self.candidates(node.value, unit, depth + 1) if of_data else []
            given = [keywords(each.node).get(key) if isinstance(each.node, ast.Call) else None for each in made]
            if any(given):
                return [each._replace(node=value) for each, value in zip(made, given, strict=True)]
            while owner and not (values := owner[0].flow.attributes(owner[1], key)) and depth < _DEEPEST:
                above, depth = owner[0].flow.bases[owner[1]], depth + 1
                owner = self._class(ast.Name(above[0]), (owner[0].path, ""), depth) if above else None
            if owner and values:
                values = owner[0].flow.in_force(values, unit[1], getattr(node, "lineno", 0))
            if owner and len(values) == 1:
                sure = key not in self.stored or dotted(node.value) == "self"
                return [Binding(values[0][1], (owner[0].path, values[0][0]), sure)]
        table, where = self.table(holder, unit, depth + 1)
        items = {literal(at): value for at, value in zip(table.keys, table.values, strict=True)} if table else {}
        if not table or key not in items:
            return []
        sure = f"[{key}]" not in self.stored and all(each.sure for each in self.candidates(holder, unit, depth + 1))
        changes = f"{dotted(holder) or ANY}.update(".encode()
        return [Binding(items[key], where, sure and None not in table.keys and changes not in module.source)]

    def _values_of_name(self, node: ast.Name, unit: Unit, module: Module, depth: int) -> list[Binding]:
        name = node.id
        if (unit, name) in self.looped:
            return [self.looped[unit, name]]
        given = bool(unit[1]) and name in parameters(module.flow.functions[unit[1]])
        top, line = (unit[0], ""), getattr(node, "lineno", 0)
        of_class = module.flow.attributes(module.flow.classes.get(line, ""), name) if unit == top else []
        if own := [value for method, value in of_class if not method and (value.end_lineno or 0) < line]:
            return [Binding(own[-1], unit, len(own) == 1)]
        for where in (unit,) if given else (unit, top):
            written = module.flow.assigned(where[1]).get(name, [])
            several = given or written[1:]
            plain = {id(getattr(each, "value", None)) for each in module.flow.around(unit[1], line)} if several else ()
            may_run = (several and self.may_assign) or (lambda *_: True)
            here = where == unit and line  # what a later line assigns is not there yet
            before = [each for each in written if not here or each is None or (each.end_lineno or 0) < line]
            assigned: list[ast.expr | None] = []
            for each in reversed(before):
                if not _keeps(each, name) and may_run(each, where):
                    assigned.append(each)
                    if here and id(each) in plain:
                        break
            if here and not assigned and not given:
                assigned = [each for each in reversed(written) if not _keeps(each, name) and may_run(each, where)]
            if values := list(dict.fromkeys(reversed(assigned))):
                sure = len(values) == 1 and not (where == top and name in module.flow.globals)
                sure = sure and (not given or id(values[0]) in plain)
                return [Binding(value, where, sure) for value in values]
        if given:
            function = module.flow.functions[unit[1]]
            by_click = any("option" in ast.dump(each) for each in function.decorator_list)
            if unit in self.entries or (name in self.options and by_click):
                return [Binding(ast.Attribute(ast.Name("args"), name), unit, True)]
            passed = [Binding(*each) for each in self.passed(name, unit)]
            return passed or [Binding(default_of(name, function), top, False)]
        for path, inner in (module.bound[each] for each in module.bound if each == name or each[0] == "*"):
            found = self.candidates(ast.Name(name if inner == "*" else inner), (path, ""), depth + 1) if inner else []
            if found:
                return found
        return []

    def _class(self, node: ast.expr | None, unit: Unit, depth: int) -> tuple[Module, str] | None:
        """Return (module, name) of a class of the project, or of an object's class."""
        module = self._module_at(unit[0])
        if module is None or node is None or depth > _DEEPEST:
            return None
        if isinstance(node, ast.Name) and node.id == "self" and "." in unit[1]:
            return module, unit[1].partition(".")[0]
        if isinstance(node, ast.Call):
            return self._class(node.func, unit, depth + 1)
        if isinstance(node, ast.Name):
            path, inner = module.bound.get(node.id, (unit[0], module.types.get(node.id, node.id)))
            other, inner = source_of(self._module_at(path), inner or "", self._module_at)
            if other is not None and inner in other.flow.bases:
                return other, inner
        found = (self._class(each.node, each.unit, depth + 1) for each in self.candidates(node, unit, depth))
        return next(filter(None, found), None)

    def table(self, node: ast.expr | None, unit: Unit, depth: int) -> tuple[ast.Dict | None, Unit]:
        """Return the dictionary that an expression stands for, written as ``{…}`` or ``dict(…)``, and its unit."""
        if isinstance(node, ast.Dict):
            return node, unit
        if isinstance(node, ast.List | ast.Tuple):
            members = [*takewhile(lambda each: not isinstance(each, ast.Starred), node.elts)]
            return ast.Dict([ast.Constant(str(at)) for at in range(len(members))], members), unit
        if isinstance(node, ast.Call) and last_name(node.func) in SETS["mappings"]:
            if node.keywords and not node.args:
                keys: list[ast.expr | None] = [ast.Constant(each.arg) for each in node.keywords]
                return ast.Dict(keys, [each.value for each in node.keywords]), unit
            inside = node.args[0] if node.args else getattr(node.func, "value", None)
            return self.table(inside, unit, depth + 1) if depth < _DEEPEST else (None, unit)
        for value in self.candidates(node, unit, depth):
            table, where = self.table(value.node, value.unit, depth + 1)
            if table is not None and (module := self._module_at(where[0])) is not None:
                rows, name = [*zip(table.keys, table.values, strict=True)], node and last_name(node)
                for each in module.flow.body(where[1]) if name else ():
                    match each:  # an item that is set later
                        case ast.Assign([ast.Subscript(owner, key)], item) if last_name(owner) == name:
                            rows.append((key, item))
                return ast.Dict([key for key, _ in rows], [item for _, item in rows]), where
        return None, unit

    def passed(self, name: str, unit: Unit) -> Iterator[tuple[ast.expr | None, Unit, bool]]:
        """Yield (expression, its unit, whether every run makes the call) for what calls pass to a parameter."""
        module = self._module_at(unit[0])
        assert module is not None, "its function was read"
        function = module.flow.functions[unit[1]]
        names = parameters(function)
        index = names.index(name) - (names[0] in ("self", "cls")) if name in names else 0
        for caller, node, always, tests in self.callers.get(unit, ()) if name in names else ():
            given = keywords(node).get(name) or (node.args[index] if 0 <= index < len(node.args) else None)
            match keywords(node).get(None):
                case ast.Call(func=ast.Name(id="vars" | "asdict"), args=[table]) if given is None:
                    given = ast.copy_location(ast.Attribute(table, name), node)
                case ast.expr() as table if given is None:
                    item = ast.copy_location(ast.Subscript(table, ast.Constant(name)), node)
                    given = item if self.candidates(item, caller, 1) or self.setting(item, caller) else None
            sure = self.likely(caller, tests) if self.likely else always
            sure = sure and caller in self.always and (None not in keywords(node) or isinstance(given, ast.Subscript))
            yield given or default_of(name, function), caller if given else (unit[0], ""), sure

    def note_options(self, unit: Unit, node: ast.AST) -> None:
        """Note options that a node defines: a call of argparse, Click or absl, or a data class that is parsed."""
        if isinstance(node, ast.Call):
            by_wrapper = (literal(next(iter(node.args), None)) or "").startswith("--") and "default" in keywords(node)
            if by_wrapper or last_name(node.func) in ("add", "add_arg", "add_argument", "option"):
                self._note_option(unit, node)
        for name, default in declared(node):
            switch = [ast.keyword("action", ast.Constant("store_true"))] * is_constant(default, False)
            of_file = isinstance(node, ast.Call) and last_name(node.func) == "DEFINE_config_file"  # of ml_collections
            given = [ast.keyword("default", default), *switch, *[ast.keyword("is_config_file", default)] * of_file]
            call = ast.Call(ast.Name("add_argument"), [ast.Constant(f"--{name}")], given)
            self._note_option(unit, ast.copy_location(call, node))

    def _note_option(self, unit: Unit, node: ast.Call) -> None:
        words = [word for word in map(literal, node.args) if word]
        dest = literal(keywords(node).get("dest"))
        longest = next((word for word in words if word.startswith("--")), words[0] if words else "")
        name = dest or longest.lstrip("-").replace("-", "_")
        if words and name:
            known = self.options.setdefault(name, ParserOption(words, unit, node))
            known.again = known.again or (known.node is not node and ast.dump(known.node) != ast.dump(node))

    def given(self, flag: str) -> str:
        """Return the value of an option by its flag, as ``of_option`` finds it; "" for none."""
        found = (self.of_option(name) for name, each in self.options.items() if flag in each.flags)
        return next((each.text for each in found if each), "")

    def of_option(self, name: str, depth: int = 0) -> Text | None:
        """Return the value of an option that was typed, else its default; None if neither is readable."""
        known = self.options[name]
        typed = (flag for flag, _ in typed_options(self.arguments) if flag in known.flags)
        self.by_option = next(typed, max(known.flags, key=len)) if known.flags[0].startswith("-") else None
        self.looks, self._found = (self.looks, self._found) if depth else (0, {})
        if (value := next(self.typed(known, self.arguments), None)) is not None:
            return Text(value, True)
        found = self.text(keywords(known.node).get("default"), known.unit, depth + 1)
        return found and found._replace(sure=found.sure and not known.again and known.flags[0].startswith("-"))

    def typed(self, option: ParserOption, arguments: Sequence[str]) -> Iterator[str]:
        """Yield the values typed for an option: by its name, by a prefix of it, or by its position."""
        flags = [own.replace("_", "-") for own in option.flags]
        for typed, value in ((flag.replace("_", "-"), value) for flag, value in typed_options(arguments)):
            begun = typed.startswith("--") and any(own.startswith(typed) for own in flags)
            others = (own.replace("_", "-") for each in self.options.values() for own in each.flags if begun)
            if typed in flags or (begun and typed not in others):
                yield value
        by_place = [each for each in self.options.values() if each.flags[0][0] != "-" and each.unit == option.unit]
        unclear = any(each.again or "nargs" in keywords(each.node) for each in by_place)
        if (module := self._module_at(option.unit[0])) and not unclear and b"subparsers" not in module.source:
            words = takewhile(lambda word: not word.startswith("-"), arguments)
            yield from (word for each, word in zip(by_place, words, strict=False) if each is option)

    def placeholders(self, used: Set[str]) -> Iterator[str]:
        """Yield ``train.py:90 --project: <your project id>`` for what is used and the user must give."""
        typed = {flag for flag, _ in typed_options(self.arguments)}
        for known in (each for name, each in self.options.items() if name in used):
            module = self._module_at(known.unit[0])
            value = literal(keywords(known.node).get("default")) or ""
            if module and PLACEHOLDER.search(value) and typed.isdisjoint(known.flags):
                yield f"{module.shown}:{known.node.lineno} {max(known.flags, key=len)}: {value}"
        found = ((key, *each) for key, each in self.settings.items() if key in used)
        yield from (f"{where} {key}: {value}" for key, value, where in found if PLACEHOLDER.search(value))


def declared(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield (name, default) of ``flags.DEFINE_string("name", default)``, and of each field of a data class."""
    pairs: list[tuple[str | None, ast.expr | None]] = []
    if isinstance(node, ast.Call) and last_name(node.func).startswith("DEFINE_") and node.args:
        pairs = [(literal(node.args[0]), keywords(node).get("default") or next(iter(node.args[1:]), None))]
    elif isinstance(node, ast.ClassDef) and not {"dataclass", "Tap"}.isdisjoint(
        last_name(getattr(each, "func", each)) for each in (*node.decorator_list, *node.bases)
    ):
        for each in (each for each in node.body if isinstance(each, ast.AnnAssign)):
            default = keywords(each.value).get("default") if isinstance(each.value, ast.Call) else each.value
            pairs.append((last_name(each.target), default))
    elif isinstance(node, FunctionNode):  # typer's default is its Option's first argument
        given = [(name, default_of(name, node)) for name in parameters(node)]
        pairs = [(name, each.args[0] if isinstance(each, ast.Call) and each.args else each) for name, each in given]
    yield from ((name, default) for name, default in pairs if name and default)


def member(node: ast.AST) -> str | None:
    """Return ``device`` of ``args.device`` and ``config["device"]``; None for anything else."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return literal(node.slice) if isinstance(node, ast.Subscript) else None


def is_outside(path: str) -> bool:
    """Return whether a path may lie outside the working directory: ``../a`` or ``/a``, not ``*/a`` or ``/*``."""
    return len(path) > 1 and "\n" not in path and (path.startswith("../") or (path[0] == "/" and path[1] not in "/*"))


def _joined(separator: str, parts: Sequence[Text | None]) -> Text:
    """Join parts in order; an absolute part begins the path anew."""
    texts = [ANY if each is None else each.text for each in parts]
    text = posixpath.join(*texts) if separator else "".join(texts)
    anywhere = bool(separator) and any(each.startswith(ANY) for each in texts[1:])
    anywhere = anywhere or any(each and each.anywhere for each in parts)
    return Text(text, all(each is None or each.sure for each in parts), anywhere)


def _filled(text: Text, places: str, parts: Sequence[Text | None]) -> Text:
    """Fill ``%s`` and ``{}`` with the parts; other placeholders stay unknown."""
    texts = iter([each.text if each else ANY for each in parts])
    filled = re.sub(places, lambda place: (ANY, next(texts, ANY))[place[0] in ("%s", "{}")], text.text)
    return _joined("", [text, *parts])._replace(text=filled)


def _keeps(value: ast.expr | None, name: str) -> bool:
    """Return whether a name is the same path after an assignment: ``root = Path(root)``."""
    args = value.args if isinstance(value, ast.Call) and last_name(value.func) in SETS["of-paths"] else []
    return [dotted(each) for each in args] == [name]


def _above(path: Text, count: int = 1) -> Text:
    return path._replace(text=posixpath.normpath(posixpath.join(path.text, *[".."] * count)))
