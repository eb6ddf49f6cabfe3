"""The OpenAPI description of the server."""

from __future__ import annotations

from typing import Any

import seatrial
from seatrial.serve.options import Options
from seatrial.serve.served_model import Description


def document(options: Options, description: Description | None) -> dict[str, Any]:
    """OpenAPI 3.1."""
    return {"openapi": "3.1.0", "info": {"title": options.name, "version": seatrial.__version__}, "paths": {}}
