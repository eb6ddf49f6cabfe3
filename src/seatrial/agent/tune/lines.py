"""Lines of JSON that a trial wrote: its reports, and its journal of changed files."""

import json
from typing import Any, Dict, List

#: A longer line is none of a trial's.
_MOST_BYTES = 8 << 20


def read(path: str) -> List[Dict[str, Any]]:
    """The objects in it, without lines that were cut off; none where there is no such file."""
    lines = []
    try:
        with open(path, "rb") as file:
            for line in file:
                try:
                    value = json.loads(line) if len(line) < _MOST_BYTES else None
                except ValueError:
                    continue
                if isinstance(value, dict):
                    lines.append(value)
    except OSError:
        pass
    return lines
