"""Lines as programs print them → the failure they show."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial.findings import match
from seatrial.findings.catalogue import IN_RUN, LAYERS, entries
from seatrial.findings.match import (
    MAX_CHARACTERS,
    MAX_EVIDENCE,
    match_lines,
    match_text,
    one_byte_letters,
    without_steering,
)
from symptoms import shown

tomllib = pytest.importorskip("tomllib")  # Python 3.11

SAMPLES = tomllib.loads((Path(__file__).parents[2] / "findings" / "lines.toml").read_text())
LINES = {line: id for id, lines in SAMPLES["shows"].items() for line in lines}


@pytest.mark.parametrize("line", LINES)
def test_a_line_shows_its_entry(line: str) -> None:
    assert [finding.id for finding in match_text(line)] == [LINES[line]]


ORDINARY = [(line, layers) for kind, layers in (("ordinary", IN_RUN), ("ordinary_of_any_layer", LAYERS))
            for line in SAMPLES[kind]]  # fmt: skip


@pytest.mark.parametrize(("line", "layers"), ORDINARY)
def test_an_ordinary_line_shows_nothing(line: str, layers: Sequence[str]) -> None:
    assert match_text(line, layers) == []


@pytest.mark.parametrize("entry", [entry for entry in entries() if entry.healthy], ids=lambda entry: entry.id)
def test_what_is_healthy_takes_no_time_to_leave_out_of_a_long_line(entry) -> None:
    healthy = "best val_loss: inf CUDA error: 0 falling back to using the cached min_ "
    symptom = shown(entry.symptoms[0])
    for line in (healthy * 1000, f"{symptom} " * 1000, "best val_" * 7000 + symptom, f"{symptom} {healthy}" * 500):
        began_s = time.process_time()
        match_text(line)
        assert time.process_time() - began_s < 1


def test_every_symptom_is_found_and_belongs_to_its_entry() -> None:
    found = {}
    for entry in entries():
        for symptom in entry.symptoms:
            ids = [finding.id for finding in match_text("prefix " + shown(symptom) + " suffix", LAYERS)]
            if ids != [entry.id]:
                found[symptom] = ids
    assert found == {}


def test_evidence_is_the_line_with_its_number_and_is_bounded() -> None:
    lines = [b"fine\n", b"  CUDA out of memory " + b"x" * 1000 + b"\n"] * 10
    [finding] = match_lines(lines)
    assert len(finding.evidence) == MAX_EVIDENCE
    assert finding.evidence[0].startswith("line 2: CUDA out of memory xxx")
    assert len(finding.evidence[0]) == len("line 2: ") + MAX_CHARACTERS


def test_findings_come_in_order_of_appearance() -> None:
    text = "No CUDA GPUs are available\nToo many open files\nNo CUDA GPUs are available"
    assert [finding.id for finding in match_text(text)] == ["no-cuda-device", "too-many-open-files"]


@given(st.lists(st.binary()), st.text())
def test_any_bytes_and_text_can_be_read(lines: list[bytes], text: str) -> None:
    assert isinstance(match_lines(lines), list) and isinstance(match_text(text), list)


def test_a_line_that_repeats_the_first_half_of_a_symptom_costs_little() -> None:
    line = b"Timed out waiting 1 ms for " * 2400
    began = time.process_time()
    assert match_text(line.decode()) == []
    assert time.process_time() - began < 5.0  # 3 minutes where a gap has no end


def test_a_long_list_of_versions_is_read_to_its_end() -> None:
    versions = ", ".join(f"1.{minor}.{patch}" for minor in range(20) for patch in range(100))
    printed = f"ERROR: Could not find a version that satisfies the requirement botocore==99 (from versions: {versions})"
    [found] = match_text(printed, LAYERS)
    assert found.id == "package-version-missing" and "1.19.99" in (found.cause or "")


def test_no_beginning_is_shorter_than_what_is_looked_up() -> None:
    assert min(map(len, match._heads(LAYERS))) == match._HEAD


@pytest.mark.parametrize(
    "line",
    [
        b"\x1b[1;31mCUDA\x1b[0m \x1b[31mout of memory\x1b[0m",
        b'{"log": "\\u001b[31mCUDA\\u001b[0m out of memory"}',
        b"\\033[31mCUDA\\033[0m out of memory",
        b"\x1b]0;title\x07CUDA out of memory",
    ],
)
def test_what_steers_a_terminal_is_left_out(line: bytes) -> None:
    assert b"CUDA out of memory" in without_steering(line)


def test_sixteen_bits_a_letter() -> None:
    line = "\ufeffCUDA out of memory".encode("utf-16-le")
    assert b"CUDA out of memory" in one_byte_letters(line, line[:2])
    assert one_byte_letters(b"a\x00b", b"ab") == b"a\x00b"


def test_the_source_line_in_a_traceback_is_left_out_of_the_evidence() -> None:
    text = """Traceback (most recent call last):
  File "train.py", line 5, in <module>
    raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB
"""
    (found,) = match_text(text)
    assert found.evidence == ["line 4: RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB"]
