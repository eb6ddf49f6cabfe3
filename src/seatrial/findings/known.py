"""Known: one entry of the catalogue of failures, and how its symptoms are found in a line."""

from typing import NamedTuple, Tuple

#: Stands for any text inside a symptom: ``"DataLoader worker (pid … is killed by signal"``.
GAP = "…"


class Known(NamedTuple):
    """A failure that has been met before.

    Attributes:
        id: stable kebab-case name; findings carry it.
        title: what is wrong, in a few words without a period.
        symptoms: what programs print, literally, within one line; ``…`` stands for any text. () when nothing
            is printed and only looking at the machine shows it.
        cause: why, in one sentence.
        fix: the command that fixes it as typed, or the change to make; the first one to try.
        sources: where it was reported or read, ``owner/repository#issue`` on GitHub or a page.
        severity: of the finding made from it.
    """

    id: str
    title: str
    symptoms: Tuple[str, ...]
    cause: str
    fix: str
    sources: Tuple[str, ...]
    severity: str = "error"

    def shows_in(self, line: str) -> bool:
        """Whether one of the symptoms stands in the line."""
        return any(_contains(line, symptom) for symptom in self.symptoms)


def _contains(line: str, symptom: str) -> bool:
    if GAP not in symptom:
        return symptom in line
    at = 0
    for piece in symptom.split(GAP):
        at = line.find(piece, at)
        if at < 0:
            return False
        at += len(piece)
    return True
