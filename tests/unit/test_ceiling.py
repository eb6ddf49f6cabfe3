"""The source stays below a ceiling, which each landing lowers to where it stands; docstrings begin with verbs."""

from __future__ import annotations

import ast
import re
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"

#: Lines and files of .py, .cu and .cuh under src.
LINES, FILES = 96316, 505

#: First words of docstrings that describe a result instead of an act, and how many functions may keep one: those of
#: programs whose bytes decide the digest of an image, and help texts.
NO_VERB = re.compile(
    "(A|All|An|As|At|Before|Both|By|Each|Every|For|From|How|If|In|It|Its|None|No|Not|Of|On|One|Same|Several|Some|Such|"
    "That|The|There|These|They|This|Those|To|True|Until|What|When|Where|Whether|With|Within|Without)\\b"
)
KEPT = 21


def test_source_is_below_the_ceiling() -> None:
    files = [path for path in SOURCE.rglob("*") if path.suffix in (".py", ".cu", ".cuh")]
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)
    assert len(files) <= FILES and lines <= LINES, f"{lines} lines in {len(files)} files: delete before you add"


def test_docstrings_begin_with_a_verb() -> None:
    found = [
        f"{path.relative_to(SOURCE)}:{node.lineno} {text.splitlines()[0]}"
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and NO_VERB.match(text := (ast.get_docstring(node) or "").strip())
    ]
    assert len(found) <= KEPT, "\n".join(found)
