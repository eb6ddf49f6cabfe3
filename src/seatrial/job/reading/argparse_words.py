"""Words of a command line: options with their values, and what a script's argparse parser rejects or lacks."""

from __future__ import annotations

import ast
import difflib
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise, takewhile
from typing import TYPE_CHECKING

from seatrial.job.reading.signs import RANK_OPTIONS, SETS, dotted, is_constant, keywords, last_name, literal
from seatrial.system.text import first_of

if TYPE_CHECKING:
    from seatrial.job.reading.constants import Constants, ParsedCall

_LONG = re.compile(r"--[A-Za-z][\w-]*")
#: What may be done with a parser, and with a part of one: all else may add options.
_ADDS = "add_(argument(_group)?|mutually_exclusive_group|parser|subparsers)"
_METHODS = re.compile(f"{_ADDS}|error|parse_args|set_defaults")
_MAKES = re.compile(rf"(.*\.)?({_ADDS}|\w*ArgumentParser)")
#: Keywords of a parser, and kinds of options, by which words are taken in a way that is not judged here.
_UNUSUAL = {*SETS["unusual"], None}
#: Types whose values are judged: what reads them, and what they take.
_TYPES: dict[str, tuple[Callable[[str], object], str]]
_TYPES = {"int": (int, "an integer"), "float": (float, "a number"), "str": (str, "text")}


