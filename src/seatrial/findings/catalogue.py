"""The catalogue of known failures, one file a layer. To add one: an entry in its layer's file.

A layer's file is read when somebody asks for it: the agent, which asks for few, stays small.
"""

from functools import lru_cache
from importlib import import_module
from typing import Sequence, Tuple

from seatrial.findings.known import Known

#: What a program in a container, its driver and its engine print.
IN_RUN = ("host", "engine", "container", "disk", "xla", "training", "framework", "script")

#: What an engine prints that does not start a container.
AT_START = ("host", "engine", "start", "container", "disk")

#: What an engine prints that does not pull an image.
AT_PULL = ("engine", "disk", "registry")

#: What a build prints.
AT_BUILD = ("disk", "build", "start", "registry", "script")

#: Every layer; its file has its name and the tuple in it too. A text shows the first entry whose symptom stands in it:
#: what names its place ("Failed to pull image …: no space left on device") stands before what any program prints.
LAYERS = (
    "host",
    "engine",
    "kubernetes",
    "build",
    "start",
    "registry",
    "container",
    "disk",
    "xla",
    "training",
    "framework",
    "script",
    "pasted",
    "cluster",
    "running",
    "doctor",
)


@lru_cache(maxsize=None)
def entries(layers: Sequence[str] = LAYERS) -> Tuple[Known, ...]:
    """The entries of these layers, in their order."""
    return tuple(entry for layer in layers for entry in _layer(layer))


@lru_cache(maxsize=None)
def _layer(name: str) -> Tuple[Known, ...]:
    found: Tuple[Known, ...] = getattr(import_module("seatrial.findings." + name), name.upper())
    return found


@lru_cache(maxsize=None)
def by_id(id: str) -> Known:
    """The entry of this ID. Raises KeyError."""
    for layer in (*IN_RUN, "running", *LAYERS):  # what the agent asks for is found before more is read
        for entry in _layer(layer):
            if entry.id == id:
                return entry
    raise KeyError(id)
