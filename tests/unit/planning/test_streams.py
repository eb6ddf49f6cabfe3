"""The caller's streams that a target gets: docs/decisions.md, 0028 as a table."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from seatrial.backends.base import OF_PROCESSES, Traits
from seatrial.backends.kubernetes.backend import Kubernetes
from seatrial.errors import UsageError
from seatrial.job.script import ScriptFacts
from seatrial.planning.streams import Streams, choose_streams
from seatrial.system.host import Caller

READS = ScriptFacts(input_evidence="ask.py:1 input", files=("ask.py",))
QUIET = ScriptFacts(files=("train.py",))
UNKNOWN = ScriptFacts()
TYPING = Caller("terminal", screens=(1, 2), columns=100, lines=30, term="xterm")


def choose(
    caller: Caller | None,
    script: ScriptFacts = QUIET,
    *,
    traits: Traits = OF_PROCESSES,
    launcher: str = "none",
    **other: Any,
) -> Streams:
    site: Any = SimpleNamespace(
        caller=caller,
        record=Path("/record"),
        backend=SimpleNamespace(traits=traits),
        engine=SimpleNamespace(desktop=other.get("desktop", False)),
    )
    parts: Any = SimpleNamespace(container=None, meeting=SimpleNamespace(nodes=other.get("nodes", 1)))
    return choose_streams(site, script, parts, launcher)  # type: ignore[arg-type]


def test_someone_at_a_terminal_types_any_way_the_script_shows() -> None:
    for script in (READS, QUIET, UNKNOWN):
        streams = choose(TYPING, script)
        assert streams.terminal is not None and streams.terminal.streams == (0, 1, 2)
        assert (streams.terminal.columns, streams.terminal.lines, streams.terminal.term) == (100, 30, "xterm")
        assert streams.input == "/record/input" and streams.warnings == ()


@pytest.mark.parametrize(
    ("kind", "script", "asks", "passed"),
    [
        ("pipe", READS, False, True),
        ("pipe", QUIET, False, False),  # cat list | while read line; do seatrial run …
        ("pipe", UNKNOWN, False, True),
        ("pipe", QUIET, True, True),
        ("file", READS, False, False),  # while read line; do seatrial run …; done < list
        ("file", READS, True, True),
        ("nothing", READS, True, False),
        ("terminal", READS, False, False),  # its output goes to a file: nobody would see the question
        ("terminal", READS, True, True),
    ],
)
def test_input_without_a_screen(kind: Any, script: ScriptFacts, asks: bool, passed: bool) -> None:
    streams = choose(Caller(kind, asks=asks), script)
    assert (streams.input is not None) is passed and streams.terminal is None
    assert bool(streams.warnings) is (kind == "file" and not passed)


@pytest.mark.parametrize(
    "where",
    [{"traits": Kubernetes.traits}, {"launcher": "torchrun"}, {"nodes": 2}, {"desktop": True}],
    ids=lambda where: next(iter(where)),
)
def test_where_no_input_reaches_the_target(where: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="--interactive cannot be used: ") as refused:
        choose(Caller("pipe", asks=True), READS, **where)
    assert refused.value.run
    piped = choose(Caller("pipe"), READS, **where)
    assert piped.input is None and "not passed" in piped.warnings[0]
    assert choose(Caller("pipe"), QUIET, **where).warnings == ()
    typed = choose(TYPING, READS, **where)
    assert typed.input is None and typed.warnings == ()
    assert typed.terminal is None or typed.terminal.streams == (1, 2)  # a virtual machine has screens
