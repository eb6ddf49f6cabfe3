"""List what a reader of a tutorial can type, copy, paste, tick off or answer: the items that need a case each.

An item's ID is ``DOCUMENT.HEADING.ORDINAL``: the number that the file's name begins with, the heading's place in the
document and the item's place below that heading. Its digest distinguishes an edited item from the one that the case was
written for; no text of the documents is kept here.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

#: Languages of fences whose commands are items one by one.
SHELL = ("bash", "shell", "sh", "console")

#: Headings whose numbered lines are exercises or questions; other numbered lists are prose.
TASKS = re.compile(r"(?<!learning )goals$|challenges$|questions$|exercise$|requirements$", re.IGNORECASE)

#: A shell's prompt in a transcript, behind which a command is; lines without one are output there.
PROMPT = re.compile(r"^\w+@[\w.-]+:[^\s$#]*[$#] ?")

#: What programs print when they fail: quoted in a heading or a bold line, raised, or printed as a warning.
QUOTED = re.compile(r'^(?:#+ .*|\*\*)"([^"]+)"')
RAISED = re.compile(r'raise \w+\(f?"([^"]+)"|print\("(WARNING[^"]+)"\)')


@dataclass(frozen=True)
class Item:
    """One thing to cover.

    Attributes:
        kind: ``block`` (any fenced block but a shell's), ``command``, ``message``, ``row`` of a table, ``tick`` of a
            checklist, ``task`` (an exercise, goal or question).
        language: the fence's, or "".
        text: as written, without its marker.
    """

    id: str
    kind: str
    language: str
    text: str

    @property
    def digest(self) -> str:
        """6 hexadecimal digits that ignore the white space around lines."""
        plain = "\n".join(line.strip() for line in self.text.strip().splitlines())
        return hashlib.sha256(f"{self.kind}\0{plain}".encode()).hexdigest()[:6]


def read(path: Path) -> list[Item]:
    """The items of one document, in its order."""
    items: list[Item] = []
    document = path.name.partition("-")[0]
    place, ordinal = 0, 0
    for heading, kind, language, text in _parts(path.read_text(encoding="utf-8")):
        ordinal = ordinal + 1 if heading == place else 1
        place = heading
        items.append(Item(f"{document}.{place}.{ordinal}", kind, language, text))
    return items


def _parts(text: str) -> Iterator[tuple[int, str, str, str]]:
    """Number of the heading, and kind, language and text of each item."""
    lines = iter(text.splitlines())
    heading, tasks, plain = 0, False, ""
    for line in lines:
        before, plain = plain, line.strip()
        if fence := re.match(r"```(\w*)$", plain):
            body = []
            for inner in lines:
                if inner.strip() == "```":
                    break
                body.append(inner)
            yield from ((heading, *part) for part in _block(fence[1], body))
        elif plain.startswith("#"):
            heading, tasks = heading + 1, bool(TASKS.search(plain))
        elif plain.startswith("|") and before.startswith("|") and not re.match(r"\|[\s:|-]+\|$", plain):
            yield heading, "row", "", plain
        elif tick := re.match(r"- \[.\] (.+)", plain):
            yield heading, "tick", "", tick[1]
        elif todo := re.match(r"\*\*TODO: (.+)\*\*", plain):
            yield heading, "task", "", todo[1]
        elif tasks and (task := re.match(r"(?:\d+\.|-) (.+)", plain)):
            yield heading, "task", "", task[1]
        if quoted := QUOTED.match(plain):
            yield heading, "message", "", quoted[1]


def _block(language: str, body: list[str]) -> Iterator[tuple[str, str, str]]:
    text = "\n".join(body)
    if language in SHELL:
        yield from (("command", language, command) for command in commands(body))
    else:
        yield "message" if re.match(r"\w+Error: ", text) else "block", language, text
    for raised in RAISED.finditer(text):
        yield "message", "", raised[1] or raised[2]


def commands(body: list[str]) -> Iterator[str]:
    """The commands of a shell block, with their here-documents and continued lines."""
    transcript = any(PROMPT.match(line) for line in body)
    lines = iter(body)
    for line in lines:
        if transcript and not PROMPT.match(line):
            continue
        command = PROMPT.sub("", line).rstrip()
        if not command.strip() or command.lstrip().startswith("#"):
            continue
        while not _complete(command):
            more = next(lines, None)
            if more is None:
                break
            command += "\n" + more
        yield command


def _complete(command: str) -> bool:
    """Return whether a shell would run the lines so far instead of waiting for more."""
    if here := re.search(r"<<\s*'?(\w+)'?", command):
        return command.splitlines()[-1] == here[1] and "\n" in command
    bare = re.sub(r"'[^']*'", "", re.sub(r"(?m)\s# .*$", "", command), flags=re.DOTALL)
    if "'" in bare or re.sub(r'\\"', "", bare).count('"') % 2 or command.endswith("\\"):
        return False
    loops = len(re.findall(r"(?:^|[\n;]\s*)(?:for|while)\b", bare)), len(re.findall(r"(?:^|[\n;]\s*)done\b", bare))
    return loops[0] == loops[1]


def contents(item: Item) -> str:
    """The file that an item has: its text, or what its here-document writes."""
    lines = item.text.splitlines()
    return "\n".join(lines[1:-1] if "<<" in lines[0] else lines) + "\n"
