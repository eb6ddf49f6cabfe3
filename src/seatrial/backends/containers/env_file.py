"""Variables for a container that come from the host: ``--env-file`` and the proxy settings."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from seatrial.errors import UsageError
from seatrial.system.host import Host
from seatrial.system.project_files import read_text
from seatrial.system.text import as_typed

#: Source: https://docs.docker.com/engine/cli/proxy/ lists these; programs read either case, so both are passed.
PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY", "ALL_PROXY")


def read_env_file(path: Path, host: Host) -> dict[str, str]:
    """Read variables in Docker's format: ``NAME=value`` verbatim, quotes included; ``NAME`` alone takes the
    host's value if it has one; ``#`` begins a comment line.

    Raises UsageError naming file and line.
    """
    lines = read_text(path, inside=None).splitlines()
    variables: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        line = line.lstrip()
        if not line or line.startswith("#"):
            continue
        name, equals, value = line.partition("=")
        if not name or "\0" in line or any(character.isspace() for character in name):
            raise UsageError(
                f"{path}:{number}: expected NAME=value, got {name!r}",
                cause="Docker's format: no export, and no space around the equals sign",
                run=f"sed -n {number}p {as_typed(path)}",
            )
        if equals:
            variables[name] = value
        elif name in host.env:
            variables[name] = host.env[name]
    return variables


def proxy_env(host: Host) -> dict[str, str]:
    """Return the host's proxy variables in upper and lower case; where they differ the lower case counts, as in curl.

    One whose URL holds a login is not among them: everybody may read an engine's variables (``docker inspect``).
    """
    found = {}
    for name in PROXY_VARIABLES:
        value = host.env.get(name.lower()) or host.env.get(name)
        if value and not _holds_login(value):
            found[name] = found[name.lower()] = value
    return found


def proxies_with_login(host: Host) -> tuple[str, ...]:
    """Return names of the proxy variables set on this host whose URL holds a login: they travel as secrets do."""
    names = (name for upper in PROXY_VARIABLES for name in (upper, upper.lower()))
    return tuple(name for name in names if _holds_login(host.env.get(name, "")))


def _holds_login(url: str) -> bool:
    """Return whether it has a login; a value that is not a URL counts if it has an @."""
    try:
        return bool(urlsplit(url).password)
    except ValueError:
        return "@" in url
