"""Posting JSON to an address that a person named: there, and nowhere that it sends on to."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

POST_TIMEOUT_S = 15.0

#: Between two attempts, where the other side may be back by then.
PAUSES_S = (2.0, 10.0)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Whoever was named is told, and nobody else."""

    def redirect_request(self, *about: Any) -> None:
        return None


def post(url: str, message: Mapping[str, Any]) -> str | None:
    """Post it; what went wrong, or None. Again where the network or the other side fails, and not where it says no."""
    opener = urllib.request.build_opener(_NoRedirect)
    body = json.dumps(message).encode()
    trouble = ""
    for pause_s in (0.0, *PAUSES_S):
        time.sleep(pause_s)
        try:
            request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
            with opener.open(request, timeout=POST_TIMEOUT_S):
                return None
        except urllib.error.HTTPError as error:
            trouble = f"it answered {error.code} {error.reason}"
            if error.code < 500:
                break
        except (OSError, ValueError) as error:  # ValueError: an address that cannot be one
            reason = getattr(error, "reason", None) or error
            trouble = f"it could not be reached: {type(reason).__name__}"
    return trouble