class ParserWords:
    """Collect a script's calls of argparse for its ``arguments``; report nothing unless all its options are known."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._words = list(arguments[: arguments.index("--") + 1] if "--" in arguments else arguments)
        self._options: dict[str, tuple[ast.Call, str]] = {}
        self._repeated = set[str]()  # options that several calls add: in branches, or to several parsers
        self._known: set[int] = set()  # nodes that use a parser, or the words, in a way that is understood
        self._parts: set[str] = set()  # names of what is used as a parser, or as a part of one
        self._used: set[str] = set()  # and of all that is used in another way
        self._made: dict[str, set[str]] = {}  # variable → the classes or functions that it was made by
        self._parsers = 0
        self._parses: list[tuple[ParsedCall, str]] = []  # calls of parse_args
        self._open = False
        self.refused: list[tuple[str, str]] = []  # words at which every run ends, each with an edit; after misfits()

    def note(self, call: ParsedCall, place: str, *, own: Callable[[str], bool], taken: set[str]) -> None:
        """Record a call. Args: own: recognises the project's functions. taken: parameters of that which is called."""
        node, certain = call.node, call.always
        called = dotted(node.func)
        last = called.rpartition(".")[2]
        given = keywords(node)
        parents = getattr(given.get("parents", ast.List(elts=[])), "elts", [node])
        if isinstance(node.func, ast.Attribute) and _METHODS.fullmatch(last):
            self._known |= {id(node.func), id(node.func.value)}
            self._parts |= {last_name(node.func.value)} if last != "error" else set()
        self._open |= last.startswith("DEFINE_") or (bool(_MAKES.fullmatch(last)) and id(node) not in self._known)
        if last.endswith("ArgumentParser") or last == "add_parser":
            self._parsers += 1
            self._known |= {id(node.func), *map(id, parents)}
            self._open |= last.endswith("Parser") and called not in ("ArgumentParser", "argparse.ArgumentParser")
            self._open |= not all(own(dotted(getattr(each, "func", each))) for each in parents)
            self._open |= not _UNUSUAL.isdisjoint(given) or len(node.args) > 1
        elif last == "add_subparsers":  # no option takes the word that chooses one
            self._parsers += 1
        elif last == "add_argument":
            flags = [flag for flag in map(literal, node.args) if flag]
            how = [given[name] for name in ("nargs", "action", None) if name in given]
            usual = all(isinstance(each, ast.Constant) and each.value not in _UNUSUAL for each in how)
            self._open |= not usual or not flags or len(flags) < len(node.args)
            self._repeated.update(self._options.keys() & flags)
            for flag in flags:
                self._options.setdefault(flag, (node, place if certain else ""))
        elif last.startswith("parse_") and "arg" in last and not own(called):
            makers = self._made.get(last_name(getattr(node.func, "value", node)), ())
            known = all(each.endswith("ArgumentParser") or own(each) for each in makers)
            self._open |= last != "parse_args" or not known
            self._parses.append((call, place))
            self._known |= {id(part) for each in (*node.args, *given.values()) for part in ast.walk(each)}
        elif own(called):
            passed = (each for each in (*node.args, *given.values()) if last_name(each) in taken)
            self._known |= {id(node.func), *map(id, passed)}
            self._known |= {id(getattr(each, "value", 0)) for each in node.args if _are_all_words(each)}

    def note_use(self, node: ast.AST) -> None:
        """Note what uses a name: a parser in other hands than the project's may have options that are not seen."""
        loads = not isinstance(getattr(node, "ctx", None), (ast.Store, ast.Del))
        self._open |= getattr(node, "name" if loads else "id", None) in _TYPES  # the script's own int
        if isinstance(node, (ast.Name, ast.Attribute)):
            name = node.id if isinstance(node, ast.Name) else node.attr
            if (loads or name == "argv") and id(node) not in self._known:
                self._open |= name in SETS["called"]
                self._used.add(name)
        elif loads and isinstance(node, (ast.Expr, ast.Return, ast.Subscript)):
            self._known.add(id(node.value))
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            self._known.add(id(node.value))
            targets, made = [last_name(each) for each in node.targets], dotted(node.value.func)
            for name in targets:
                self._made.setdefault(name, set()).add(made)
            self._parts.update(targets if _MAKES.fullmatch(made) else ())
        elif isinstance(node, ast.Try):
            self._open |= any("SystemExit" in ast.dump(each.type) for each in node.handlers if each.type)

    def misfits(self, modules: Sequence[str], constants: Constants) -> Iterator[str]:
        """Yield a warning for each word that argparse may reject. Args: modules: names that the script imports."""
        others = not SETS["parsers"].isdisjoint(name.partition(".")[0] for name in modules)
        if self._open or not self._parsers or others or self._used & self._parts:
            return
        parsed, always = None, False
        for (unit, node, certain, tests), place in self._parses:
            for words in (*node.args, *(each.value for each in node.keywords)):
                values = [each.node for each in constants.candidates(words, unit, 0) if each.unit != unit] or [words]
                whole = last_name(words) not in self._used and all(map(_are_all_words, values))
                if not whole and not all(is_constant(each, None) for each in values):
                    return  # it parses other words
            usual = tests and unit in constants.always and constants.likely and constants.likely(unit, tests)
            parsed = parsed or (place if certain or usual else None)
            always = always or (certain and unit in constants.always)
        if parsed is None:
            return
        own = [each for each in self._options if each.startswith("--")]
        typed = [word.partition("=")[0] for word in self._words if word.startswith("-")]
        for flag in filter(_LONG.fullmatch, typed):
            if not any(each.startswith(flag) for each in (*own, "--help", "--version")):
                close = difflib.get_close_matches(flag, own, 1, 0.8)
                named = first_of(dict.fromkeys([*difflib.get_close_matches(flag, own, 2), *own]))
                have = f"did you mean {close[0]}?" if close else f"it has {named or 'none'}"
                yield f"{parsed} rejects {flag}: unknown option; {have}"
        if self._parsers > 1 or "-h" in typed or "--help" in typed:  # the parser in use is unknown
            return
        if (word := next(iter(self._words), "-"))[:1] != "-" and all(each[0] == "-" for each in self._options):
            yield f"{parsed} rejects {word}: it takes no positional arguments; it has {first_of(own) or 'none'}"
        missing: list[tuple[str, str]] = []
        for wrong, place in self._wrong_values():
            if always and place:
                path, _, line = place.rpartition(":")
                self.refused.append((f"{parsed} {wrong}", f"sed -n {line}p {shlex.quote(path)}"))
            else:
                yield f"{parsed} {wrong}"
        stores = {flag for flag, (node, _) in self._options.items() if not keywords(node).keys() & {"action", "nargs"}}
        lone = (flag for flag, value in pairwise((*self._words, "--")) if flag in stores and value in ("--", *own))
        yield from (f"{parsed} rejects {flag}: it needs a value" for flag in lone if flag[0] == "-")
        bare = any(not re.match("-+[a-zA-Z]", each) for at, each in pairwise(("", *self._words)) if at not in stores)
        for node, place in dict.fromkeys(self._options.values()):
            flags = [flag for flag, known in self._options.items() if known[0] is node]
            given = any(flag.startswith(each) for each in typed for flag in flags)
            short = {flag[1] for flag in flags if len(flag) == 2}  # -vd and -dVALUE give -d; the launcher the rank
            given |= any(each[1:2] != "-" and not short.isdisjoint(each) for each in typed) or flags[0] in RANK_OPTIONS
            needed = not bare and flags[0] in stores and flags[0][:1] != "-"
            if place and (needed or is_constant(keywords(node).get("required"), True)) and not given:
                missing.append((place, flags[-1]))
        if missing:
            names = ", ".join(name for _, name in missing)
            fix = " ".join(["seatrial run … --", *(f"{each} " * (each[0] == "-") + "VALUE" for _, each in missing)])
            yield f"{missing[0][0]} requires {names}, which {'are' if missing[1:] else 'is'} not given: {fix}"

    def _wrong_values(self) -> Iterator[tuple[str, str]]:
        """Yield (``rejects --lr x: …``, place if every run adds the option) for values outside of types and choices."""
        words = [*takewhile(lambda word: word != "--", self._words)]
        for at, (flag, sign, attached) in enumerate(word.partition("=") for word in words):
            node, place = self._options.get(flag, (None, "")) if flag[:1] == "-" else (None, "")
            given = keywords(node) if node else {}
            kind, nargs = dotted(given.get("type", ast.Name("str"))), getattr(given.get("nargs"), "value", "?")
            if node is None or kind not in _TYPES or "action" in given or flag in self._repeated:
                continue
            count = 1 if nargs == "?" else nargs if isinstance(nargs, int) else None
            choices = getattr(given.get("choices"), "elts", ())
            listed = [each.value if isinstance(each, ast.Constant) else None for each in choices]
            convert, takes = _TYPES[kind]
            for value in [attached] if sign else takewhile(lambda word: word[:1] != "-", words[at + 1 :][:count]):
                try:
                    if convert(value) in listed or not listed or None in listed:
                        continue
                    takes = f"one of {first_of(listed, 9)}"
                except ValueError:
                    pass
                yield f"rejects {flag} {value}: expected {takes}", place


