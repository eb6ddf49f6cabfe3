"""The catalogue of known failures. Its source is one TOML file for each layer, in ``catalog/``.

To add a failure, write an entry into its layer's file, before those that are more general: a line of a log shows the
first entry that has one of its symptoms.

A symptom is literal text. ``…`` stands for any text within the line, up to MAX_GAP letters, ``……`` for up to LONG_GAP
letters; ``{name}`` for a word that is kept under that name, ``{name…}`` for several words; where ``¦`` stands, a word
ends; ``⟨Killed⟩`` is a whole pasted text, harmless inside a log. Case and the kind of quotes do not matter. Title,
cause and fix may use the names; ``{engine}`` and ``{Engine}`` are always known.

Wheels and the agent carry the files as one ``catalog.json``: Python 3.8 reads
no TOML, and parsing takes 100 ms.
"""

import json
import os
import posixpath
import re
import sys
import zlib
from functools import lru_cache
from importlib import import_module
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from seatrial.findings.finding import Finding

#: Stands for any text inside a symptom: ``"DataLoader worker (pid … is killed by signal"``.
GAP = "…"
#: Marks the end of a word: ``"loss: nan¦"`` is not in "loss: nanometre".
WORD_END = "¦"

_HOLE = re.compile(r"\{([A-Za-z]+)(…?)\}")
_BLANK = re.compile(_HOLE.pattern + "|" + GAP + "+|" + WORD_END)
#: Letters that a gap or a value within a symptom stands for, at most. What is further away has nothing to do with it,
#: and a line of 64 KiB that repeats a symptom's first half would take minutes.
MAX_GAP = 500
#: The same for ``……``: lists, such as pip's of all versions of a package. botocore's 2,000 take 16,000 letters.
LONG_GAP = 20_000
#: Every quote is read as this one: programs, shells and JSON logs differ in them.
QUOTE = "'"
#: JSON within JSON has several backslashes before a quote.
_ESCAPED = re.compile(r"\\+\"")
_QUOTES = str.maketrans(dict.fromkeys('"`´“”‘’', QUOTE))
_ANY_QUOTE = r"\\*[\"'`´“”‘’]"
#: Characters that follow a value at the end of a symptom and do not belong to it.
_BEHIND = ".,;:)]\"'`"
#: Names for texts that do not show which engine printed them.
ENGINE_WORDS = {"engine": "docker", "Engine": "Docker"}


class Known(NamedTuple):
    """A failure that has been met before.

    Attributes:
        id: stable kebab-case name; findings carry it.
        title: what is wrong, in a few words without a period. A name without a value is left out of it.
        symptoms: what programs print, within one line. () when nothing is printed and only looking shows it.
        cause: why, in one sentence.
        fix: the command that fixes it as typed, or the change to make; the first one to try.
        sources: where it was reported or read, ``owner/repository#issue`` on GitHub or a page.
        severity: of the finding made from it.
        healthy: a regular expression, case ignored: text that has a symptom in it and is none is not looked at.
        consequence: ``ended`` for a process that ended without the reason, ``missed`` for a missing rank.
        follows: IDs of entries that this one follows from.
        knowing: name of a value, and the cause and the fix where the text has it; () for none.
        of_cuda: whether it is a failure of CUDA; None if its layer shows that.
        expected_without: ``gpu`` or ``terminal``: a run that finishes without one shows it, and lacks nothing.
    """

    id: str
    title: str
    symptoms: Tuple[str, ...]
    cause: str
    fix: str
    sources: Tuple[str, ...]
    severity: str = "error"
    healthy: Optional[str] = None
    consequence: str = ""
    follows: Tuple[str, ...] = ()
    knowing: Tuple[str, ...] = ()
    of_cuda: Optional[bool] = None
    expected_without: str = ""

    def values_in(self, text: str, plain_text: str) -> Optional[Dict[str, str]]:
        """Return the values of the first symptom in the text, or None; ``plain_text``: its ``plain``, made once."""
        if self.healthy is not None:
            text = re.sub(self.healthy, " ", text, flags=re.IGNORECASE)
            plain_text = plain(text)
        for symptom in self.symptoms:
            if beginning(symptom) not in plain_text:
                continue
            if not _BLANK.search(symptom):
                return {}
            if found := _pattern(symptom).search(text):
                values = {name: _value(shown) for name, shown in found.groupdict().items()}
                return {name: value for name, value in values.items() if value}
        return None

    def finding(
        self,
        evidence: Sequence[str] = (),
        *,
        values: Optional[Mapping[str, str]] = None,
        severity: Optional[str] = None,
        message: Optional[str] = None,
        cause: Optional[str] = None,
        fix: Optional[str] = None,
    ) -> Finding:
        """Return the finding, with the values filled in; arguments replace the entry's own words."""
        known = dict(ENGINE_WORDS, **(values or {}))
        if "path" in known:
            folder = posixpath.dirname(posixpath.join("/workspace", known["path"]))
            known.setdefault("mount", mount_of("FOLDER", folder))
        known_cause, known_fix = self.knowing[1:] if known.keys() & self.knowing[:1] else (self.cause, self.fix)
        message = message or _filled(self.title, known, in_title=True)
        cause, fix = cause or _filled(known_cause, known), fix or _filled(known_fix, known)
        return Finding(self.id, severity or self.severity, message, cause, fix, list(evidence))


