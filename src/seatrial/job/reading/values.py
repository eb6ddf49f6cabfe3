"""Values of expressions as a run would have them: with its arguments, its configuration files, and GPUs available."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from seatrial.job.reading.constants import ANY, OF_SETTINGS, Constants, ParserOption, member
from seatrial.job.reading.flow import FunctionNode, parameters
from seatrial.job.reading.parsed_modules import Module, Unit
from seatrial.job.reading.signs import SETS, dotted, keywords, last_name, literal

#: Values that an expression may have; None where that is not known.
Values: TypeAlias = frozenset[Any] | None

_MOST_LOOKS, _DEEPEST, _NEVER = 3_000, 25, 10**9
#: Most expressions evaluated for one script, and most characters of a value.
_MOST_OF_ALL, _LONGEST = 60_000, 300

#: Conversions of a value by the name of their function; a device keeps its name.
_CONVERSIONS: dict[str, Callable[..., Any]] = {"device": lambda x: x, "str": str, "int": int, "bool": bool, "len": len}
_SIGNS = {"Eq": "eq", "NotEq": "ne", "Is": "is_", "IsNot": "is_not", "Gt": "gt", "GtE": "ge", "Lt": "lt", "LtE": "le"}
_SIGNS |= {"Add": "add", "Sub": "sub", "Mult": "mul", "Div": "truediv", "Mod": "mod"}
OPERATORS = {getattr(ast, name): getattr(operator, function) for name, function in _SIGNS.items()}
#: Words of a configuration file or a command line that stand for other values than text.
_WORDS = {"true": True, "false": False, "none": None, "null": None, "~": None}


@dataclass
class Scope:
    """The statements of a unit that run, and what they assign to names: (line, value, whether in every run)."""

    statements: list[ast.stmt] = field(default_factory=list)
    values: set[int] = field(default_factory=set)  # their ids
    names: dict[str, list[tuple[int, ast.expr | None, bool]]] = field(default_factory=dict)


class Evaluation:
    """Evaluates expressions, and which statements of a unit run.

    Args:
        module_at: a file's module. start: the script. arguments: that it is started with.

    Attributes:
        setters: name → the units that set it on an object: ``args.device = …``, ``config["device"] = …``.
        runs: id of a call → the function of the project that it runs.
        outside: attributes set from outside of their class, "[name]" of keys. left: expressions still allowed.
        options, settings, origin: what the last values came from, and the line of the constant that decides.
    """

    def __init__(
        self, module_at: Callable[[Path], Module | None], constants: Constants, start: Path, arguments: Sequence[str]
    ) -> None:
        self.module_at, self.constants, self.start, self.arguments = module_at, constants, start, list(arguments)
        self.setters: dict[str, list[Unit]] = {}
        self.runs: dict[int, Unit] = {}
        self.outside: set[str] = set()
        self.left = _MOST_OF_ALL
        self.begin()

    def begin(self) -> None:
        """Forget all values: other arguments may give others."""
        self._scopes: dict[Unit, Scope] = {}
        self._stored: dict[str, list[tuple[Unit, int, ast.expr, bool]]] = {}
        self._looks = self._depth = 0
        self.options: dict[str, None] = {}
        self.settings: dict[str, None] = {}
        self.origin: tuple[Path, int] | None = None

    def expressions(self, statement: ast.stmt, unit: Unit) -> Iterator[ast.AST]:
        """Yield a statement and the expressions in it that are evaluated; none of inner statements."""
        pending: list[ast.AST] = [statement]
        while pending:
            node = pending.pop()
            yield node
            if isinstance(node, ast.IfExp):
                pending += _taken(_truth(self.values(node.test, unit)), node.body, node.orelse)
            elif not isinstance(node, FunctionNode | ast.ClassDef):
                inner = ast.iter_child_nodes(node)
                pending += [each for each in inner if not isinstance(each, ast.stmt | ast.ExceptHandler)]

    def body(self, unit: Unit) -> Sequence[ast.stmt]:
        """Return all statements of a unit."""
        module = self.module_at(unit[0])
        return module.flow.body(unit[1]) if module is not None else ()

    def scope(self, unit: Unit) -> Scope:
        """Return the statements of a unit that run; while it is read, those up to there."""
        if unit not in self._scopes:
            scope = self._scopes[unit] = Scope()
            self._walk(self.body(unit), unit, scope, sure=True)
        return self._scopes[unit]

    def may_assign(self, value: ast.expr | None, unit: Unit) -> bool:
        """Return whether a statement that assigns a value, or an item of it, may run."""
        return value is None or not self.scope(unit).values.isdisjoint((id(value), id(getattr(value, "value", None))))

    def _walk(self, block: Sequence[ast.stmt], unit: Unit, scope: Scope, *, sure: bool) -> bool:
        """Note the statements that run; return whether the block ends by leaving its function."""
        for node in block:
            if isinstance(node, ast.If):
                truth = _truth(self.values(node.test, unit))
                branches = _taken(truth, node.body, node.orelse)
                ends = [self._walk(each, unit, scope, sure=sure and truth is not None) for each in branches]
                if all(ends):
                    return True
                continue
            scope.statements.append(node)
            scope.values.add(id(getattr(node, "value", None)))
            self._note(node, unit, scope, sure)
            if isinstance(node, ast.Return | ast.Raise):
                return True
            if not isinstance(node, FunctionNode | ast.ClassDef):
                in_colab = isinstance(node, ast.Try) and "google.colab" in ast.unparse(node.body[0])  # in no image
                for inner in (getattr(node, "body", []), getattr(node, "orelse", []), getattr(node, "finalbody", [])):
                    self._walk(inner, unit, scope, sure=sure and not in_colab)
                for part in (*getattr(node, "handlers", []), *getattr(node, "cases", [])):
                    self._walk(part.body, unit, scope, sure=sure and in_colab)
        return False

    def _note(self, node: ast.stmt, unit: Unit, scope: Scope, sure: bool) -> None:
        pairs: list[tuple[ast.expr, ast.expr | None]] = []
        if isinstance(node, ast.Assign):
            for target in node.targets:
                several = target.elts if isinstance(target, ast.Tuple) else [target]
                given = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
                pairs += zip(several, given if len(given) == len(several) else [None] * len(several), strict=True)
        elif isinstance(node, ast.AnnAssign | ast.AugAssign):
            pairs = [(node.target, node.value if isinstance(node, ast.AnnAssign) else None)]
        elif isinstance(node, ast.For):
            pairs = [(each, None) for each in ast.walk(node.target) if isinstance(each, ast.Name)]
        for target, value in pairs:
            if isinstance(target, ast.Name):
                scope.names.setdefault(target.id, []).append((node.lineno, value, sure))
            elif value is not None and (key := member(target)):
                self._stored.setdefault(key, []).append((unit, node.lineno, value, sure))

    def values(self, node: ast.expr | None, unit: Unit) -> Values:
        """Return the values that an expression in ``unit`` may have, where GPUs are available."""
        if not self._depth:
            self._looks = self.constants.looks = 0
        if node is None or self._depth > _DEEPEST or self._looks > _MOST_LOOKS or self.left <= 0:
            return None
        self._depth += 1
        self._looks += 1
        self.left -= 1
        try:
            values = self._evaluated(node, unit)
            return values if values is not None and all(map(_is_short, values)) else None
        except (TypeError, ValueError, OverflowError):
            return None
        finally:
            self._depth -= 1

    def truth(self, node: ast.expr, unit: Unit) -> bool | None:
        """Return whether a condition holds; None where that is not known."""
        return _truth(self.values(node, unit))

    def _evaluated(self, node: ast.expr, unit: Unit) -> Values:
        match node:
            case ast.Constant(value=value):
                if value is False or (self.origin is None and isinstance(value, str)):
                    self.origin = unit[0], getattr(node, "lineno", 1)
                return frozenset([value])
            case ast.UnaryOp(op=ast.Not() | ast.USub() as sign, operand=inner):
                values = self.values(inner, unit)
                return values and frozenset(not each if isinstance(sign, ast.Not) else -each for each in values)
            case ast.BoolOp(op=kind, values=parts):
                each = [self.values(part, unit) for part in parts]
                truths, ends = [_truth(values) for values in each], isinstance(kind, ast.Or)
                if ends in truths:
                    first = truths.index(ends)
                    return frozenset([ends]) if None in truths[:first] else each[first]
                return None if None in truths else each[-1]
            case ast.Compare(left=left, ops=[kind], comparators=[right]) if type(kind) in OPERATORS:
                one, other = self.values(left, unit), self.values(right, unit)
                compare = OPERATORS[type(kind)]
                return None if one is None or other is None else frozenset(compare(a, b) for a in one for b in other)
            case ast.Compare(left, [ast.In() | ast.NotIn() as kind], [ast.List(parts) | ast.Tuple(parts)]) if parts:
                either = ast.BoolOp(ast.Or(), [ast.Compare(left, [ast.Eq()], [each]) for each in parts])
                return self.values(either if isinstance(kind, ast.In) else ast.UnaryOp(ast.Not(), either), unit)
            case ast.Compare(left, [ast.In() | ast.NotIn() as kind], [right]):  # text in text
                sides: list[Any] = [self.values(each, unit) or [0] for each in (left, right)]
                lists = (each for each in self.constants.options.values() if "nargs" in keywords(each.node))
                are_texts = all(isinstance(each, str) and not {ANY, "["} & {*each} for side in sides for each in side)
                several = re.search(r"(?<!\S)-\S* [^-]\S* [^-]", " ".join(self.arguments))  # words of one option
                if are_texts and not (several or any(map(self.typed, lists))):
                    return frozenset((a in b) is isinstance(kind, ast.In) for a in sides[0] for b in sides[1])
            case ast.IfExp():
                taken = _taken(_truth(self.values(node.test, unit)), node.body, node.orelse)
                return _union([self.values(each, unit) for each in taken])
            case ast.JoinedStr():
                inside = [each.value if isinstance(each, ast.FormattedValue) else each for each in node.values]
                return _text([self.values(each, unit) for each in inside])
            case ast.BinOp(op=ast.Add()):
                return _text([self.values(node.left, unit), self.values(node.right, unit)])
            case ast.BinOp(op=ast.Mod(), left=ast.Constant(value=str(text))):
                return _text([frozenset([text.partition("%")[0]]), self.values(node.right, unit)])
            case ast.List(elts=inner) | ast.Tuple(elts=inner) | ast.Dict(values=inner) if inner:  # of a dict its values
                known = [str(*values) for each in inner if (values := self.values(each, unit)) and len(values) == 1]
                return frozenset([f"[{','.join(dict.fromkeys(known))}]"]) if len(known) == len(inner) else None
            case ast.ListComp(generators=[ast.comprehension(iter=text)]):
                return self.values(text, unit)
            case ast.Call(func=ast.Attribute(attr="split", value=text), args=[ast.Constant(value=",")]):
                found = self.values(text, unit)
                return found and frozenset(f"[{each}]" for each in found)
            case ast.Call():
                return self._of_call(node, unit)
            case ast.Name(id=name):
                return self._of_name(name, unit, node.lineno)
            case ast.Attribute() | ast.Subscript():
                return self._of_member(node, unit)
        return None

    def _of_call(self, node: ast.Call, unit: Unit) -> Values:
        name, last = dotted(node.func), last_name(node.func) or getattr(node.func, "attr", "")
        if last in ("is_available", "is_built", "is_gpu_available", "is_built_with_cuda"):
            return frozenset([re.search("mps|xpu|npu|hpu", name) is None])
        first = self.values(node.args[0], unit) if node.args else None
        if last in _CONVERSIONS and node.args:
            if last == "device" and len(node.args) == 2:
                return _text([first, frozenset([":"]), self.values(node.args[1], unit)])
            return None if first is None else frozenset(_CONVERSIONS[last](each) for each in first)
        if isinstance(node.func, ast.Attribute) and last == "format":
            text = self.values(node.func.value, unit)
            return None if text is None else _text([frozenset([str(next(iter(text))).partition("{")[0]]), first])
        place = {"get": 0, "getattr": 1}.get(last, len(node.args))
        if place < len(node.args) and "environ" not in name and (key := literal(node.args[place])) is not None:
            table = node.func.value if isinstance(node.func, ast.Attribute) else node.args[0]
            known = self._named(ast.copy_location(ast.Subscript(table, node.args[place]), node), key, unit)
            return known or (self.values(node.args[-1], unit) if len(node.args) > place + 1 else None)
        callee = self.runs.get(id(node))
        if callee is None or not callee[1] or callee[1].endswith("__init__"):
            return None
        given = [each.value for each in self.scope(callee).statements if isinstance(each, ast.Return)]
        return _union([self.values(each, callee) for each in given]) if given else None

    def _of_name(self, name: str, unit: Unit, line: int = _NEVER) -> Values:
        module = self.module_at(unit[0])
        if module is None:
            return None
        if name == "__name__":
            return frozenset(["__main__" if unit[0] == self.start else module.shown])
        for scope, before in ((unit, line), ((unit[0], ""), _NEVER if unit[1] else line)):
            entries = [each[1:] for each in self.scope(scope).names.get(name, ()) if each[0] < before]
            if not scope[1] and name in module.flow.globals:  # functions set it, too
                return None
            known = [self.values(value, scope) for value in _last(entries)]
            is_given = scope[1] and name in parameters(module.flow.functions[scope[1]])
            if any(sure for _, sure in entries) or (entries and not is_given):
                return _union(known)
            if is_given:
                found = [self.values(each, where) for each, where, _ in self.constants.passed(name, scope)]
                given = _union(found) if found else self.of_option(name) if name in self.constants.options else None
                return _union([given, *known])
        path, inner = module.bound.get(name, (unit[0], None))
        return self._of_name(inner, (path, "")) if inner and self._depth < _DEEPEST else None

    def _of_member(self, node: ast.Attribute | ast.Subscript, unit: Unit) -> Values:
        """Return the values of ``args.cuda``, ``self.device``, ``config["device"]``, ``settings.DEVICE``."""
        key, module = member(node), self.module_at(unit[0])
        if key is None or module is None:
            return None
        owner = node.value.id if isinstance(node.value, ast.Name) else ""
        path, inner = module.bound.get(owner, (unit[0], owner))
        if isinstance(node, ast.Attribute):
            if inner is None and key not in self.setters:
                return self._of_name(key, (path, ""))
            kind = unit[1].partition(".")[0] if owner == "self" else module.types.get(owner, owner)
            if kind == owner and inner and (source := self.module_at(path)):  # a class, perhaps of another module
                kind, module = inner, source
            set_there = module.flow.attributes(kind, key) if kind else []
            if set_there or owner == "self":
                found = [self.values(value, (module.path, where)) for where, value in set_there] or [None]
                return _union([*found, *([self._named(node, key, unit, _NEVER)] if key in self.outside else [])])
        unclear = isinstance(node, ast.Attribute) or key in self.setters or f"{owner}.update(".encode() in module.source
        if not {key, f"[{key}]"} & self.outside and not (owner and unclear):
            known = self.constants.candidates(node, unit, 1)
            if known and all(each.sure for each in known):
                return _union([self.values(each.node, each.unit) for each in known])
        return self._named(node, key, unit)

    def _named(self, node: ast.Attribute | ast.Subscript, key: str, unit: Unit, line: int = 0) -> Values:
        """Return what is known under a name: as any object has it set, an option, a setting of a file.

        An object without a parser has the file's.
        """
        line, setting = line or node.lineno, self.constants.setting(node, unit)
        parsed = last_name(node.value) in SETS["namespaces"]
        of_file = None if setting is None or setting[0] == "None" else frozenset([_read(setting[0])])  # YAML's is text
        is_option = key in self.constants.options and (parsed or not setting)
        for setter in self.setters.get(key, ()):
            self.scope(setter)
        stored = [each for each in self._stored.get(key, ()) if each[1] < line or each[0] != unit]
        of_settings = setting and OF_SETTINGS.fullmatch(dotted(node.value)) and f"[{key}]" not in self.outside
        typed = of_settings and setting and ":" not in setting[1]  # yacs' pair
        if stored and not (typed or ((parsed if is_option else of_settings) and key not in self.outside)):
            by_unit: dict[Unit, list[tuple[ast.expr, bool]]] = {}  # which of them comes last is not known
            for where, _, value, sure in stored:
                by_unit.setdefault(where, []).append((value, sure))
            found = [self.values(value, where) for where, entries in by_unit.items() for value in _last(entries)]
            if any(each[3] for each in stored):
                return _union(found)
            if not (is_option or setting):  # one value alone, and under a condition: the object's default is unknown
                return None if len(set(found)) == 1 and key not in self.outside else _union(found)
            return _union([*found, self.of_option(key) if is_option else of_file])
        if setting and not is_option:
            self.settings.setdefault(f"{setting[1]} sets {key} to {setting[0]}")
        return self.of_option(key) if is_option else of_file

    def of_option(self, name: str) -> Values:
        """Return the values of an option, as it is typed or by default."""
        option = self.constants.options[name]
        self.options.setdefault(name)
        given = keywords(option.node)
        action, typed = literal(given.get("action", ast.Constant("store"))), self.typed(option)
        default = self.values(given["default"], option.unit) if "default" in given else frozenset([None])
        if (option.again and not typed) or action not in ("store", "store_true", "store_false"):
            return None
        value = next(self.constants.typed(option, self.arguments), None)
        if action != "store" and value and isinstance(read := _read(value), bool):  # of absl, a data class
            return frozenset([read])
        if action != "store":
            off = action == "store_false"
            return frozenset([not off]) if typed else default if "default" in given else frozenset([off])
        if "is_flag" in given and typed:
            return frozenset([True])
        kind = (last_name(given["type"]) or "lambda") if "type" in given else ""
        if value is not None:
            read = {"str": str, "bool": bool}.get(kind, _read)(value)  # bool("False") is true
            choices = [literal(each) for each in getattr(given.get("choices"), "elts", ())]
            taken = type(read) is int if kind == "int" else kind in ("", "str", "bool", "device")
            is_own = not taken and kind != "int" and not isinstance(read, str)  # a function takes what it likes
            return frozenset([read]) if (taken or is_own) and (value in choices or not any(choices)) else None
        return default if option.flags[0][0] == "-" or "default" in given else None  # argparse converts a text alone

    def typed(self, option: ParserOption) -> bool:
        """Return whether the arguments have the option."""
        return any(is_flag(word.partition("=")[0], option) for word in self.arguments if word.startswith("-"))


def is_flag(word: str, option: ParserOption) -> bool:
    """Return whether a word names an option; argparse takes the beginning of a long one."""
    return any(word == flag or (word[:2] == "--" and word[2:] and flag.startswith(word)) for flag in option.flags)


def _is_short(value: object) -> bool:
    """Return False for what names no device: a huge number, a long text, or one with control characters."""
    is_huge = isinstance(value, int) and abs(value) >= _NEVER
    return not is_huge and not (isinstance(value, str) and (len(value) > _LONGEST or not value.isprintable()))


def _truth(values: Values) -> bool | None:
    found = {bool(each) for each in values or ()}
    return found.pop() if len(found) == 1 else None


def _taken(truth: bool | None, body: Any, orelse: Any) -> list[Any]:
    """Return the branches that may run."""
    return [each for each, runs in ((body, True), (orelse, False)) if truth in (None, runs)]


def _union(found: Sequence[Values]) -> Values:
    known = [each for each in found if each is not None]
    return frozenset().union(*known) if len(known) == len(found) else None


def _last(entries: Sequence[tuple[Any, bool]]) -> list[Any]:
    """Return the values that may hold after assignments of (value, whether it runs in every run)."""
    kept: list[Any] = []
    for value, sure in entries:
        kept = [value] if sure else [*kept, value]
    return kept


def _text(parts: Sequence[Values]) -> Values:
    """Join texts, with ``*`` for each unknown one; None if all are unknown."""
    if not any(parts):
        return None
    return frozenset(["".join(str(next(iter(each))) if each and len(each) == 1 else ANY for each in parts)])


def _read(value: str) -> object:
    """Read a number, a truth value or None; return other text as it is."""
    return _WORDS.get(value.lower(), int(value) if re.fullmatch(r"-?\d{1,9}", value) else value)
