"""How an engine's command-line client is called: ``docker``, or what SEATRIAL_DOCKER says."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from seatrial.errors import UsageError


def client_call(engine: str, environ: Mapping[str, str]) -> list[str]:
    """The engine's program and global options: ``SEATRIAL_DOCKER`` or ``SEATRIAL_PODMAN``, else its name.

    Raises UsageError: the variable is no command line.
    """
    variable = f"SEATRIAL_{engine.upper()}"
    try:
        return shlex.split(environ.get(variable, "")) or [engine]
    except ValueError as error:
        raise UsageError(
            f"{variable} is not a valid command line: {error}",
            cause=f"its value is {environ[variable]!r}",
            run=f"unset {variable}",
        ) from error
