"""Compose Hydra's configuration of a run, as far as its files and the command line show it."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from seatrial.errors import ConfigError
from seatrial.job.reading.modules import is_file, is_folder
from seatrial.system.project_files import parse_yaml, read_text

_CHOICE = re.compile(r"\+{0,2}([\w/]+)(?:@[\w.]*)?=([\w./-]+)")
_MOST_FILES, _MOST_BYTES = 100, 100_000


def composed(folder: Path, name: str, words: Sequence[str], project: Path) -> list[tuple[Path, str]]:
    """Return (file, its text) of each file that is composed; [] without the primary file.

    Format: hydra.cc/docs/advanced/defaults_list.

    Args: name: of the primary file. words: the command line.
    """
    chosen: dict[str, Any] = {match[1]: match[2] for word in words if (match := _CHOICE.fullmatch(word))}
    first = [f"{group}/{option}" for group, option in chosen.items() if is_folder(folder / group)]
    pending, found = [*first, name.removesuffix(".yaml")], dict[Path, str]()
    while pending and len(found) < _MOST_FILES:
        path = pending.pop(0)
        file = folder / f"{path}.yaml"
        if file in found or not is_file(file):
            continue
        try:
            found[file] = read_text(file, inside=project, limit_bytes=_MOST_BYTES)
            table = parse_yaml(found[file], file.name)
        except ConfigError:
            continue
        defaults = table.get("defaults") if isinstance(table, dict) else None
        for item in defaults if isinstance(defaults, list) else ():
            for key, value in item.items() if isinstance(item, dict) else [("", item)]:
                *how, group = str(key).partition("@")[0].split() or [""]
                group = posixpath.normpath(posixpath.join("/", posixpath.dirname(path), group))[1:]
                if "override" in how:
                    chosen.setdefault(group, value)
                options = chosen.get(group, value) if key else value
                options = options if isinstance(options, list) else [options]
                pending += (posixpath.join(group, str(each)).lstrip("/") for each in options)
    return list(found.items()) if folder / f"{name.removesuffix('.yaml')}.yaml" in found else []
