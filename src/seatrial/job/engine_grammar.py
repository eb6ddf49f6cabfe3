"""Grammar of the values that reach an engine: what ``docker create`` refuses is refused where it is written."""

from __future__ import annotations

import ipaddress
import re
import shlex
from collections.abc import Callable, Sequence
from typing import Any

from seatrial.errors import TargetError, fallback
from seatrial.system.text import regex, shown

#: Source: github.com/distribution/reference, regexp.go. A registry has a dot, a colon or is ``localhost``.
_PATH = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_REGISTRY = (
    rf"(?:localhost(?::[0-9]+)?|{_LABEL}(?:\.{_LABEL})+(?::[0-9]+)?|{_LABEL}:[0-9]+|\[[0-9a-fA-F:]+\](?::[0-9]+)?)"
)
IMAGE = (
    rf"(?:{_REGISTRY}/)?{_PATH}(?:/{_PATH})*(?::[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}})?"
    r"(?:@(?:sha256:[0-9a-f]{64}|sha384:[0-9a-f]{96}|sha512:[0-9a-f]{128}))?"
)

#: Source: docs.docker.com/reference/cli/docker/container/run, --network; podman-run(1).
_WORD = r"[A-Za-z0-9][A-Za-z0-9_.-]*"
NETWORK = rf"(?:container:)?{_WORD}|(?:bridge|slirp4netns|pasta):[^\s]+|ns:/\S+"

#: A node of the host with links and permissions, or a name of CDI: cncf-tags/container-device-interface, SPEC.md.
DEVICE = (
    r"/[^:\s\x00-\x1f]+(?::/[^:\s\x00-\x1f]+)?(?::(?!.*(?P<twice>[rwm]).*(?P=twice))[rwm]{1,3})?"
    r"|[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?/[A-Za-z](?:[A-Za-z0-9_-]*[A-Za-z0-9])?"
    r"=[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?"
)

_HOST = regex(r"[A-Za-z0-9]([A-Za-z0-9_-]{0,61}[A-Za-z0-9])?")

#: Source: github.com/docker/go-units, ulimit.go.
_LIMITS = "as core cpu data fsize locks memlock msgqueue nice nofile nproc rss rtprio rttime sigpending stack".split()  # noqa: SIM905
_ULIMIT = regex(rf"(?:{'|'.join(_LIMITS)})=(-1|[0-9]{{1,18}})(?::(-1|[0-9]{{1,18}}))?")

#: Source: docs.docker.com/reference/cli/docker/container/run, --publish.
_PORTS = regex(
    r"(?:(?P<at>(?:[0-9]{1,3}\.){3}[0-9]{1,3}|\[[0-9a-fA-F:.]+\])?:(?=.*:))?"
    r"(?P<ports>(?:(?:[0-9]{1,5}(?:-[0-9]{1,5})?)?:)?[0-9]{1,5}(?:-[0-9]{1,5})?)(?:/(?:tcp|udp|sctp))?"
)


def image_refused(word: str, command: Sequence[str] = ()) -> TargetError | None:
    """Return the error for an image in the target's place, where docker run has it; a tag shows that it is one."""
    if ":" not in word or re.fullmatch(IMAGE, word) is None:
        return None
    words = ["--image", word, *(["--"] if command else [])]
    run = f"seatrial run {shlex.join([*words, *command])}"
    return TargetError(f"{word} is an image, which run takes with --image", run=run, instead=(word, words))


def matching(pattern: str, what: str) -> Callable[[Any], str]:
    """Return a reader of text that the whole pattern matches."""

    def check(value: Any) -> str:
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            raise ValueError(f"expected {what}, got {shown(value)}")
        return value

    return check


def read_ulimit(value: Any) -> str:
    """Read ``TYPE=SOFT[:HARD]``; -1 means unlimited. Raises ValueError."""
    match = _ULIMIT.fullmatch(value) if isinstance(value, str) else None
    soft, hard = (int(each or match[1]) % 2**64 for each in match.groups()) if match else (1, 0)
    if match is None or soft > hard:
        raise ValueError(f"expected TYPE=SOFT[:HARD], such as nofile=1024:4096, got {shown(value)}")
    return match[0]


def read_port(value: Any) -> Any:
    """Check ``[[ADDRESS:][HOST]:]CONTAINER[/PROTOCOL]`` with ports or ranges, as Docker does. Raises ValueError."""
    if not isinstance(value, str):
        return value  # not text: pydantic reports it
    match = _PORTS.fullmatch(value)
    ranges = [[int(port) for port in part.split("-")] for part in match["ports"].split(":") if part] if match else []
    widths = [ports[-1] - ports[0] for ports in ranges if 1 <= ports[0] <= ports[-1] <= 65535]
    pairs = len(widths) == len(ranges) > 0 and widths[-1] in (0, widths[0])
    if match is None or not pairs or not _is_address(match["at"]):
        raise ValueError(f"expected HOST:CONTAINER ports from 1 to 65535, such as 8080:80, got {value[:80]!r}")
    return value


@fallback(False, on=ValueError)
def _is_address(text: str | None) -> bool:
    return text is None or bool(ipaddress.ip_address(text.strip("[]")))


def is_host(word: str) -> bool:
    """Return True for a name of RFC 1123 or an address; a number such as 1.5 or nan is neither."""
    if re.fullmatch(r"(?i)[+-]?([0-9.]+(e[+-]?[0-9]+)?|nan|inf(inity)?)", word) or ":" in word:
        return _is_address(word)
    return len(word) <= 253 and all(_HOST.fullmatch(part) for part in word.split("."))
