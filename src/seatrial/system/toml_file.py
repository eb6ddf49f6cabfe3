"""TOML files of a project, read in bounded time."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from seatrial.errors import ConfigError
from seatrial.system.project_files import read_text
from seatrial.system.typed_path import as_typed

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: tomllib takes about 1 s for one megabyte (3.11, one core of 2025).
MAX_BYTES = 1_000_000

#: Parts of a dotted key; the parser's time grows with their square.
_MOST_PARTS = 32
_PART = r"""(?:(?<![\w-])[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*"""
_LONG_KEY = re.compile(f"(?:{_PART}){{{_MOST_PARTS}}}")


def read_toml(path: Path, *, inside: Path) -> dict[str, Any]:
    """Read the file's table. Raises ConfigError naming the file and, where there is one, the line."""
    return parse_toml(read_text(path, inside=inside, limit_bytes=MAX_BYTES), path)


def parse_toml(text: str, path: Path) -> dict[str, Any]:
    """Parse the text of the file at ``path`` into its table. Raises ConfigError."""
    if long_key := _LONG_KEY.search(text):
        line = text.count("\n", 0, long_key.start()) + 1
        raise _refused(path, f"a key of more than {_MOST_PARTS} parts (at line {line})")
    try:
        table: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _refused(path, str(error)) from None
    except RecursionError:
        raise _refused(path, "nested too deep") from None
    except ValueError:  # an integer of thousands of digits
        raise _refused(path, "a number of thousands of digits") from None
    return table


def _refused(path: Path, problem: str) -> ConfigError:
    return ConfigError(f"{path.name}: {problem}", run=f"${{EDITOR:-vi}} {as_typed(path)}")


@cache
def own_table(path: Path) -> dict[str, Any]:
    """Return the table of a file that is part of this package."""
    return parse_toml(path.read_text("utf-8"), path)


def filled_in(path: Path, key: str, values: Mapping[str, object]) -> dict[str, Any]:
    """Return severity, message and fix of an entry of our own file, each ``{name}`` in them replaced by its value.

    A value of one of these three names stands for the whole text.
    """
    entry, value = own_table(path)[key], lambda match: str(values[match[1]])
    parts = ("severity", "message", "fix")
    return {name: values[name] if name in values else re.sub(r"\{([a-z_]+)\}", value, entry[name]) for name in parts}
