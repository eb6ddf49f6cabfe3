"""Python source of a stranger: its tree in bounded time and memory, or one sentence."""

from __future__ import annotations

import ast
import re
import string
import warnings

#: A tree takes about 10 µs and 300 bytes for each mark that is no part of a word, such as ``(`` or a line break (3.11).
#: Code has one in seven bytes, so this is 280,000 bytes of it; of base64 one byte in thirty counts.
MOST_MARKS = 40_000
MAX_BYTES = 1_000_000

#: A chain of so many names and dots: the parser's time for one in an import grows with the square (3.11).
_CHAIN = re.compile(rb"(?:(?<!\w)\w+[ \t\\\r\n]*\.[ \t\\\r\n]*){200}")

_IN_WORDS = (string.ascii_letters + string.digits + "_ ").encode() + bytes(range(128, 256))


class UnreadableSourceError(Exception):
    """``file.py:line: why``.

    Attributes:
        grammar: it is no Python, or none of the version that this is.
    """

    def __init__(self, message: str, *, grammar: bool = False) -> None:
        super().__init__(message)
        self.grammar = grammar


def marks(source: bytes) -> int:
    """How much there is to parse, known before it is."""
    return len(source.translate(None, _IN_WORDS))


def parse_source(source: bytes, name: str) -> ast.Module:
    """The tree of source that has at most MOST_MARKS. Raises UnreadableSourceError."""
    if chain := _CHAIN.search(source):
        line = source.count(b"\n", 0, chain.start()) + 1
        raise UnreadableSourceError(f"{name}:{line}: an expression is nested too deep")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # e.g. of invalid escapes: the script's own affair
            return ast.parse(source, filename=name)
    except SyntaxError as error:
        raise UnreadableSourceError(f"{name}:{error.lineno or 1}: {error.msg}", grammar=True) from None
    except ValueError:  # null bytes, before Python 3.12
        raise UnreadableSourceError(f"{name}:1: not Python source", grammar=True) from None
    except (RecursionError, MemoryError):  # MemoryError: the parser's own stack, not the machine's memory
        raise UnreadableSourceError(f"{name}: an expression is nested too deep") from None
