"""Build hook: a wheel carries the catalogue of findings as one JSON file in place of its TOML sources."""

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CatalogHook(BuildHookInterface):
    """Compiles the catalogue and puts it into the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        sys.path.insert(0, str(Path(self.root) / "src"))
        from seatrial.findings.catalogue import COMPILED, catalog_json

        catalog_json()
        build_data["force_include"][COMPILED] = "seatrial/findings/catalog.json"
