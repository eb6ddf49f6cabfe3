"""The one door to the terminal: all text that a verb prints is cleaned; the target's own output passes as bytes.

``opened`` stands around a command, so what a library prints, a warning or a traceback, goes through it as well.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO, cast

from seatrial.system.text import visible

if TYPE_CHECKING:
    from rich.console import Console


#: Called once, before the next text or output of a target is printed.
before_printing: list[Callable[[], None]] = []


def printing() -> None:
    """Announce that something is printed, or that another program takes the terminal."""
    while before_printing:
        before_printing.pop()()


class Door:
    """A standard stream. Its text is cleaned; ``buffer`` takes bytes as they are.

    Args:
        stream: where it goes; ``uncleaned`` for those who draw on a terminal themselves.
    """

    def __init__(self, stream: TextIO) -> None:
        self.uncleaned = stream

    def write(self, text: str) -> int:
        """Write text with every character visible that could steer a terminal."""
        printing()
        self.uncleaned.write(visible(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        if name == "buffer":
            printing()
        return getattr(self.uncleaned, name)


class Trimmed(Door):
    """A stream of cleaned text whose lines end with their last letter: tables pad every line to their width."""

    def write(self, text: str) -> int:
        printing()
        self.uncleaned.write(re.sub(r" +(?=\n)", "", text))
        return len(text)


@contextmanager
def opened() -> Iterator[None]:
    """Put the door in front of both standard streams."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = Door(before[0]), Door(before[1])
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def uncleaned(*, stderr: bool = False) -> TextIO:
    """Return a standard stream to draw on: its caller cleans what is not its own."""
    stream = sys.stderr if stderr else sys.stdout
    return stream.uncleaned if isinstance(stream, Door) else stream


def at_words(text: str, console: Console) -> str:
    """Return lines that end between words on a terminal, which breaks them anywhere; further ones are indented."""
    if not console.is_terminal:
        return text
    from textwrap import TextWrapper  # a terminal alone needs it

    wrap = TextWrapper(console.width, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False).fill
    return "\n".join(map(wrap, text.split("\n")))


def console(*, stderr: bool = False, soft_wrap: bool = False) -> Console:
    """Return a console that cleans the text between its own colours. No text is markup."""
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class Clean(Console):
        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                yield segment if segment.control else segment._replace(text=visible(segment.text))

    file = cast("TextIO", Trimmed(uncleaned(stderr=stderr)))
    return Clean(file=file, stderr=stderr, soft_wrap=soft_wrap, markup=False, highlight=False, emoji=False)
