"""Words on the command line that argparse ends at: what a script's parser lacks, requires, or does not admit."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Callable, Iterator, Sequence

from seatrial.job.reading.signs import dotted, is_constant, keywords, last_name, literal

_LONG = re.compile(r"--[A-Za-z][\w-]*")
_MOST_NAMED = 5
#: They read the words in their own way, or add options.
_OTHER_PARSERS = {"configargparse", "jsonargparse", "simple_parsing", "tap", "typer"}


class ParserWords:
    """Collects a reading's calls of argparse; silent unless every option that the script may have is seen.

    Args:
        arguments: that the script is started with.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        self._words = list(arguments[: arguments.index("--")] if "--" in arguments else arguments)
        self._options: dict[str, tuple[ast.Call, str]] = {}
        self._parsers = 0
        self._parsed: str | None = None
        self._open = False

    def note(self, node: ast.Call, place: str, made: str, *, certain: bool, own: Callable[[str], bool]) -> None:
        """Note a call.

        Args:
            made: class or function whose result the call's receiver is; "" if that is unknown.
            own: whether the project has a function of this name.
        """
        called = dotted(node.func)
        owner, _, last = called.rpartition(".")
        given = keywords(node)
        parents = given.get("parents", ast.List(elts=[]))
        if last.endswith("ArgumentParser") or last == "add_parser":
            self._parsers += 1
            self._open |= last.endswith("Parser") and called not in ("ArgumentParser", "argparse.ArgumentParser")
            self._open |= not all(own(dotted(getattr(each, "func", each))) for each in getattr(parents, "elts", [node]))
        elif last == "add_argument":
            flags = [flag for flag in map(literal, node.args) if flag is not None]
            rest = dotted(given.get("nargs", node)).endswith("REMAINDER")
            self._open |= rest or not flags or len(flags) < len(node.args)
            for flag in flags if flags and flags[0].startswith("-") else ():
                self._options.setdefault(flag, (node, place))
            if dotted(given.get("action", node)).endswith("BooleanOptionalAction"):
                self._options |= {f"--no-{flag.lstrip('-')}": (node, place) for flag in flags}
        elif last.startswith("parse_") and "arg" in last:
            known = not made or made.endswith("ArgumentParser") or own(made)
            self._open |= last != "parse_args" or bool(node.args or node.keywords) or not known
            self._parsed = self._parsed or (place if certain else None)
        elif owner == "sys.argv" or (not own(called) and any(map(_is_parser, [*node.args, *given.values()]))):
            self._open = True

    def note_change(self, node: ast.AST) -> None:
        """Note an assignment to ``sys.argv``, or to a part of it."""
        target = node.value if isinstance(node, ast.Subscript) else node
        self._open |= dotted(target) == "sys.argv" and not isinstance(getattr(node, "ctx", None), ast.Load)

    def misfits(self, modules: Sequence[str]) -> Iterator[str]:
        """Yield a sentence for each word that ends the script. Args: modules: names that it imports."""
        if self._open or self._parsed is None or not self._parsers or not _OTHER_PARSERS.isdisjoint(modules):
            return
        own = [each for each in self._options if each.startswith("--")]
        typed = {word.partition("=")[0] for word in self._words if word.startswith("-")}
        for word in (each for each in self._words if _LONG.fullmatch(each.partition("=")[0])):
            flag = word.partition("=")[0]
            if not any(each.startswith(flag) for each in (*own, "--help", "--version")):
                closest = difflib.get_close_matches(flag, own, 2) or own[:_MOST_NAMED]
                have = f"it has {', '.join(closest)}" if closest else "it has none"
                yield f"{self._parsed} ends the script at {flag}, which is none of its options; {have}"
        if self._parsers > 1:  # which of them is used is not known
            return
        for node, place in dict.fromkeys(self._options.values()):
            flags = [flag for flag, known in self._options.items() if known[0] is node]
            given = any(flag.startswith(each) for each in typed for flag in flags)
            if is_constant(keywords(node).get("required"), True) and not given:
                yield f"{place} requires {flags[-1]}, which is not given: the script ends there"


def _is_parser(node: ast.expr) -> bool:
    return last_name(node).lower().endswith(("parser", "argv"))
