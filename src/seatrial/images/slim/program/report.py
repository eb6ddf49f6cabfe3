"""Report what was left out, by reason: printed in the build and kept in the image as slim.json."""

from __future__ import annotations

import json
from pathlib import Path


class SlimReport:
    """Sums bytes a reason; names the libraries that were replaced."""

    def __init__(self) -> None:
        self.saved: dict[str, int] = {}
        self.stubs: list[str] = []
        self.kept: dict[str, str] = {}

    @classmethod
    def read(cls, path: Path) -> SlimReport:
        """Return the report of the layer below, to be continued; empty without one."""
        report = cls()
        if path.exists():
            data = json.loads(path.read_text(encoding="utf-8"))
            report.saved, report.stubs, report.kept = data["saved_bytes"], data["stubs"], data["kept"]
        return report

    def add(self, reason: str, size: int) -> None:
        """``size`` bytes are gone for this reason."""
        if not size:
            return
        self.saved[reason] = self.saved.get(reason, 0) + size

    def lines(self) -> list[str]:
        """One line a reason, the largest first."""
        rows = sorted(self.saved.items(), key=lambda row: -row[1])
        lines = [f"slim: {size / 1e6:9.1f} MB  {reason}" for reason, size in rows if size >= 50_000]
        lines += [f"slim: kept {name}: {why}" for name, why in sorted(self.kept.items())]
        return [*lines, f"slim: {sum(self.saved.values()) / 1e6:9.1f} MB in all"]

    def write(self, path: Path, arguments: dict[str, str]) -> None:
        """Return the report as JSON, with the arguments that produced it."""
        data = {"arguments": arguments, "saved_bytes": self.saved, "stubs": self.stubs, "kept": self.kept}
        path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
