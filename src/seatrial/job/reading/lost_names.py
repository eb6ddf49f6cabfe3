"""Find names that packages removed, and the release that removed them."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

#: Module → the package that decides about its names, where their names differ; torchaudio's releases are torch's, and
#: TensorFlow decides about Keras.
_PACKAGES = {"sklearn": "scikit-learn", "torchaudio": "torch", "keras": "tensorflow"}


class Lost(NamedTuple):
    """Hold a removed name's package, the release that a bound excludes, and a release without the name."""

    package: str
    before: str
    since: str


def lost(name: str) -> Lost | None:
    """Look up a removed dotted name or a parent of it; None if the package still has it or is unknown."""
    module, _, inside = name.partition(".")
    return next((row for names, row in _rows().get(module, ()) if re.match(names, inside)), None) if inside else None


@lru_cache(maxsize=1)
def _rows() -> dict[str, list[tuple[str, Lost]]]:
    """Return module → its removed names as one expression, which is compiled when it is asked, and what is known."""
    table = json.loads(Path(__file__).with_suffix(".json").read_text())
    return {
        module: [
            (
                rf"(?:{'|'.join(names.split())})(?:\.|$)",
                Lost(_PACKAGES.get(module, module.replace("_", "-")), *key.split()),
            )
            for key, names in rows.items()
        ]
        for module, rows in table.items()
        if module != "source"
    }
