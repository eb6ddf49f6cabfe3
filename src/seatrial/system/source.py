"""Python source of a stranger: its tree in bounded time and memory, or one sentence."""

from __future__ import annotations

import ast
import string
import warnings

from seatrial.system.text import regex

#: A tree takes about 10 µs and 300 bytes for each mark outside of words, such as ``(`` or a line break (3.11).
#: Code has one in seven bytes, so this is 280,000 bytes of it; of base64 one byte in thirty counts.
MOST_MARKS = 40_000
MAX_BYTES = 1_000_000
#: A chain of 200 names and dots: the parser's time for one in an import grows with the square (3.11).
_CHAIN = regex(rb"(?:(?<!\w)\w+[ \t\\\r\n]*\.[ \t\\\r\n]*){200}")

#: Syntax of Python 2 alone, if it is more than a slip. Source: docs.python.org/3/whatsnew/3.0.html.
_PYTHON_2 = regex(
    r"""(?:^|[:;])\s*(?P<statement>print|exec)\s+(?!=)["'\w`%]"""
    r"""|(?:^|[:;])\s*print\s*>>"""
    r"""|^\s*except\s+[\w.]+\s*,\s*\w+\s*:|^\s*except\s*\([^)]*\)\s*,\s*\w+\s*:"""
    r"""|(?:^|[:;])\s*raise\s+[\w.]+\s*,|[\w)\]]\s*<>\s*[\w("']|`[\w.]+`"""
    r"""|(?<![\w."'])\d+[lL]\b|\b[uU][rR]["']|\b(?:def\s+\w+\s*\(|lambda\s*)[^)=:]*\(\s*\w+\s*,"""
)
_MOST_SHOWN = 60
#: IPython's lines for the notebook and for the shell. Source: ipython.readthedocs.io, "Built-in magic commands".
_MAGIC = regex(r"\s*(%%?[A-Za-z]|!\s*[\w./])")
#: Characters of a line that are searched for it.
_MOST_CHARACTERS = 500
#: The parser's message for 0777.
_OCTAL = "leading zeros in decimal integer literals are not permitted"
#: Python 3.14 reads ``except IOError, e:`` as a tuple of two (PEP 758). Nobody names a class by a small letter.
_EXCEPT = regex(rb"(?m)^[ \t]*except[ \t]+(?:[\w.]+|\([^)]*\))[ \t]*,[ \t]*[a-z_]\w*[ \t]*:")

_IN_WORDS = (string.ascii_letters + string.digits + "_ ").encode() + bytes(range(128, 256))


class UnreadableSourceError(Exception):
    """``file.py:line: why``; ``line``, ``text``: the number and the text of the line.

    ``grammar``: it is not Python, or not of this version. ``magic``: a notebook's own line, ``%matplotlib inline`` or
    ``!pip install x``. ``python_2``: it is Python 2. Both as ``file.py:line`` and what stands there show.
    """

    line, text = 1, ""

    def __init__(
        self, message: str, *, grammar: bool = False, python_2: str | None = None, magic: str | None = None
    ) -> None:
        super().__init__(message)
        self.grammar, self.python_2, self.magic = grammar, python_2, magic


def marks(source: bytes) -> int:
    """Count the bytes outside of words and spaces, a measure of how much there is to parse."""
    return len(source.translate(None, _IN_WORDS))


def _short(line: str) -> str:
    text = line.strip()
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def parse_source(source: bytes, name: str) -> ast.Module:
    """Parse source that has at most MOST_MARKS into its tree. Raises UnreadableSourceError."""
    if chain := _CHAIN.search(source):
        line = source.count(b"\n", 0, chain.start()) + 1
        raise UnreadableSourceError(f"{name}:{line}: an expression is nested too deep")
    try:
        tree = _parsed(source, name)
    except SyntaxError as error:
        place, text = f"{name}:{error.lineno or 1}", error.text or ""
        old = len(text) <= _MOST_CHARACTERS and (error.msg.startswith(_OCTAL) or _PYTHON_2.search(text))
        found = UnreadableSourceError(
            f"{place}: {error.msg}: {_short(text)}".removesuffix(": "),
            grammar=True,
            python_2=f"{place} {_short(text)}" if old else None,
            magic=f"{place}: {_short(text)}" if _MAGIC.match(text) else None,
        )
        found.line, found.text = error.lineno or 1, text[:_MOST_CHARACTERS]
        raise found from None
    except ValueError:  # null bytes, before Python 3.12
        raise UnreadableSourceError(f"{name}:1: not Python source", grammar=True) from None
    except (RecursionError, MemoryError):  # MemoryError: the parser's own stack, not the machine's memory
        raise UnreadableSourceError(f"{name}: an expression is nested too deep") from None
    if _EXCEPT.search(source) and (number := _old_except(tree)):
        place, message = f"{name}:{number}", "multiple exception types must be parenthesized"
        shown = _short(source.splitlines()[number - 1].decode("utf-8", "replace"))
        raise UnreadableSourceError(f"{place}: {message}", grammar=True, python_2=f"{place} {shown}")
    return tree


def _parsed(source: bytes, name: str) -> ast.Module:
    """Parse source; rewrite syntax that is too new for this Python. Raises SyntaxError."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # for example about invalid escapes in the script
        try:
            return ast.parse(source, filename=name)
        except SyntaxError:
            from seatrial.system.newer_syntax import in_old_syntax

            older, newest = in_old_syntax(source.decode("utf-8-sig", "replace"))
            if newest is None:
                raise
            return ast.parse(older, filename=name)


def _old_except(tree: ast.Module) -> int | None:
    """Return the line of the first ``except IOError, e:``, or None; older Pythons refuse it themselves."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.ExceptHandler) or not isinstance(node.type, ast.Tuple) or len(node.type.elts) != 2:
            continue
        first, second = node.type.elts
        bare = node.type.col_offset == first.col_offset
        if bare and isinstance(second, ast.Name) and not second.id[0].isupper():
            return node.lineno
    return None
