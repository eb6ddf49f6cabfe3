"""Free ports and installed packages of this machine. Import as ``from here import free_ports``."""

from __future__ import annotations

import importlib.util
import socket
from contextlib import ExitStack

import pytest


def free_ports(count: int = 1) -> list[int]:
    """Return ports that nobody listens on, each another one."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def absent(package: str) -> pytest.MarkDecorator:
    """Return the mark of a test that needs this package."""
    return pytest.mark.skipif(importlib.util.find_spec(package) is None, reason=f"{package} is not installed here")
