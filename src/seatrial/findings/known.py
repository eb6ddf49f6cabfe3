"""Known: one entry of the catalogue of failures, how its symptoms are found in a text, and the finding it becomes.

A symptom is literal text. ``…`` stands for any text within the line, up to MAX_GAP letters, ``……`` for up to LONG_GAP
letters; ``{name}`` for a word that is kept under that name, ``{name…}`` for several words; where ``¦`` stands, a word
ends. Case and the kind of quotes do not matter. Title, cause and fix may use the names; ``{engine}`` and ``{Engine}``
are always known.
"""

import posixpath
import re
from functools import lru_cache
from typing import Dict, Mapping, NamedTuple, Optional, Sequence, Tuple

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

    def without_healthy(self, text: str) -> str:
        """Return the text that its symptoms are looked for in."""
        return text if self.healthy is None else _compiled(self.healthy).sub(" ", text)

    def values_in(self, text: str, plain_text: str) -> Optional[Dict[str, str]]:
        """Return the values of the first symptom that stands in the text; None if none does.

        Args:
            plain_text: ``plain(text)``, which is made once for all entries.
        """
        if self.healthy is not None:
            text = self.without_healthy(text)
            plain_text = plain(text)
        for symptom in self.symptoms:
            if beginning(symptom) not in plain_text:
                continue
            if not _BLANK.search(symptom):
                return {}
            found = _pattern(symptom).search(text)
            if found:
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
            known.setdefault(
                "mount", mount_of("FOLDER", posixpath.dirname(posixpath.join("/workspace", known["path"])))
            )
        known_cause, known_fix = self.knowing[1:] if known.keys() & self.knowing[:1] else (self.cause, self.fix)
        return Finding(
            self.id,
            severity or self.severity,
            message or _filled(self.title, known, in_title=True),
            cause or _filled(known_cause, known),
            fix or _filled(known_fix, known),
            list(evidence),
        )


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


def ending(symptom: str) -> str:
    """Return a symptom from its last gap or value on, as plain text."""
    blanks = list(_BLANK.finditer(symptom))
    return plain(symptom[blanks[-1].end() :] if blanks else symptom)


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


def cut_behind_a_gap(symptom: str, text: str, least: int) -> int:
    """Return how many letters of a symptom a text shows that ends within the words behind one of its gaps; 0 if it
    does not.

    Args:
        text: plain. least: letters of those words that have to be there.
    """
    if not beginning(symptom) or beginning(symptom) not in text:
        return 0
    blanks = list(_BLANK.finditer(symptom))
    for blank, end in reversed([*zip(blanks, [*(each.start() for each in blanks[1:]), len(symptom)])]):
        words = plain(symptom[blank.end() : end])
        for shown in range(len(words), least - 1, -1):
            before = text[: len(text) - shown][-3 * MAX_GAP :]  # no symptom has more gaps
            if text.endswith(words[:shown]) and _ends_there(symptom[: blank.end()]).search(before):
                return len(_BLANK.sub("", symptom[: blank.end()])) + shown
    return 0


@lru_cache(maxsize=None)
def _ends_there(symptom: str) -> "re.Pattern[str]":
    """Return a pattern for a text that ends with the symptom, whose first word stands in it whole."""
    return re.compile(r"(?<!\w)" + _pattern(symptom).pattern + r"\Z", re.IGNORECASE)


@lru_cache(maxsize=None)
def _compiled(pattern: str) -> "re.Pattern[str]":
    return re.compile(pattern, re.IGNORECASE)


def _literal(text: str) -> str:
    return "".join(_ANY_QUOTE if plain(letter) == QUOTE else re.escape(letter) for letter in text)


def _filled(text: str, values: Mapping[str, str], in_title: bool = False) -> str:
    """Return the text with values in place of their names; an unknown one is ``<name>``, and left out of a title."""
    if in_title:
        text = re.sub(":? " + _HOLE.pattern, lambda hole: hole.group(0) if values.get(hole.group(1)) else "", text)
    return _HOLE.sub(lambda hole: values.get(hole.group(1)) or "<%s>" % hole.group(1), text)
