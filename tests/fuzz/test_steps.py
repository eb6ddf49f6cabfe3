"""Step lines of events: of anything that a script appends, the receipt's reader takes the numbers."""

from __future__ import annotations

import unicodedata
from typing import Any

from hypothesis import strategies as st

from fuzz.attack import attack, one_case
from fuzz.hostile import ODD_VALUES, changed_values
from seatrial.receipt.evidence import gather
from seatrial.receipt.reported import MAX_SERIES, read_steps
from seatrial.receipt.values import MAX_TEXT, clean, items, mapping, number, text, whole

STEP = {"t": 1.0, "type": "step", "step": 1, "epoch": 1, "loss": 0.5, "phase": "train", "images": 64, "rank": 0}
SAMPLE = {
    "t": 1.0,
    "type": "sample",
    "source": "agent",
    "gpus": [{"uuid": "GPU-1", "utilization_pct": 5}],
    "cpu_cores": 1,
}


class _Nothing(Exception):
    """Raised by nobody: reading a run never fails."""


anything = st.recursive(
    st.one_of(st.sampled_from(ODD_VALUES), st.floats(), st.integers(), st.text(max_size=10)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=8,
)


def test_fields(cases: int) -> None:
    def every_reader(value: Any) -> None:
        found = number(value)
        assert found is None or abs(found) <= 1e100
        whole(value), mapping(value), items(value)
        printed = text(value)
        assert printed is None or (printed.encode() and len(printed) <= MAX_TEXT)
        assert printed is None or not {unicodedata.category(character) for character in printed} & {
            "Cc",
            "Cs",
            "Zl",
            "Zp",
        }

    attack(every_reader, anything, cases, _Nothing)


def test_step_lines(cases: int) -> None:
    def read(lines: list[Any]) -> None:
        found = read_steps((index, line) for index, line in enumerate(lines))
        assert len(found.series) <= MAX_SERIES
        assert found.images is None or found.images >= 0
        assert all(abs(y) < float("inf") for points in found.series.values() for _, y in points)
        _ = found.images_per_s, found.find("loss")

    lines = st.lists(changed_values(STEP).filter(lambda line: isinstance(line, dict)), max_size=6)
    attack(read, lines, cases, _Nothing)


def test_evidence(cases: int) -> None:
    def read(events: list[Any]) -> None:
        found = gather(events)
        _ = found.samples, found.steps, found.findings, found.window, found.wall_s, found.contexts, found.exited

    lines = st.lists(st.one_of(changed_values(STEP), changed_values(SAMPLE), anything), max_size=6)
    attack(read, lines, cases, _Nothing)


def test_long_texts_and_many_names() -> None:
    for value in ("\x1b[" * 500_000, "\x1b]" * 500_000, " " * 1_000_000, "\x1b]" + "x" * 1_000_000, "é" * 1_000_000):
        one_case(clean, value, _Nothing)
    lines = [(float(n), {"step": n, **{f"name_{n}_{k}": k for k in range(50)}}) for n in range(2000)]
    one_case(read_steps, lines, _Nothing)
    assert len(read_steps(lines).dropped) <= 100_000