def _are_all_words(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Subscript) and ast.unparse(node) == "sys.argv[1:]"


def parsed_words(node: ast.Call) -> list[tuple[str, ...] | None]:
    """Return the arguments that a call of ``parse_args`` reads, None for the command line; [] for another call."""
    if last_name(node.func) not in ("parse_args", "parse_known_args"):
        return []
    given = node.args[0] if node.args else keywords(node).get("args")
    words = [literal(each) for each in given.elts] if isinstance(given, ast.List) else [literal(given)]
    is_known = isinstance(given, ast.List) and all(words)
    return [() if literal(given) == "" else tuple(map(str, words)) if is_known else None]


def typed_words(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield (option or key, value) of ``--data a``, ``data.root=a``, gin's ``--b="c.d = 'a'"``; ("", value) of any."""
    name = ""
    for word in arguments:
        option, sign, value = word[:-1].replace(" = '", "=").rpartition("=") if " = '" in word else word.partition("=")
        is_name = word.startswith("-") and not sign
        if not is_name:
            yield (option, value) if sign and "/" not in option else (name, word)
        name = word if is_name else ""


def typed_options(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield (option, value) of ``--output /x`` and ``--output=/x``."""
    for number, word in enumerate(arguments):
        flag, equals, value = word.partition("=")
        if word.startswith("-") and equals:
            yield flag, value
        elif word.startswith("-") and number + 1 < len(arguments):
            yield word, arguments[number + 1]