def mount_of(source: str, folder: str) -> str:
    """Return the option that brings a folder of the host to this one: --data for /data."""
    inside = folder == "/data" or folder.startswith("/data/")
    return "--data " + source if inside else "--mount %s:%s" % (source, folder)


def _value(shown: str) -> str:
    """Return a value without the punctuation behind it, except a bracket that it opens."""
    value = shown.rstrip(_BEHIND)
    return value + ")" if value.count("(") > value.count(")") and shown[len(value) :].startswith(")") else value


#: First words of titles and causes that are not names.
_SMALL = ("A", "An", "It", "No", "The", "There", "This")


def mid_sentence(text: str) -> str:
    """Return a title or a cause as it follows a colon: with a small letter, unless it begins with a name."""
    return text[:1].lower() + text[1:] if text.split(" ")[0] in _SMALL else text


def plain(text: str) -> str:
    """Return a text in one case and with one kind of quotes."""
    return _ESCAPED.sub(QUOTE, text.lower()).translate(_QUOTES)


@lru_cache(maxsize=None)
def beginning(symptom: str) -> str:
    """Return a symptom up to its first gap or value, as plain text."""
    return plain(_BLANK.split(symptom, maxsplit=1)[0])


@lru_cache(maxsize=None)
def _pattern(symptom: str) -> "re.Pattern[str]":
    """Compile the symptom with its gaps as groups. Called only for a text that shows its beginning."""
    pattern, at = "", 0
    for blank in _BLANK.finditer(symptom):
        pattern += _literal(symptom[at : blank.start()])
        at, name = blank.end(), blank.group(1)
        if blank.group(0) == WORD_END:
            pattern += r"(?!\w)"
        elif name is None:
            pattern += ".{0,%d}?" % (MAX_GAP if blank.group(0) == GAP else LONG_GAP)
        else:
            words = "." if blank.group(2) else r"[^\s\"'`]"
            pattern += "(?P<%s>%s%s)" % (name, words, "+" if at == len(symptom) else "{1,%d}?" % MAX_GAP)
    return re.compile(pattern + _literal(symptom[at:]), re.IGNORECASE)


def _literal(text: str) -> str:
    return "".join(_ANY_QUOTE if plain(letter) == QUOTE else re.escape(letter) for letter in text)


def _filled(text: str, values: Mapping[str, str], in_title: bool = False) -> str:
    """Return the text with values in place of their names; an unknown one is ``<name>``, and left out of a title."""
    if in_title:
        text = re.sub(":? " + _HOLE.pattern, lambda hole: hole.group(0) if values.get(hole.group(1)) else "", text)
    return _HOLE.sub(lambda hole: values.get(hole.group(1)) or "<%s>" % hole.group(1), text)


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


def entry_of(finding: Finding) -> Optional[Known]:
    """Return the finding's entry; not all findings have one."""
    return _by_id().get(finding.id)


def _consequence(finding: Finding) -> str:
    entry = entry_of(finding)
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
