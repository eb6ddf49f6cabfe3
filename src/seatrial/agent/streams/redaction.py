"""Secrets: read once, deleted, and cut out of everything the target prints."""

import json
import os
import re
import stat
from typing import Dict, Iterable, List, Optional

REDACTED = b"[redacted]"

_CHUNK_BYTES = 1 << 20

#: Of a file that the target may have made as long as it likes, this much is looked through: more than is ever reported.
_LOOKED_THROUGH_BYTES = 1 << 30


def take(names: Iterable[str], folder: Optional[str]) -> Dict[str, str]:
    """Name → value, from files of that name in ``folder``, which are deleted. A missing file raises OSError."""
    values = {}
    for name in names:
        path = os.path.join(folder or "", name)
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            values[name] = file.read()
        try:
            os.unlink(path)
        except OSError:  # a read-only mount: the engine's side deletes it
            pass
    return values


def encode(secrets: Dict[str, str]) -> List[bytes]:
    """The values as the target may print them."""
    return [value.encode("utf-8", "surrogateescape") for value in secrets.values()]


def blot(path: str, secrets: Iterable[bytes]) -> None:
    """Overwrite secrets in a file in place, byte for byte, so that readers' offsets hold; as plain text and in JSON.

    For what the target has written past us: its reports.
    """
    known = {secret for secret in secrets if secret}
    known |= {json.dumps(secret.decode("utf-8", "surrogateescape"))[1:-1].encode() for secret in known}
    if not known:
        return
    longest = max(map(len, known))
    pattern = re.compile(b"|".join(re.escape(secret) for secret in sorted(known, key=len, reverse=True)))
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # there is none
        return
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return
        for offset in range(0, _LOOKED_THROUGH_BYTES, _CHUNK_BYTES):
            data = os.pread(descriptor, _CHUNK_BYTES + longest - 1, offset)  # one that begins here may end behind it
            for match in pattern.finditer(data):
                os.pwrite(descriptor, b"*" * (match.end() - match.start()), offset + match.start())
            if len(data) < _CHUNK_BYTES:
                return
    except OSError:  # the file system is broken: said already, by the journal
        return
    finally:
        os.close(descriptor)


class Redactor:
    """Replaces secrets in a stream of bytes, also where one spans several chunks.

    Bytes that could be the beginning of a secret are held back until the next ``feed`` or ``flush``. However the
    stream is cut, the result is that of replacing in the whole of it, longest secret first.
    """

    def __init__(self, secrets: Iterable[bytes]) -> None:
        self._secrets = sorted({secret for secret in secrets if secret}, key=len, reverse=True)
        self._pattern = re.compile(b"|".join(re.escape(secret) for secret in self._secrets))
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """What can be passed on now."""
        if not self._secrets:
            return data
        data, done, out = self._held + data, 0, []
        hold = self._hold_from(data, done)
        for match in self._pattern.finditer(data):
            if match.start() >= hold:
                break
            out += [data[done : match.start()], REDACTED]
            done = match.end()
            hold = self._hold_from(data, done)
        out.append(data[done:hold])
        self._held = data[hold:]
        return b"".join(out)

    def flush(self) -> bytes:
        """The rest, at the end of the stream."""
        rest, self._held = self._held, b""
        return self._pattern.sub(REDACTED, rest) if self._secrets else rest

    def text(self, text: str) -> str:
        """A whole string, redacted."""
        if not self._secrets:
            return text
        data = text.encode("utf-8", "surrogateescape")
        return self._pattern.sub(REDACTED, data).decode("utf-8", "surrogateescape")

    def _hold_from(self, data: bytes, start: int) -> int:
        """The first position from ``start`` whose rest is the beginning, but not the whole, of a secret."""
        first = max(start, len(data) - len(self._secrets[0]) + 1)
        for position in range(first, len(data)):
            rest = data[position:]
            if any(len(rest) < len(secret) and secret.startswith(rest) for secret in self._secrets):
                return position
        return len(data)
