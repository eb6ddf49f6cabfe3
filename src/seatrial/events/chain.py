"""The chain of a run's evidence: each line of events.jsonl ends in the digest of itself and all before it."""

from typing import NamedTuple, Optional, Tuple

#: What the digest of an empty log is, in hex; and how much of SHA-256 is kept of each line's.
CHAIN_START = "0" * 32
_CHAIN_DIGITS = 32


def link(before: str, line: bytes) -> str:
    """The chain behind a line without its own ``_chain``, as encode writes it."""
    import hashlib  # 4 MB of libcrypto that an agent in a container, which chains nothing, need not carry

    return hashlib.sha256(before.encode() + line).hexdigest()[:_CHAIN_DIGITS]


def split_chain(line: bytes) -> Tuple[bytes, Optional[str]]:
    """A line without its ``_chain``, and that; (line, None) where it has none."""
    body, mark, rest = line.rpartition(b',"_chain":"')
    if not mark or len(rest) != _CHAIN_DIGITS + 2 or not rest.endswith(b'"}'):
        return line, None
    return body + b"}", rest[:-2].decode("ascii", "replace")


class Chain(NamedTuple):
    """What following a log's chain found: how many lines hold, the digest behind them, and the first that does not.

    ``broken_at`` is a line's number, from 1, or None.
    """

    lines: int
    digest: str
    broken_at: Optional[int]


def follow_chain(path: str) -> Chain:
    """Follow the chain of an events.jsonl. Raises OSError."""
    lines, digest = 0, CHAIN_START
    with open(path, "rb") as file:
        for line in file:
            body, told = split_chain(line[:-1] if line.endswith(b"\n") else line)
            if told is None or told != link(digest, body):
                return Chain(lines, digest, lines + 1)
            lines, digest = lines + 1, told
    return Chain(lines, digest, None)
