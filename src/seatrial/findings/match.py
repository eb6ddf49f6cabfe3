"""Known failures in the output of programs. One pass, bounded memory, one search in lines that show nothing."""

import posixpath
import re
import shlex
from functools import lru_cache
from typing import Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from seatrial.findings.catalogue import IN_RUN, QUOTE, Known, beginning, by_id, entries, plain
from seatrial.findings.finding import Finding

#: Colours, cursor movements and titles of a terminal (ECMA-48: CSI and OSC), and their escape as JSON writes it.
STEERS = re.compile(rb"(?:\x1b|\\u001b|\\x1b|\\033)(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")
#: Windows' PowerShell redirects output as UTF-16, after one of these marks.
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")


def without_steering(line: bytes) -> bytes:
    """Return a line without the sequences that steer a terminal."""
    return STEERS.sub(b"", line) if b"\x1b" in line or b"1b[" in line or b"\\033[" in line else line


def one_byte_letters(line: bytes, beginning: bytes) -> bytes:
    """Return a log's line with its ASCII readable if the log begins like UTF-16; another as it is."""
    return line.replace(b"\x00", b"") if beginning.startswith(_UTF_16) else line


#: Lines kept as evidence of one finding, and characters kept of a line.
MAX_EVIDENCE = 3
MAX_CHARACTERS = 300
#: Bytes of a path: Linux's PATH_MAX.
MAX_PATH = 4096
#: ``plain`` for bytes: the quotes that are one byte.
_ONE_QUOTE = bytes.maketrans(b'"`', QUOTE.encode() * 2)
#: Letters of a beginning that are looked up; no beginning is shorter.
_HEAD = 4
#: Letters of a beginning that a line is searched for at first.
_MOST_LETTERS = 6

#: A line of source in a traceback that writes a file or makes a folder.
_WRITES = re.compile(
    rb"\bopen\(.{0,200},\s*(?:mode\s*=\s*)?['\"][rbt+]*[wax][bt+]*['\"]"
    rb"|\.(?:save|savez|savez_compressed|savetxt|savefig|imwrite|imsave|dump|write_text|write_bytes|mkdir|makedirs"
    rb"|to_(?:csv|parquet|json|pickle|excel|feather|hdf)|save_(?:pretrained|model|weights|file|checkpoint|image))\("
    rb"|\b(?:makedirs|save_image|save_file|SummaryWriter|FileHandler)\("
)
_NOT_WRITTEN = re.compile(
    rb"(?:FileNotFoundError|PermissionError|OSError): \[Errno (2|13)\][^']{0,80}'([^'\0]{1,4096})'"
)


class Match(NamedTuple):
    """An entry that a text shows, and the values of its symptom there."""

    known: Known
    values: Dict[str, str]


def first_in(text: str, layers: Sequence[str]) -> Optional[Match]:
    """Return the first entry of these layers, in the catalogue's order, that a text of one or more lines shows."""
    plain_text = plain(text)
    for entry in _begun_in(plain_text.encode("utf-8", "replace"), tuple(layers)):
        if (values := entry.values_in(text, plain_text)) is not None:
            return Match(entry, values)
    return None


def _begun_in(plain_text: bytes, layers: Sequence[str]) -> List[Known]:
    """Return the entries of which a symptom's beginning stands in a text, in the catalogue's order."""
    heads, all_entries = _heads(layers), entries(layers)
    numbers = {
        number
        for at in range(len(plain_text) - _HEAD + 1)
        for start, number in heads.get(plain_text[at : at + _HEAD], ())
        if plain_text.startswith(start, at)
    }
    return [all_entries[number] for number in sorted(numbers)]


def match_text(text: str, layers: Sequence[str] = IN_RUN) -> List[Finding]:
    """Return the known failures in a text, one finding of each, in order of appearance."""
    return match_lines((line.encode("utf-8", "replace") for line in text.splitlines()), layers)


def match_lines(lines: Iterable[bytes], layers: Sequence[str] = IN_RUN) -> List[Finding]:
    """Return the known failures in the lines of a log, one finding of each, in order of appearance."""
    matches = Matches(layers)
    for number, line in enumerate(lines, 1):
        matches.add(number, line)
    return matches.findings


def _cut(line: str) -> str:
    """Shorten a long line at a word."""
    line = line.strip()
    begun = re.sub(r"(?<=\s)\S{1,40}$", "", line[: MAX_CHARACTERS - 2]).rstrip()
    return line if len(line) <= MAX_CHARACTERS else begun + " …"


