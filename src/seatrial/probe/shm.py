"""Shared memory: how much of /dev/shm is used. DataLoader workers and NCCL die when it is full."""

import os
from typing import NamedTuple, Optional


class SharedMemory(NamedTuple):
    """Bytes used and in all."""

    used_bytes: int
    total_bytes: int


def read(path: str = "/dev/shm") -> Optional[SharedMemory]:
    """The file system at ``path``, or None when there is none."""
    try:
        stat = os.statvfs(path)
    except OSError:
        return None
    return SharedMemory((stat.f_blocks - stat.f_bfree) * stat.f_frsize, stat.f_blocks * stat.f_frsize)
