"""Recognise what came along with text copied from a page: fences, headings, prompts, a here-document's ends."""

from __future__ import annotations

import re
from pathlib import Path

from seatrial.errors import ConfigError, UsageError
from seatrial.system.text import as_typed

#: What a line is → its form. A page's own comments and its headings with # are comments in every format here.
_FORMS = {
    "a fence of the page": r"(?:```|~~~)[\w{} .:=\"'-]*$",
    "a heading of the page": r"\*\*[^*]+\*\*:?$",
    "the shell command that writes the file": r"(?i:(?:sudo )?(?:cat|tee)\b.*<<-?\s*[\"']?\w+)",
    "the end of a here-document": r"(?:EOF|EOT|EOL)$",
    "a prompt and a command": r"(?:[\w.-]+@[\w.-]+:\S*[$#]|\$|>>>)(?: |$)",
}
_PROMPT = re.compile(r"(?m)^[\w.-]+@[\w.-]+:\S*[$#](?: |$)")


def what_came_along(line: str) -> str | None:
    """Return what a line of a page is that its files do not have, or None."""
    return next((what for what, form in _FORMS.items() if re.match(form, line.strip())), None)


def without_lines(lines: list[int], file: str) -> str:
    """Return the command that deletes lines of a file, counted from 1."""
    return f"sed -i.bak '{';'.join(f'{line}d' for line in lines)}' {file}"


def refuse_copied(
    text: str, path: Path, shown: str, *, shell: bool = False, refusal: type[UsageError] = ConfigError
) -> None:
    """Raise ``refusal`` if a file begins or ends with lines of the page that it was copied from.

    Args:
        shown: the file's name in the sentence.
        shell: it is a shell script, where a here-document is usual, and a prompt is none of its lines.
    """
    found: dict[int, str] = {}
    lines, file = text.split("\n"), as_typed(path)
    for at, line in enumerate(lines, 1):
        if what := what_came_along(line):
            found[at] = what
        elif line.strip() and not line.startswith("#"):
            break
    last = len(text.rstrip().split("\n"))
    if what := what_came_along(lines[last - 1]):
        found.setdefault(last, what)
    if shell and (prompt := _PROMPT.search(text)):
        found[text.count("\n", 0, prompt.start()) + 1] = "a prompt and a command"
    ours = ("the shell command that writes the file", "the end of a here-document") if shell else ()
    found = {at: what for at, what in sorted(found.items()) if what not in ours}
    if not found:
        return
    at, what = next(iter(found.items()))
    run = without_lines([*found], file)
    if what == "a prompt and a command":
        form = r"(>>>|[.]{3}) ?" if lines[at - 1].startswith(">>>") else r"([^ ]*@[^ ]*[$#]|[$]) *"
        run = f"sed -i.bak -n -E 's/^{form}//p' {file}"
    raise refusal(f"{shown}:{at}: {lines[at - 1].strip()[:60]} came along from a page: it is {what}", run=run)
