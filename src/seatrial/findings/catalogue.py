"""The catalogue of known failures. Its source is one TOML file for each layer, in ``catalog/``.

To add a failure, write an entry into its layer's file, before those that are more general: a line of a log shows the
first entry that has one of its symptoms. Wheels and the agent carry the files as one ``catalog.json``: Python 3.8 reads
no TOML, and parsing takes 100 ms.
"""

import json
import os
import sys
import zlib
from functools import lru_cache
from importlib import import_module
from typing import Any, Dict, Iterator, List, Sequence, Tuple

from seatrial.findings.finding import Finding
from seatrial.findings.known import Known

#: Layers of messages by a program in a container, its driver and its engine.
IN_RUN = ("host", "engine", "container", "disk", "xla", "training", "framework", "script")

#: Layers of messages by an engine that does not start a container.
AT_START = ("host", "engine", "start", "container", "disk")

#: Layers of messages by an engine that does not pull an image.
AT_PULL = ("engine", "disk", "registry")

#: Layers of messages by a build.
AT_BUILD = ("disk", "build", "start", "registry", "script")

#: Every layer, named after its file. A text shows the first entry that has one of its symptoms: symptoms that name
#: their place ("Failed to pull image …: no space left on device") come before those that any program prints.
LAYERS = (
    *("host", "engine", "kubernetes", "build", "start", "registry", "container", "disk", "xla", "training"),
    *("framework", "script", "pasted", "cluster", "running", "doctor"),
)

#: Entries of a build of a failure without its reason, the most specific first: all else that a build
#: shows is their cause.
OF_A_BUILD = (
    *("build-step-killed", "package-metadata-failed", "package-does-not-compile", "package-missing"),
    *("debian-package-missing", "base-image-missing"),
)

_HERE = os.path.dirname(os.path.abspath(__file__))
_SOURCES = os.path.join(_HERE, "catalog")

#: Place of ``catalog.json`` in a checkout, with its compiled modules.
COMPILED = os.path.join(_HERE, "__pycache__", "catalog.json")


@lru_cache(maxsize=None)
def entries(layers: Sequence[str] = LAYERS) -> Tuple[Known, ...]:
    """Return the entries of these layers, in their order."""
    return tuple(entry for layer in layers for entry in _layer(layer))


@lru_cache(maxsize=None)
def _by_id() -> Dict[str, Known]:
    return {entry.id: entry for entry in entries()}


def by_id(id: str) -> Known:
    """Return the entry of this ID. Raises KeyError."""
    return _by_id()[id]


def _consequence(finding: Finding) -> str:
    entry = _by_id().get(finding.id)  # not all findings have an entry
    return entry.consequence if entry is not None else ""


def without_consequences(findings: Sequence[Finding]) -> List[Finding]:
    """Return the findings without those that follow from another of them."""
    found = _without_followers(findings)
    for consequences in (("missed",), ("ended", "missed")):
        if any(each.severity == "error" and _consequence(each) not in consequences for each in found):
            found = [each for each in found if _consequence(each) not in consequences]
    return found


def consequences_last(findings: Sequence[Finding]) -> List[Finding]:
    """Return the findings in their order, possible consequences behind the others, without those that follow."""
    rank = {"ended": 1, "missed": 2}
    return sorted(_without_followers(findings), key=lambda each: rank.get(_consequence(each), 0))


def _without_followers(findings: Sequence[Finding]) -> List[Finding]:
    ids, known = {each.id for each in findings}, _by_id()
    return [each for each in findings if each.id not in known or not ids.intersection(known[each.id].follows)]


@lru_cache(maxsize=None)
def _layer(name: str) -> Tuple[Known, ...]:
    tables = _catalog()[name].items()
    return tuple(Known(id, **fields) for id, table in tables for id, fields in _written_out(id, table))


def _written_out(id: str, table: Dict[str, Any]) -> Iterator[Tuple[str, Dict[str, Any]]]:
    """Yield the ID and the fields of an entry; of one with a table ``each``, those of every line of it."""
    for name, package in table.get("each", {"": ""}).items():

        def filled(text: str) -> str:
            return text.replace("NAME", name).replace("PACKAGE", package) if name else text  # noqa: B023

        fields = {key: tuple(map(filled, value)) if isinstance(value, list) else filled(value)
                  for key, value in table.items() if key != "each"}  # fmt: skip
        fields.setdefault("symptoms", ())
        yield id.replace("NAME", name.lower().replace(".", "-")), fields


@lru_cache(maxsize=None)
def _catalog() -> Any:
    """Return layer → ID → table."""
    return json.loads(catalog_json())


def catalog_json() -> bytes:
    """Return the files of all layers as one JSON object. In a checkout it is made anew when one of them changed."""
    if not os.path.isdir(_SOURCES):  # a wheel, or the agent's archive
        data: bytes = __spec__.loader.get_data(os.path.join(_HERE, "catalog.json"))  # type: ignore[union-attr]
        return data
    sources = {name: _read(os.path.join(_SOURCES, name + ".toml")) for name in LAYERS}
    digest = b'{"digest":%d,' % zlib.crc32(b"\0".join(sources.values()))
    try:
        cached = _read(COMPILED)
    except OSError:
        cached = b""
    if cached.startswith(digest):
        return cached
    toml = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    tables = {name: toml.loads(source.decode("utf-8")) for name, source in sources.items()}
    compiled = digest + json.dumps(tables, ensure_ascii=False, separators=(",", ":")).encode("utf-8")[1:]
    _keep(compiled)
    return compiled


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _keep(compiled: bytes) -> None:
    """Write the cache, if this user may: renamed, so that nobody reads half of it."""
    aside = "%s.%d" % (COMPILED, os.getpid())
    try:
        os.makedirs(os.path.dirname(COMPILED), exist_ok=True)
        with open(aside, "wb") as file:
            file.write(compiled)
        os.replace(aside, COMPILED)
    except OSError:
        pass