class Matches:
    """Known failures in lines that come one by one.

    Evidence is ``line 12: RuntimeError: CUDA out of memory…``, at most MAX_EVIDENCE lines of MAX_CHARACTERS. A
    line shows one failure at most: the first of the catalogue. Text that is not UTF-8 is read with replacements.
    """

    def __init__(self, layers: Sequence[str]) -> None:
        self._layers = tuple(layers)
        self._findings: Dict[str, Finding] = {}
        self._writes = False
        self._is_source = False

    @property
    def findings(self) -> List[Finding]:
        """Return one finding of each failure, in order of appearance."""
        return list(self._findings.values())

    def add(self, number: int, raw: bytes) -> None:
        """Search one line of the log."""
        raw = without_steering(raw)
        if (self._writes or b"    " in raw) and self._is_failed_write(number, raw):
            return
        is_source, self._is_source = self._is_source and raw[:4] == b"    ", raw.startswith(b'  File "')
        # a traceback's source line is none: the exception's own line follows
        if is_source or _any_head(self._layers).search(_plain_bytes(raw)) is None:
            return
        line = raw.decode("utf-8", "replace")
        if (match := first_in(line, self._layers)) is None:
            return
        finding = self._findings.get(match.known.id)
        if finding is None:
            is_podman = "podman" in line.lower() or line.startswith("Error: ")  # as its own errors begin
            values = dict({"engine": "podman", "Engine": "Podman"} if is_podman else {}, **match.values)
            finding = self._findings[match.known.id] = match.known.finding(values=values)
        if len(finding.evidence) < MAX_EVIDENCE:
            finding.evidence.append("line %d: %s" % (number, _cut(line)))

    def _is_failed_write(self, number: int, raw: bytes) -> bool:
        """Record a write that found no folder or no permission: a read raises the same, below another call."""
        if b"Traceback (most recent call last)" in raw:
            self._writes = False
        elif b"    " in raw and _WRITES.search(raw[:MAX_CHARACTERS]):
            self._writes = True
        elif self._writes and (failed := _NOT_WRITTEN.search(raw[: 2 * MAX_PATH])):
            known = by_id("output-folder-missing" if failed.group(1) == b"2" else "output-not-writable")
            folder = posixpath.dirname(failed.group(2).decode("utf-8", "replace")) or "."
            makes = known.id == "output-folder-missing"
            own = 'os.makedirs("%s", exist_ok=True)   # before the write' if makes else 'sudo chown -R "$(id -u)" %s'
            fix = None if folder.startswith("/") else own % (folder if makes else shlex.quote(folder))
            evidence = ["line %d: %s" % (number, _cut(raw.decode("utf-8", "replace")))]
            self._findings.setdefault(known.id, known.finding(evidence, values={"folder": folder}, fix=fix))
            return True
        return False


def _plain_bytes(raw: bytes) -> bytes:
    if b"\\" in raw or b"\xe2\x80" in raw or b"\xc2\xb4" in raw:  # escaped or curly quotes
        return plain(raw.decode("utf-8", "replace")).encode("utf-8", "replace")
    return raw.lower().translate(_ONE_QUOTE)


def _any_of(words: Iterable[bytes]) -> bytes:
    """Return a pattern that finds the words, those with a common beginning side by side behind it."""
    rests: Dict[bytes, List[bytes]] = {}
    for word in words:
        if not word:  # what begins with a shorter word is found by it
            return b""
        rests.setdefault(word[:1], []).append(word[1:])
    return b"(?:" + b"|".join(re.escape(first) + _any_of(rest) for first, rest in rests.items()) + b")"


@lru_cache(maxsize=None)
def _heads(layers: Sequence[str]) -> Dict[bytes, List[Tuple[bytes, int]]]:
    """Return the first letters of a symptom's beginning → the beginnings, each with the number of its entry."""
    found: Dict[bytes, List[Tuple[bytes, int]]] = {}
    for number, entry in enumerate(entries(layers)):
        for symptom in entry.symptoms:
            if start := beginning(symptom).encode():
                found.setdefault(start[:_HEAD], []).append((start, number))
    return found


@lru_cache(maxsize=None)
def _any_head(layers: Sequence[str]) -> "re.Pattern[bytes]":
    """Return a pattern of the first letters of any symptom: few other lines have them.

    A tree takes 3 µs a line of 80 bytes (Python 3.11, 2 cores) after 20 ms of compiling; whole beginnings: 150 ms.
    """
    starts = (start for each in _heads(layers).values() for start, _ in each)
    return re.compile(_any_of(dict.fromkeys(start[:_MOST_LETTERS] for start in starts)))
