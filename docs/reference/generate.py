"""Writes the reference pages that come from code: `python docs/reference/generate.py`. A test keeps them current."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from seatrial.doctor.chain import CHAIN
from seatrial.findings.catalogue import LAYERS, entries
from seatrial.findings.known import Known
from seatrial.job.config import json_schema

HERE = Path(__file__).parent


def schema_text() -> str:
    """seatrial.schema.json."""
    return json.dumps(json_schema(), indent=2) + "\n"


def findings_text() -> str:
    """findings.md: the catalogue of known failures, layer by layer."""
    return "\n".join(_findings_lines()) + "\n"


def _findings_lines() -> Iterator[str]:
    yield "# Findings"
    yield ""
    yield f"The {len(entries())} failures that seatrial knows, from the host to the framework. Receipts and the agent"
    yield "name them by ID. In symptoms, … and {name} stand for any text. Generated from `src/seatrial/findings/`."
    for layer in LAYERS:
        yield ""
        yield f"## {layer.capitalize()}"
        for entry in entries((layer,)):
            yield from _entry_lines(entry)


def _entry_lines(entry: Known) -> Iterator[str]:
    shown = entry.finding()
    yield ""
    yield f"### `{entry.id}`"
    yield ""
    yield f"{shown.message} ({entry.severity})."
    yield ""
    if entry.symptoms:
        yield "- Printed: " + " · ".join(f"`{symptom}`" for symptom in entry.symptoms)
    yield f"- Cause: {shown.cause}."
    yield f"- Fix: `{shown.fix}`"
    yield "- Source: " + ", ".join(entry.sources)


def checks_text() -> str:
    """checks.md: what doctor looks at, layer by layer."""
    return "\n".join(_checks_lines()) + "\n"


def _checks_lines() -> Iterator[str]:
    count = sum(len(layer.checks) for layer in CHAIN)
    yield "# Checks of doctor"
    yield ""
    yield f"The {count} links that `seatrial doctor` looks at, in the order in which a GPU needs them. A check whose"
    yield "needs are broken is not looked at: it is blocked by them. Each finding is reproduced in"
    yield "`tests/unit/doctor/test_breaks.py`. Generated from `src/seatrial/doctor/`."
    for layer in CHAIN:
        yield ""
        yield f"## {layer.title}"
        yield ""
        yield "| check | makes sure that | finds | needs |"
        yield "|---|---|---|---|"
        for check in layer.checks:
            finds = ", ".join(f"[`{id}`](findings.md#{id})" for id in check.finds)
            yield f"| `{check.id}` | {check.title} | {finds} | {', '.join(f'`{need}`' for need in check.needs)} |"


PAGES = {"seatrial.schema.json": schema_text, "findings.md": findings_text, "checks.md": checks_text}

if __name__ == "__main__":
    for name, text in PAGES.items():
        (HERE / name).write_text(text(), encoding="utf-8")
