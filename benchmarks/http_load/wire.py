"""HTTP/1.1 as the load generator speaks it: a request is bytes made once, an answer is its status and its length."""

from __future__ import annotations

from http_load.address import Address

_END = b"\r\n\r\n"
_LENGTH = b"\r\ncontent-length:"


def request(
    address: Address, method: str, path: str, body: bytes = b"", media_type: str = "application/json", token: str = ""
) -> bytes:
    """The whole request."""
    lines = [f"{method} {path} HTTP/1.1", f"host: {address.host}:{address.port}"]
    if token:
        lines.append(f"authorization: Bearer {token}")
    if body:
        lines += [f"content-type: {media_type}", f"content-length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + body


def answered(data: bytes) -> tuple[int, int] | None:
    """(status, bytes of the whole answer), or None while its head is not complete.

    Raises ValueError: this is no answer, or one without a length.
    """
    end = data.find(_END)
    if end < 0:
        if len(data) > 65536:
            raise ValueError("a head without an end")
        return None
    if data[:5] != b"HTTP/":
        raise ValueError("no HTTP")
    at = data.find(_LENGTH, 0, end)
    head = data
    if at < 0:
        head = data[:end].lower()
        at = head.find(_LENGTH)
        if at < 0:
            raise ValueError("an answer without content-length")
    stop = head.find(b"\r\n", at + 2, end)
    length = int(head[at + len(_LENGTH) : stop if stop > 0 else end])
    return int(data[9:12]), end + len(_END) + length
