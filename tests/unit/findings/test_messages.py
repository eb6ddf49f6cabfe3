"""Messages as programs print them, with causes that threads or manuals established: explain finds each first."""

from __future__ import annotations

from pathlib import Path

import pytest

from seatrial.doctor.explain import explain_text
from seatrial.findings.catalogue import by_id

tomllib = pytest.importorskip("tomllib")  # Python 3.11
MESSAGES = tomllib.loads((Path(__file__).parents[2] / "findings" / "messages.toml").read_text())["message"]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: f"{message['kind']}-{message['text'].strip()[:50]}")
def test_first_finding_is_the_cause(message: dict[str, object]) -> None:
    found = [finding.id for finding in explain_text(str(message["text"]))]
    assert found[:1] == [message["finds"]]
    assert message["finds"] != "harmless-note" or by_id("harmless-note").severity == "info"
