"""Logins that their own programs have left on this machine, for secrets that the environment does not have."""

from __future__ import annotations

import netrc
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

WANDB_KEY, HUB_TOKEN = "WANDB_API_KEY", "HF_TOKEN"

#: A token is a line; a larger file is something else.
_MAX_BYTES = 1 << 16


def login(name: str, env: Mapping[str, str]) -> tuple[str, Path] | None:
    """Return (value, file) of a secret by the name of its variable; None where no login is.

    Sources: docs.wandb.ai/models/ref/cli/wandb-login; huggingface.co/docs/huggingface_hub/package_reference/
    environment_variables, HF_HOME and HF_TOKEN_PATH.
    """
    home = Path(env.get("HOME") or "/nonexistent")
    try:
        if name == WANDB_KEY:
            file = Path(env.get("NETRC") or home / ".netrc")
            if not 0 < file.stat().st_size < _MAX_BYTES:
                return None
            server = urlsplit(env.get("WANDB_BASE_URL", "")).hostname or "api.wandb.ai"
            entry = netrc.netrc(file).hosts.get(server)  # not its "default", which is another server's
            return (entry[2], file) if entry and entry[2] else None
        if name == HUB_TOKEN:
            cache = Path(env.get("HF_HOME") or Path(env.get("XDG_CACHE_HOME") or home / ".cache") / "huggingface")
            file = Path(env.get("HF_TOKEN_PATH") or cache / "token")
            token = file.read_text().strip() if file.stat().st_size < _MAX_BYTES else ""
            return (token, file) if token and token.isprintable() else None
    except (OSError, ValueError, netrc.NetrcParseError):  # another's file, a folder, no text
        pass
    return None
