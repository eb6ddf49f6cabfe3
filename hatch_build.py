"""Build hook: a wheel carries the catalogue of findings as one JSON file, and the manual page."""

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class GeneratedFiles(BuildHookInterface):
    """Generates what a wheel carries and the repository does not: catalog.json and seatrial.1."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        sys.path.insert(0, str(Path(self.root) / "src"))
        from seatrial.cli.manual import manual

        from seatrial.cli import words
        from seatrial.findings.catalogue import COMPILED, catalog_json

        catalog_json()
        build_data["force_include"][COMPILED] = "seatrial/findings/catalog.json"
        page = Path(self.root) / "build" / "seatrial.1"
        page.parent.mkdir(exist_ok=True)
        page.write_text(manual(words.kept()), encoding="utf-8")
        build_data["shared_data"][str(page)] = "share/man/man1/seatrial.1"
