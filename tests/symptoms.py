"""A symptom of the catalogue as a program would print it, with something where it has gaps and values."""

from __future__ import annotations

import re

from seatrial.findings.catalogue import GAP, WORD_END


def shown(symptom: str) -> str:
    return re.sub(r"\{\w+…?\}|" + GAP, "some-12", symptom.replace(WORD_END, ""))
