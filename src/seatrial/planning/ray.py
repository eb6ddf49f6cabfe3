"""Scripts that import Ray: room in /dev/shm for its object store, and no statistics sent without being asked for."""

from __future__ import annotations

from collections.abc import Mapping

#: Ray's own defaults for its object store: of the memory, at most, and of a /dev/shm; and the least that it accepts.
#: Source: ray 2.60, ray/_private/ray_constants.py (DEFAULT_OBJECT_STORE_MEMORY_PROPORTION, …_MAX_MEMORY_BYTES,
#: OBJECT_STORE_MINIMUM_MEMORY_BYTES) and ray/_private/utils.py, resolve_object_store_memory.
STORE_SHARE = 0.3
MOST_STORE_BYTES = 200 * 10**9
SHM_SHARE = 0.95
LEAST_STORE_BYTES = 75 * 2**20

#: With a store larger than /dev/shm Ray goes to /tmp and warns, or refuses. This caps its default, no wish of a script.
_MOST_VARIABLE = "RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES"

#: ``ray start`` asks, and sends them where nobody answers. Source: docs.ray.io, "Usage Stats Collection".
_STATISTICS_VARIABLE = "RAY_USAGE_STATS_ENABLED"


def store_bytes(memory_bytes: int | None) -> int:
    """What Ray's object store takes by default of this much memory; 0 where nobody knows how much there is."""
    return 0 if memory_bytes is None else min(int(memory_bytes * STORE_SHARE), MOST_STORE_BYTES)


def ray_env(evidence: str | None, shm_bytes: int | None, have: Mapping[str, str]) -> dict[str, str]:
    """Variables for a script that imports Ray; what the user or the image sets stays.

    Args:
        evidence: where it does so, or None.
        shm_bytes: of the container; None for a process of this machine, whose /dev/shm Ray measures itself.
    """
    if evidence is None:
        return {}
    env = {_STATISTICS_VARIABLE: "0"}
    if shm_bytes is not None and (most := int(shm_bytes * SHM_SHARE)) >= LEAST_STORE_BYTES:
        env[_MOST_VARIABLE] = str(min(most, MOST_STORE_BYTES))
    return {name: value for name, value in env.items() if name not in have}
