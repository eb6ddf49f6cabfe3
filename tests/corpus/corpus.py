"""Projects as strangers write them, one trait each, with the outcome that a user would expect.

Each folder has ``project/``, which is copied for every test, and ``expected.toml``:

    trait, command      what is special; the words behind ``seatrial run`` or ``seatrial plan``
    folder, stdin       where in the project it is typed; what is piped in
    [plan] exit         0; says: parts of what is printed; packages, without: names (or name==version) that are
                        installed and that are not; launcher, python
    [run] exit          0; prints: parts of the target's output; says: of seatrial's; leaves: files of the project
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Stranger:
    """One project of the corpus."""

    name: str
    trait: str
    command: str
    plan: dict[str, Any]
    run: dict[str, Any] | None
    folder: str = "."
    stdin: str | None = None

    def copy(self, to: Path) -> Path:
        """A copy of the project in ``to``; the folder in it to start from."""
        made = to / self.name
        shutil.copytree(HERE / self.name / "project", made, symlinks=True)
        return made / self.folder


def read(name: str) -> Stranger:
    found = tomllib.loads((HERE / name / "expected.toml").read_text(encoding="utf-8"))
    return Stranger(name=name, plan=found.pop("plan", {}), run=found.pop("run", None), **found)


NAMES = sorted(path.parent.name for path in HERE.glob("*/expected.toml"))


def installed(plan: dict[str, Any]) -> set[str]:
    """Return pip's requirements in a plan printed as JSON: names, and with a pin also name==version."""
    asked: set[str] = set()
    for file, text in plan["image"]["context_texts"].items():
        if "constraints" in file:
            continue
        for line in text.splitlines():
            if egg := re.search(r"#egg=([\w.-]+)", line):
                asked.add(egg[1].lower())
            elif match := re.match(r"([A-Za-z0-9][\w.-]*)(\[[^]]*\])?\s*(==\s*[^\s;\\]+)?", line):
                name = re.sub(r"[-_.]+", "-", match[1]).lower()
                asked |= {name, name + re.sub(r"\s", "", match[3] or "")}
    return asked
