"""Rewrite newer Python syntax for an older parser; imports, calls and line numbers stay."""

from __future__ import annotations

import re

Version = tuple[int, int]

_QUOTES = ("'''", '"""', "'", '"')
_QUOTE = "|".join(_QUOTES)
#: A comment, the begin of a formatted string, and a whole string of any other kind.
_WORD = (
    rf"(?P<lost>#[^\n]*)|(?<!\w)(?P<prefix>[rR]?[fFtT][rR]?)(?P<quote>{_QUOTE})"
    rf"|(?P<plain>{_QUOTE})(?s:\\.|[^\\])*?(?:(?P=plain)|\Z)"
)
#: Beginnings of syntax newer than Python 3.9. Sources: PEP 634, 654, 695, 758. Not ``except IOError, e``.
_START = re.compile(
    rf"{_WORD}"
    r"|^(?P<indent>[ \t]*)(?P<kind>class|(?:async[ \t]+)?def|type)[ \t]+(?P<name>\w+)[ \t]*(?P<open>\[|(?==[^=]))"
    r"|^(?P<except>[ \t]*except)(?:(?P<star>[ \t]*\*)|[ \t]+(?P<several>[^(:\n#]{1,500},[^,(:\n#]*[A-Z]\w*\s*)(?=:))"
    r"|^[ \t]*(?P<match>match)[ \t(][^\n]*:[ \t]*(?:\#[^\n]*)?\n\s*case\b",
    re.MULTILINE,
)
#: Last group of a match → the Python that brought this syntax, and the form for an older one.
_FORMS = {
    "match": ((3, 10), r"\g<0>"),
    "star": ((3, 11), r"\g<except> "),
    "several": ((3, 14), r"\g<except> (\g<several>)"),
}
_CODE = re.compile(rf"{_WORD}|(?P<opening>[\[{{(])|(?P<closing>[\]}})])|(?P<colon>:)|(?P<gone>\\)")
#: The place that is scanned → its marks. The text of a formatted string has its quote as the name.
_MARKS = {
    "bracket": _CODE,
    "field": _CODE,
    "format": re.compile(r"(?P<opening>\{)|(?P<closing>\})|(?P<gone>[\"'\n])"),
    **{
        quote: re.compile(rf"(?P<kept>\\N\{{[^}}]*\}}|\\[^{{}}]|\{{\{{)|(?P<opening>\{{)|(?P<end>{quote})", re.DOTALL)
        for quote in _QUOTES
    },
}
_SHOWN = {"quote": "' '", "plain": "' '", "lost": "", "gone": "", "end": ""}


def in_old_syntax(text: str) -> tuple[str, tuple[Version, int] | None]:
    """Return (the text in the syntax of Python 3.10, (the Python that brought its newest syntax, line) or None).

    Strings in a replacement field are dropped if an older parser cannot read the field.
    """
    written: list[str] = []
    newest: tuple[Version, int] | None = None
    at = 0
    while match := _START.search(text, at):
        new, end, since = _rewritten(text, match)
        written += text[at : match.start()], new if since else text[match.start() : end]
        at = end
        if since and (newest is None or since > newest[0]):
            newest = since, text.count("\n", 0, match.start()) + 1
    return "".join([*written, text[at:]]), newest


def _rewritten(text: str, match: re.Match[str]) -> tuple[str, int, Version | None]:
    """Return (the match and its brackets or string in old syntax, the end of these, the Python that brought them)."""
    group, end = match.lastgroup or "", match.end()
    if group == "quote":
        inside, end, newer = _inside(text, end, match["quote"])
        of_template = inside is not None and not {*"tT"}.isdisjoint(match["prefix"])
        prefix = re.sub("[tT]", "f", match["prefix"])
        return f'{prefix}"""{inside}"""', end, (3, 14) if of_template else (3, 12) if newer else None
    if group == "open":
        end = _inside(text, end, "bracket")[1] if match["open"] else end
        kind = "" if match["kind"] == "type" else f"{match['kind']} "
        lines = "\\\n" * text.count("\n", match.start(), end)
        return f"{match['indent']}{kind}{match['name']} {lines}", end, (3, 12)
    since, form = _FORMS.get(group, (None, ""))
    return match.expand(form), end, since


def _inside(text: str, at: int, opened: str) -> tuple[str | None, int, bool]:
    """Scan what began before ``at``: a formatted string, by its quote, or a bracket.

    Returns (what an older parser may read of it, None if it does not end; its end; whether Python 3.11 refuses one of
    its replacement fields. Source: PEP 701).
    """
    within, begin, newer = [opened], at, False
    written: list[str] = []
    while within:
        place = within[-1]
        if (match := _MARKS[place].search(text, at)) is None:
            return None, len(text), False
        group, before, at = match.lastgroup or "", text[at : match.start()], match.end()
        if sum(each in _QUOTES for each in within) <= 1:  # in no string of a field
            written += before, _SHOWN.get(group, match[0])
        if group == "quote":
            within.append(match["quote"])
        elif group == "opening":
            begin = at if len(within) == 1 else begin
            within.append("bracket" if place in ("bracket", "field") else "field")
        elif group == "colon" and place == "field":
            within.append("format")
        elif group in ("closing", "end"):
            del within[-2 if place == "format" else -1 :]
            if within == [opened] != ["bracket"]:
                field = text[begin:at]
                marks = "#" in re.sub(r":[^:]*$", "", field) or ("\n" in field and len(opened) == 1)
                newer |= marks or opened in field or "\\" in field
    return "".join(written).replace('"', "'"), at, newer
