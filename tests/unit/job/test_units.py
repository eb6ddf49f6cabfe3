from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial.errors import UsageError
from seatrial.job.units import format_bytes, parse_bytes, parse_seconds
from tables import cases


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4GB", 4_000_000_000),
        ("512m", 512 * 2**20),  # Docker's letters are powers of 1024
        ("8g", 8 * 2**30),
        ("2GiB", 2 * 2**30),
        ("2Gi", 2 * 2**30),
        ("1.5 kb", 1500),
        (" 4096B ", 4096),
        ("1T", 2**40),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@cases("text", "seconds")
def test_durations(text: str, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["8", "", "GB", "4 XB", "-1GB", "0GB", "4GB5MB", "１GB", "1e3m"])
def test_no_size(text: str) -> None:
    with pytest.raises(UsageError, match="512m, 8GB or 2GiB"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 KB"),
        (1_254_000_000, "1.25 GB"),
        (999_999, "1 MB"),
        (2 * 2**30, "2 GiB"),
        (64 * 2**20, "64 MiB"),
        (543_210_000_000_000, "543 TB"),
    ],
)
def test_sizes_for_humans(size: int, text: str) -> None:
    assert format_bytes(size) == text


@given(st.integers(1, 10**15))
def test_a_shown_size_reads_back_within_half_a_percent(size: int) -> None:
    assert parse_bytes(format_bytes(size)) == pytest.approx(size, rel=0.005, abs=0.5)
